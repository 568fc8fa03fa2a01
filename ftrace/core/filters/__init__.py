"""Selecting functions: patterns, hashes, requests for modules that are not loaded yet, the filter files."""
