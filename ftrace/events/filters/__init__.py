"""Event filters: what a record must hold to be kept, parsed from text, evaluated in Python and compiled."""
