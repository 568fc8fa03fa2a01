"""Triggers: what an event does when it is hit, besides being recorded."""
