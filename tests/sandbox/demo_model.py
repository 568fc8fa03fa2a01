"""What the demo program does, said a second time: files are byte strings, directories a set of paths."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

MASK = (1 << 64) - 1
PAGE, PAGES_PER_FILE, PAGES, INODES = 512, 8, 32, 32
LIMIT = PAGE * PAGES_PER_FILE
ENOENT, EBADF, ENOTDIR, EISDIR, EINVAL, EFBIG, ENOSPC, ENAMETOOLONG, ENOSYS = -2, -9, -20, -21, -22, -27, -28, -36, -38
DIRECTORIES = {"/dev": 2, "/home": 4, "/home/alice": 5, "/home/alice/docs": 6, "/home/bob": 7, "/home/bob/docs": 8}
RESERVED_INODES = {1, 3, *DIRECTORIES.values()}  # 1 is the root, 3 /dev/zero


def fold(*values: int, start: int = 0) -> int:
    """The demo's hash over a row of numbers."""
    for value in values:
        start = ((start << 9 | start >> 55) ^ (value * 0x9E3779B97F4A7C15)) & MASK
    return start


def text_checksum(data: bytes) -> int:
    total = 0
    for byte in data:
        total = (total * 31 + byte) & 0xFFFFFFFF
    return total


def page_checksum(page: bytes) -> int:
    lanes = [1, 2, 3, 4]
    for index, word in enumerate(struct.unpack("<128I", page)):
        lanes[index % 4] = (lanes[index % 4] * 16777619 & 0xFFFFFFFF) ^ word
    return sum(lanes) & 0xFFFFFFFF


@dataclass
class File:
    ino: int
    mtime: int
    data: bytearray = field(default_factory=bytearray)
    resident: set[int] = field(default_factory=set)
    dirty: set[int] = field(default_factory=set)
    nlink: int = 1


