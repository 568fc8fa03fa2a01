"""Native code of the tracers."""
