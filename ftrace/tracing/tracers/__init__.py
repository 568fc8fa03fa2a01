"""The tracers function and function_graph (current_tracer), and the function profiler."""
