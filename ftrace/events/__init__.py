"""Trace events: their registry, the dynamic ones that are defined by lines of text, and error_log."""
