"""A program that runs until it is ended: what docs/attach.md attaches to."""

from __future__ import annotations

import sys
import threading
import time
import zlib


def pack() -> None:
    while True:
        zlib.compress(b"function probes " * 50)
        time.sleep(0.001)


def main() -> None:
    for number in range(2):
        threading.Thread(target=pack, name=f"packer-{number}", daemon=True).start()
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 60)


if __name__ == "__main__":
    main()
