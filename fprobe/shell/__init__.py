"""A shell over the tracefs tree: for `fprobe tracefs`, and for replaying what was typed into a kernel's."""
