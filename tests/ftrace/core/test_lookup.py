"""available_filter_functions and enabled_functions (FT-73..75)."""

from __future__ import annotations

from isolation import isolated


@isolated
def test_ft73_available_filter_functions_lists_every_stub_in_table_order():
    import sandbox
    import sandbox.demo
    from ftrace.core.filters.lookup import available_filter_functions

    module = sandbox.load(sandbox.demo.source(), name="demo")
    lines = available_filter_functions().splitlines()
    assert lines == [f"{symbol.name} [demo]" for symbol in module.site_functions]
    assert "get_current [demo]" not in lines  # notrace
    first = available_filter_functions(addresses=True).splitlines()[0]
    assert first == f"{module.sites[0]:x} {lines[0]}"


@isolated
def test_ft74_ft75_enabled_functions_in_the_kernels_columns():
    import re

    import fprobe
    import sandbox
    import sandbox.demo
    from ftrace.core.filters.lookup import enabled_functions
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function

    sandbox.load(sandbox.demo.source(), name="demo")
    assert enabled_functions() == ""
    ops = ftrace_ops(lambda *_: None)
    ftrace_set_filter(ops, "vfs_read")
    register_ftrace_function(ops)
    assert enabled_functions().startswith("vfs_read [demo] (1)           \ttramp: 0x")
    with fprobe.attach("vfs_re*", action=fprobe.Count()):
        line, *others = enabled_functions().splitlines()
        assert not others and line.startswith("vfs_read [demo] (2) R          ->")
    with fprobe.attach("vfs_open", action=fprobe.Count()):
        line = next(line for line in enabled_functions().splitlines() if line.startswith("vfs_open"))
        assert re.match(
            r"vfs_open \[demo\] \(1\) R         \ttramp: 0x[0-9a-f]+ \(fprobe_handler\+0x0/0x[0-9a-f]+\) ->", line
        )


@isolated
def test_ft74_the_callbacks_name():
    from programs import basic

    import sandbox
    from ftrace.core.filters.lookup import enabled_functions
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function

    module = basic()
    sandbox.load("define i32 @native_callback() { ret i32 0 }\n", name="callbacks")

    def callback(*hit):
        return None

    for target, func in (("leaf", callback), ("other", sandbox.symbol_table.lookup("native_callback"))):
        ops = ftrace_ops(func)
        ftrace_set_filter(ops, target)
        register_ftrace_function(ops)
    leaf, other = (line.partition("(1)")[2].partition("tramp: ")[2].split(" ", 1)[1] for line in
                   enabled_functions().splitlines())  # fmt: skip
    assert leaf == "(callback+0x0/0x0) ->callback+0x0/0x0"
    size = sandbox.symbol_table.locate(sandbox.symbol_table.lookup("native_callback")).symbol.size
    shown = f"native_callback+0x0/{size:#x} [callbacks]"
    assert other == f"({shown}) ->{shown}"
    assert module["leaf"](1) == 2 and module["other"](1) == 3
