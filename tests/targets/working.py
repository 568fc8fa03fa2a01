"""A program under load: threads that compress, hash, wait and start threads, and check every result. Answers with the errors."""

from __future__ import annotations

import hashlib
import select
import sys
import threading
import time
import zlib

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()
errors: list[str] = []
done = [0]
EPOLL = select.epoll()


def checked(call):
    """Repeat a call that returns whether all is well."""
    try:
        while True:
            if not call():
                errors.append(f"{call.__name__}: wrong")
            done[0] += 1
            time.sleep(0.0005)
    except BaseException as error:
        errors.append(f"{call.__name__}: {error!r}")


def compress():
    return zlib.decompress(zlib.compress(DATA)) == DATA


def digest():
    return hashlib.sha256(DATA).hexdigest() == DIGEST


def wait():
    return EPOLL.poll(0.002) == []


def start():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return not thread.is_alive()


if __name__ == "__main__":
    for each in (compress, compress, digest, wait, start):
        threading.Thread(target=checked, args=(each,), daemon=True).start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(done[0], *errors, sep="\t", flush=True)
