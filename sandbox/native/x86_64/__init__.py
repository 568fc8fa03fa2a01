"""Native functions that read x86-64 machine code: entries of functions, and whether their returns are plain."""
