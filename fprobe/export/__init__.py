"""Records and what they become: trace.dat, and the texts and documents of `fprobe report`."""
