"""Locks that forks wait for: of the threads of a process, a child has only the one that forked it."""

from __future__ import annotations

import os
import threading


def lock_across_forks() -> threading.RLock:
    """A lock for a module of ours. Forks wait until no other thread holds it, so a child finds whole what it guards.

    Whoever holds it may take locks of modules that its own module imports, and no others: forks take the locks in the
    opposite order of their making.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
