"""Fprobe events, and probe events of any type from Python."""
