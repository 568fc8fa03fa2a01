"""What is x86-64 in this package: the stubs and trampolines, as assembly and bytes."""
