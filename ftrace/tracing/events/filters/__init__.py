"""Event filters: parsed from text, evaluated in Python, and compiled to machine code."""
