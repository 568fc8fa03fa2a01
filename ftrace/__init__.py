"""Patching the stubs at the heads of functions while the code runs."""
