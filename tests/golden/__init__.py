"""Transcripts of a real kernel's tracefs, replayed against this one: `python -m tests.golden FILE...`."""
