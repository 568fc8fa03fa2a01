"""`python -m fprobe`: the same as the `fprobe` command."""

from __future__ import annotations

from fprobe.cli import main

if __name__ == "__main__":
    main(prog_name="fprobe")
