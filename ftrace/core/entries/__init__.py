"""From patterns to locations, in images of any kind; other probes at the same entries; images that are unloaded."""
