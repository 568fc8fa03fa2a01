"""Function probes: callbacks at entry and exit of many functions at once."""
