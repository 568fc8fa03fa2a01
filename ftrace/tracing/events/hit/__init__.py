"""Code that runs at hits of events: native functions, and the source that is generated for each event."""
