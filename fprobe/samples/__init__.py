"""Programs to start from, in the shape of the kernel's samples: `python -m fprobe.samples.fprobe_example --help`."""
