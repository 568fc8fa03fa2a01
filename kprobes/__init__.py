"""Breakpoints on any instruction."""
