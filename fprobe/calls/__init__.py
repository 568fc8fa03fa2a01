"""Recording the calls of a trace; counting calls by their stacks."""
