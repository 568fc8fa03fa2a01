"""trace.dat read a second time, from its description (trace-cmd.dat.v7(5)) alone: nothing of the project is used."""

import struct
import zlib


def sections_of(data):
    """page size, options as (id, data) in order, and the sections that they name: id -> (flags, content)."""
    assert data[:10] == b"\x17\x08\x44tracing"
    assert data[10:14] == b"7\0\0\x08"
    (page_size,) = struct.unpack_from("<I", data, 14)
    algorithm, _version, _ = data[18:].split(b"\0", 2)
    assert algorithm in (b"none", b"zlib")
    at = data.index(b"\0", 18 + len(algorithm) + 1) + 1
    (place,) = struct.unpack_from("<Q", data, at)
    content, options, at = section(data, place, 0), [], 0
    while True:
        number, size = struct.unpack_from("<HI", content, at)
        options.append((number, content[at + 6 : at + 6 + size]))
        at += 6 + size
        if number == 0:
            break
    assert at == len(content) and options[-1] == (0, bytes(8))
    named = {
        number: section(data, int.from_bytes(value, "little"), number)
        for number, value in options
        if 16 <= number <= 21
    }
    return page_size, options, named


def section(data, at, wanted):
    """The content of a section."""
    number, flags, _text, size = struct.unpack_from("<HHIQ", data, at)
    assert number == wanted and flags in (0, 1)
    assert at + 16 + size <= len(data)
    content = data[at + 16 : at + 16 + size]
    if flags:
        content, rest = unpacked(content)
        assert rest == b""
    return content


def unpacked(data):
    """A compressed block's content, and what follows it."""
    compressed, size = struct.unpack_from("<II", data)
    content = zlib.decompress(data[8 : 8 + compressed])
    assert len(content) == size
    return content, data[8 + compressed :]


def pages_of(data, offset, size):
    """The sub-buffers of a CPU in a compressed section."""
    (count,) = struct.unpack_from("<I", data, offset)
    rest, found = data[offset + 4 : offset + size], b""
    for _ in range(count):
        content, rest = unpacked(rest)
        found += content
    assert rest == b""
    return found


def buffer_of(option, wanted=b""):
    """Where the section is, the clock, the page size, and for each CPU its id, offset and size."""
    (place,) = struct.unpack_from("<Q", option)
    name, clock, rest = option[8:].split(b"\0", 2)
    assert name == wanted
    page_size, count = struct.unpack_from("<II", rest)
    cpus = [struct.unpack_from("<IQQ", rest, 8 + 20 * index) for index in range(count)]
    assert len(rest) == 8 + 20 * count
    return place, clock.decode(), page_size, cpus


def formats_of(named):
    """Event id -> (system, text)."""
    found = {}
    for system, texts in [("ftrace", listed(named[17], 0)[0]), *systems_of(named[18])]:
        for text in texts:
            number = next(int(line[4:]) for line in text.splitlines() if line.startswith("ID: "))
            found[number] = (system, text)
    return found


def systems_of(content):
    """(name, texts) of each system."""
    (count,) = struct.unpack_from("<I", content)
    at = 4
    for _ in range(count):
        end = content.index(b"\0", at)
        texts, after = listed(content, end + 1)
        yield content[at:end].decode(), texts
        at = after
    assert at == len(content)


def listed(content, at):
    """Texts with their sizes in front, and where they end."""
    (count,) = struct.unpack_from("<I", content, at)
    at += 4
    texts = []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", content, at)
        texts.append(content[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return texts, at


def events_of(page):
    """(time, type, pid, data) of each event of a sub-buffer, and the number of lost ones before it (-1: unknown)."""
    stamp, word = struct.unpack_from("<QQ", page)
    used = word & (1 << 27) - 1
    lost = 0
    if word >> 31 & 1:
        lost = struct.unpack_from("<Q", page, 16 + used)[0] if word >> 30 & 1 else -1
    at, found = 16, []
    while at < 16 + used:
        (head,) = struct.unpack_from("<I", page, at)
        kind, delta = head & 31, head >> 5
        if kind in (30, 31):
            more = struct.unpack_from("<I", page, at + 4)[0]
            stamp = stamp + delta + (more << 27) if kind == 30 else delta | more << 27
            at += 8
            continue
        stamp += delta
        size, start = (kind * 4, at + 4) if kind else (struct.unpack_from("<I", page, at + 4)[0] - 4, at + 8)
        assert kind <= 28
        number, _flags, _preempt, pid = struct.unpack_from("<HBBi", page, start)
        found.append((stamp, number, pid, page[start : start + size]))
        at = start + size
    return found, lost
