"""From patterns to locations, in images of any kind; other probes beside them; images that are unloaded."""
