"""A program that compresses: what docs/run.md runs under `fprobe run`."""

from __future__ import annotations

import zlib


def pack(text: str) -> bytes:
    return zlib.compress(text.encode())


def main() -> None:
    packed = [pack("function probes " * number) for number in range(1, 201)]
    print(sum(len(zlib.decompress(data)) for data in packed), "bytes")


if __name__ == "__main__":
    main()
