"""Which functions are meant: patterns, hashes, requests for modules to come, the filter files."""
