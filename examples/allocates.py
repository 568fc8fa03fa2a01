"""A program that allocates: what docs/run.md runs under `fprobe run --stacks libc:malloc --sum`."""

from __future__ import annotations


def block(size: int) -> bytearray:
    return bytearray(size)


class Cache:
    def __init__(self) -> None:
        self.blocks = [block(200_000) for _ in range(10)]

    def index(self) -> list[str]:
        return ["0"] * 100_000


def main() -> None:
    cache = Cache()
    print(len(cache.blocks), len(cache.index()), len(block(50_000)))


if __name__ == "__main__":
    main()
