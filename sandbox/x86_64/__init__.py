"""The x86-64 parts of the sandbox: decoding, relocation, vector state, system calls."""
