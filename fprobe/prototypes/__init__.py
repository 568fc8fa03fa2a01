"""Prototypes of functions of well-known libraries, and what the arguments of some of them mean; for libraries without DWARF."""
