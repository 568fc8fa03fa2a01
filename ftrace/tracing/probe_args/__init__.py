"""Definitions of probe events, for kprobe and fprobe events: arguments, types and error messages."""
