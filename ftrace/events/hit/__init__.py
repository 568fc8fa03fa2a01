"""What the probes of events run when they are hit: native functions, and the source that is generated for each event."""
