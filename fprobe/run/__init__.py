"""Running a Python program with probes on what it loads: the launcher's side, and the side in the program."""
