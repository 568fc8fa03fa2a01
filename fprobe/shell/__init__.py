"""A shell over the tracefs tree, for `fprobe tracefs` and for replaying sessions recorded on a kernel."""
