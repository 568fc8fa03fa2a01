"""The definitions of probe events: their arguments, types and messages, common to kprobe and fprobe events."""
