"""The x86-64 parts of ftrace: stubs and trampolines, as assembly and bytes."""
