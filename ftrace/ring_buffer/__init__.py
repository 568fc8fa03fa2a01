"""The ring buffer: events in the kernel's page format, recorded by each thread into pages of its own."""
