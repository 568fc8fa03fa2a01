"""Runs a Python program with probes on the code that it loads. Contains the launcher and the part inside the program."""
