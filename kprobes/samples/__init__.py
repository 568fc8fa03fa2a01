"""Programs to run: the kernel's samples/kprobes, and a function that is mended while it runs."""
