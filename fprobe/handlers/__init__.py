"""The handlers of fprobes: signatures, roles, the native decorator, and native handlers from a file."""
