"""The parts of this package that are specific to x86-64."""
