"""Jump optimisation: what may become a jump, where it leads, when it is written and taken back."""
