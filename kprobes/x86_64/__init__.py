"""What is x86-64 in this package."""
