"""The kernel's own tests of ftrace (tools/testing/selftests/ftrace) on the mounted tree: `python -m tests.ftracetest`."""
