"""The handlers of fprobes: their roles, the native decorator, native handlers from a file."""
