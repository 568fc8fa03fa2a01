"""The hit path of kprobes: native records, the trap handler, calling handlers, returns of calls."""
