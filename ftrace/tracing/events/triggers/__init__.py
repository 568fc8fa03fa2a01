"""Triggers: actions of an event's hits, besides recording."""
