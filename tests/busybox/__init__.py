"""A shell over the tracefs tree, with the messages of busybox: what the commands in transcripts of a real kernel do."""
