"""The part inside the program: attaches the probes before the program begins, and to what it loads later."""
