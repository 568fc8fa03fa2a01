"""Trace events: the registry, dynamic events (defined by lines of text), and error_log."""
