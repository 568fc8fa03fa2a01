"""Native code that writes and consumes records."""
