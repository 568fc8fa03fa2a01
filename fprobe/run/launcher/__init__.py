"""The launcher: starts the program, waits for it, and reports what its processes have counted and recorded."""
