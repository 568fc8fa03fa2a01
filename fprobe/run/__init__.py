"""Runs a Python program with probes on the code that it loads. Contains what the launcher and the program share."""
