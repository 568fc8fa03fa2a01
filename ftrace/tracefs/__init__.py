"""The tracefs tree inside the process: files with the kernel's open, read and write semantics."""
