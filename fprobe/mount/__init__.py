"""The tracefs tree as a file system, over /dev/fuse."""
