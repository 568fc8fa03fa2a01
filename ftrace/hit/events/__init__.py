"""Native code that runs when an event is hit."""
