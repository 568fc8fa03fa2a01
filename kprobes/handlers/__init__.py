"""The handlers of kprobes and kretprobes: signatures, roles, the native decorator, and what native code uses."""
