"""The state of a location as struct dyn_ftrace has it, and the reports and the end of tracing when a site is not as expected."""