class Model:
    """One run of the demo; each round opens one file at a time, so that there is one descriptor: 0."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.random = 0x9E3779B97F4A7C15
        self.ticks = self.head = self.written = self.disk = self.populated = self.switches = self.curr = 0
        self.load = 0.0
        self.vruntime = [0, 0, 0, 0]
        self.log = b""
        self.next_address = 4 << 20
        self.open_file: File | None = None

    # the machine around the files

    def number(self) -> int:
        x = self.random
        x ^= x >> 12
        x = (x ^ x << 25) & MASK
        x ^= x >> 27
        self.random = x
        return x * 2685821657736338717 >> 32 & 0xFFFFFFFF

    def schedule(self) -> int:
        self.vruntime[self.curr] += 3000 * 1024 // (512 * (self.curr + 1))
        pick = self.vruntime.index(min(self.vruntime))
        self.switches += pick != self.curr
        self.curr = pick
        return pick

    def tick(self) -> None:
        self.ticks += 1
        decay = 0.9200444146293233
        self.load = self.load * decay + (self.curr + 1) * (1.0 - decay)
        self.schedule()

    # files

    def in_use(self) -> list[File]:
        known = list(self.files.values())
        if self.open_file is not None and all(f is not self.open_file for f in known):
            known.append(self.open_file)
        return known

    def free_pages(self) -> int:
        return PAGES - sum(len(f.resident) for f in self.in_use())

    def open(self, path: str, truncate: bool) -> File:
        if path not in self.files:
            taken = RESERVED_INODES | {f.ino for f in self.in_use()}
            self.files[path] = File(min(set(range(1, INODES + 1)) - taken), self.ticks)
        file = self.open_file = self.files[path]
        if truncate:
            del file.data[:]
            file.resident.clear()
            file.dirty.clear()
        return file

    def write(self, file: File, start: int, data: bytes) -> int:
        if start >= LIMIT:
            return EFBIG
        done = 0
        data = data[: LIMIT - start]
        while done < len(data):
            index, offset = divmod(start + done, PAGE)
            if index not in file.resident and self.free_pages() == 0:
                break
            file.resident.add(index)
            file.dirty.add(index)
            done += min(PAGE - offset, len(data) - done)
        if not done:
            return ENOSPC
        file.data.extend(bytes(max(0, start + done - len(file.data))))
        file.data[start : start + done] = data[:done]
        file.mtime = self.ticks
        return done

    def sync(self, file: File) -> None:
        """Upwards from where the head is, then downwards: one pass each is always enough."""
        above = sorted(i for i in file.dirty if i >= self.head)
        below = sorted((i for i in file.dirty if i < self.head), reverse=True)
        for index in above + below:
            page = bytes(file.data[index * PAGE : (index + 1) * PAGE]).ljust(PAGE, b"\0")
            self.disk = fold(page_checksum(page), start=self.disk)
            self.written += 1
            self.head = index
        file.dirty.clear()

    def unlink(self, path: str) -> int:
        if path not in self.files:
            return ENOENT
        self.files.pop(path).nlink -= 1
        return 0

    # a round

    def transfer(self, file: File, number: int, append: bool) -> tuple[int, int]:
        """lseek, write, fsync, lseek, read: the hash of all, and what was written."""
        count, place = 1 + (number >> 8) % 700, (number >> 20) % 4200
        data = bytes((number + 7 * j + j // 8) & 255 for j in range(count))
        seek, position = (place, place) if place <= LIMIT else (EINVAL, 0)
        position = len(file.data) if append else position
        put = self.write(file, position, data)
        position += max(put, 0)
        self.sync(file)
        back = len(file.data) - 300
        if back < 0:
            back = EINVAL
        else:
            position = back
        got = bytes(file.data[position : position + 512])
        return fold(seek, put, 0, back, len(got), text_checksum(got)), put

    def status(self, file: File) -> int:
        age = (self.ticks - file.mtime) * 4_000_000
        return fold(file.ino, len(file.data), len(file.resident), 0o100644, file.nlink, age)

    def map(self, file: File, length: int, first: int) -> int:
        self.populated += sum(index >= first for index in file.resident)
        address = self.next_address
        self.next_address += (length + 4095) // 4096 * 4096
        return address

    def events(self, index: int) -> int:
        if index % 4 == 0:
            self.tick()
        if index % 8 != 7:
            return 0
        failures = (ENOENT, ENOTDIR, ENAMETOOLONG, EISDIR, EISDIR, EBADF, ENOSYS)
        return fold(*failures, 100, text_checksum(bytes(100)), 0)

    def round(self, index: int) -> int:
        number = self.number()
        path = f"/home/{'bob' if number & 1 else 'alice'}/docs/file{index % 8}"
        count = 1 + (number >> 8) % 700
        events = self.events(index)
        file = self.open(path, truncate=index % 5 == 0)
        transferred, put = self.transfer(file, number, append=index % 3 == 0)
        early = self.unlink(path) if index % 6 == 1 else 1
        status = self.status(file)
        address = self.map(file, count, index % 8)
        self.open_file = None
        late = self.unlink(path) if index % 2 else 1
        curr = self.schedule()
        hundredths = int((self.load - int(self.load)) * 100)
        load = f"{int(self.load)}.{hundredths:02}"
        line = f"round {index}: {path} wrote {put} of {count}, load {load} %\n".encode()
        self.log += line
        return fold(0, transferred, early, status, address, 0, late, curr, len(line), start=events)

    def summary(self, checksum: int) -> int:
        ring = bytearray(1024)
        for place, byte in enumerate(self.log):
            ring[place % 1024] = byte
        used = sum(len(f.resident) for f in self.files.values())
        inodes = INODES - len(RESERVED_INODES) - len(self.files)
        bits = struct.unpack("<Q", struct.pack("<d", self.load))[0]
        left = (PAGES - used, inodes, used, self.written, self.disk, self.populated)
        return fold(*left, text_checksum(ring), bits, self.switches, start=checksum)


def demo_main(rounds: int) -> int:
    """The checksum of that many rounds."""
    model, checksum = Model(), 0
    for index in range(rounds):
        checksum = fold(model.round(index), start=checksum)
    return model.summary(checksum)
