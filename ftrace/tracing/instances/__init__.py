"""Trace arrays: the top level and the instances, with their options, names of tasks and error log."""
