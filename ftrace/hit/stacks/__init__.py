"""Collecting the stacks of calls, native and Python, in a table. Native."""
