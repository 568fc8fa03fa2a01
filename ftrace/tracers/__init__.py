"""Tracers: what current_tracer names. function, function_graph, and the function profiler."""
