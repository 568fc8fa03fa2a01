"""Writing and reading trace.dat, and the output formats of `fprobe report`."""
