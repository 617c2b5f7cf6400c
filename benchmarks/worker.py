"""One process per system: what hangs or breaks in one is ended, and the others go on.

The processes take turns on the device: each waits for its parent's word, so only one has work there while times are
taken. Inputs are drawn in each process from one seed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.jobs import Job
from benchmarks.session import Session

ROOT = Path(__file__).parents[1]
POLL_SECONDS = 1.0
END_SECONDS = 5.0
MAX_ERROR_CHARS = 600
NUM_FRAMES = 4
"""Of the traceback of an error in a process: the innermost."""


class WorkerError(Exception):
    """A system that failed, with what it said; or one that did not answer in time."""


class Worker:
    """The parent's side of one process. Requests are answered in time, or the process is ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, job), name=job.variant.name, daemon=True)
        self._process.start()
        theirs.close()

    def send(self, request: str, *args: object) -> None:
        """Ask for something, without waiting for it."""
        try:
            self._connection.send((request, args))
        except OSError as error:
            raise self._failure(f"its process has ended ({error})") from None

    def receive(self, seconds: float) -> dict[str, object]:
        """The answer to the last request. Raises WorkerError, and ends the process, if that is an error or late."""
        seconds = max(seconds, 0.0)
        try:
            if not self._connection.poll(seconds):
                raise self._failure(f"no answer within {seconds:.0f} s; its process was ended")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(END_SECONDS)
            raise self._failure(f"its process ended with status {self._process.exitcode}") from None
        if kind == "error":
            raise self._failure(str(value))
        return dict(value)

    def request(self, seconds: float, request: str, *args: object) -> dict[str, object]:
        """Ask, and wait for the answer."""
        self.send(request, *args)
        return self.receive(seconds)

    def end(self) -> None:
        """End the process, whatever it does. What the kernel keeps alive is left behind."""
        self._connection.close()
        self._process.kill()
        self._process.join(END_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether the process still exists."""
        return self._process.is_alive()

    def _failure(self, text: str) -> WorkerError:
        self.end()
        return WorkerError(text[:MAX_ERROR_CHARS])


def serve(connection: Connection, job: Job) -> None:
    """The process: answers requests until its parent closes the connection or is gone."""
    _end_with_parent()
    session = None
    while True:
        try:
            request, args = connection.recv()
        except EOFError:
            return
        try:
            session = session or Session(job)
            reply: tuple[str, object] = ("ok", getattr(session, request)(*args))
        except Exception as error:
            traceback.print_exc(limit=-NUM_FRAMES)
            reply = ("error", f"{type(error).__name__}: {error}".replace(f"{ROOT}/", "")[:MAX_ERROR_CHARS])
        connection.send(reply)


def _end_with_parent() -> None:
    """A parent that was killed leaves no process on the device, not even one that hangs there."""
    warnings.filterwarnings("ignore")  # they would drown the tables
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
