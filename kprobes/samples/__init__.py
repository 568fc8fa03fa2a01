"""Sample programs: the kernel's samples/kprobes, and a fix of a function while it runs."""
