"""The tracefs tree of this process: files with the kernel's open, read and write semantics."""
