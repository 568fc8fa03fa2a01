"""The threads that answer requests. A read of an empty pipe is put aside, so that it occupies none of them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import threading
import time
from collections.abc import Callable

from fprobe.mount import messages
from fprobe.mount.messages import UNANSWERED, Opcode, Request
from fprobe.mount.requests import Opened, Requests, WouldWait
from ftrace.tracing.instances.as_task import as_task, comm_of
from ftrace.tracing.tracers.follow_fork import fork_following
from sandbox.threads.own_thread import OwnThread

log = logging.getLogger("fprobe")

# With the GIL: an answer never waits, and beside a thread that computes, getting the GIL back takes 5 ms.
_write = ctypes.PyDLL(None).write
_write.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
_write.restype = ctypes.c_ssize_t

_WORKERS = 4
_POLL = 0.01
"""Seconds between two looks at pipes that somebody waits for: writers of records do not wake readers."""


class Server:
    """Answers the requests that come by the descriptor `device`, until the file system is unmounted.

    `before_request(path, pid)` is called first for each request about a file.
    """

    def __init__(self, device: int, requests: Requests, before_request: Callable[[str, int], None] | None) -> None:
        self._device = device
        self._requests = requests
        self._before_request = before_request
        self._waiting: dict[int, tuple[Opened, int]] = {}
        """Number of the request -> the pipe that it reads from, and how many bytes."""
        self._polled: dict[int, Opened] = {}
        """Number of the poll -> the file that somebody waits for."""
        self._slow: set[int] = set()
        """Requests that may take long; an answer after a signal is dropped by the kernel."""
        self._changed = threading.Condition()
        self._is_mounted = True
        self._is_stopping = False
        self._workers = [OwnThread(self._work) for _ in range(_WORKERS)]
        self.thread = 0
        """The number of a thread that serves until the file system is unmounted, or this process ends."""
        self._ask: Callable[[], object] = int
        self._is_asking = threading.Event()
        OwnThread(self._ask_each)  # now: at its end, Python 3.12 makes no threads
        serves = threading.Event()
        self._waiter = OwnThread(lambda: self._wait(serves))
        serves.wait()

    def stop(self, ask: Callable[[], object]) -> None:
        """End every thread. `ask` makes a request, if the file system can still be reached."""
        self._is_stopping = True
        self._ask = ask
        self._is_asking.set()
        for worker in self._workers:
            worker.join()
        with self._changed:
            self._is_mounted = False
            self._changed.notify()
        self._waiter.join()
        self._requests.close()

    def _ask_each(self) -> None:
        """Not in the thread that calls `stop`: it waits for ever once others' requests have ended the workers."""
        self._is_asking.wait()
        for _ in self._workers:
            with contextlib.suppress(OSError):
                self._ask()

    def _work(self) -> None:
        buffer = bytearray(messages.REQUEST_SIZE)
        while True:
            try:
                size = os.readv(self._device, [buffer])
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the request has been interrupted
                    continue
                return  # ENODEV: unmounted
            request = messages.request(bytes(memoryview(buffer)[:size]))
            if self._is_stopping:
                self._send(messages.failure(request.unique, errno.ENOTCONN))
                return
            self._serve(request)

    def _serve(self, request: Request) -> None:
        if request.opcode == Opcode.INTERRUPT:
            self._interrupt(messages.interrupted(request.body))
        elif request.opcode == Opcode.WRITE and self._requests.is_slow(request):
            self._slow.add(request.unique)
            try:
                OwnThread(lambda: self._finish_slowly(request))
            except RuntimeError:  # Python ends, or there are too many threads
                self._finish_slowly(request)
        elif request.opcode not in UNANSWERED:
            self._reply(request)

    def _reply(self, request: Request) -> None:
        try:
            self._send(messages.reply(request.unique, self._answer(request)))
        except WouldWait as wait:
            with self._changed:
                self._waiting[request.unique] = wait.opened, wait.size
                self._changed.notify()
        except OSError as error:
            self._send(messages.failure(request.unique, error.errno or errno.EIO))
        except Exception:
            log.exception("request %s of the mounted tree failed", request.opcode)
            self._send(messages.failure(request.unique, errno.EIO))

    def _finish_slowly(self, request: Request) -> None:
        try:
            self._reply(request)
        finally:
            self._slow.discard(request.unique)

    def _answer(self, request: Request) -> bytes:
        if request.opcode == Opcode.POLL:
            return self._poll(request)
        if request.pid and fork_following().is_following:
            fork_following().meet(request.pid)
        if self._before_request is not None and request.opcode != Opcode.INIT:
            self._before_request(self._requests.path(request), request.pid)
        with self._behalf(request):
            return self._requests.answer(request)

    def _behalf(self, request: Request) -> contextlib.AbstractContextManager[None]:
        """What a write does is done by the writer."""
        if request.opcode != Opcode.WRITE:
            return contextlib.nullcontext()
        return as_task(request.pid, _name(request.pid) if self._requests.is_slow(request) else None)

    def _send(self, message: bytes) -> None:
        _write(self._device, message, len(message))  # an error: the caller is gone, or the file system is unmounted

    # -- those who wait -----------------------------------------------------------------------------------------

    def _interrupt(self, unique: int) -> None:
        """A signal ends a request that waits or takes long, for its caller; others end by themselves."""
        with self._changed:
            if self._waiting.pop(unique, None) is not None or unique in self._slow:
                self._send(messages.failure(unique, errno.EINTR))

    def _poll(self, request: Request) -> bytes:
        handle, poll = messages.poll_request(request.body)
        opened = self._requests.file(handle)
        if opened.handle.is_stream:
            with self._changed:
                self._polled[poll] = opened
                self._changed.notify()
        return messages.polled(self._requests.ready(opened))

    def _wait(self, serves: threading.Event) -> None:
        self.thread = threading.get_native_id()
        serves.set()
        while True:
            with self._changed:
                while self._is_mounted and not self._waiting and not self._polled:
                    self._changed.wait()
                if not self._is_mounted:
                    return
                self._look()
            time.sleep(_POLL)

    def _look(self) -> None:
        for unique, (opened, size) in list(self._waiting.items()):
            try:
                data = self._requests.read_stream(opened, size)
                answer = messages.reply(unique, data) if data is not None else b""
            except OSError as error:
                answer = messages.failure(unique, error.errno or errno.EIO)
            if answer:
                del self._waiting[unique]
                self._send(answer)
        for poll, opened in list(self._polled.items()):
            try:
                is_ready = opened.handle.poll(0.0)
            except OSError:  # closed meanwhile
                is_ready = True
            if is_ready:
                del self._polled[poll]
                self._send(messages.poll_notice(poll))


def _name(pid: int) -> str | None:
    try:
        return comm_of(pid)
    except OSError:  # it has ended
        return None
