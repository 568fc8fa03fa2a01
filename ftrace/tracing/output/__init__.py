"""The text of what was recorded: the files trace, trace_pipe and snapshot, as kernel/trace/trace_output.c writes them."""
