"""Where things stand in the two small int64 tensors that a layer's kernels share with the host.

The *state* lives in device memory, one per workspace: the call number, the abort flag, the cursors. The *error record*
lives in mapped host memory, so that the host can read it while a kernel hangs. Its kind is written last: a record whose
kind is 0 holds nothing yet. Numbers that templates need come from here, and nowhere else.
"""

from __future__ import annotations

from enum import IntEnum

STATE_CALL = 0
"""Number of calls that have ended."""
STATE_EXITED = 1
"""Workers of the running call that have left."""
STATE_ABORT = 2
"""0, or 1 once a worker has claimed the error record; from then on workers leave, and outputs are NaN."""
STATE_CLOCK = 3
"""The latest nanosecond that a waiting worker has read off its clock."""
STATE_CURSOR = 8
"""First cursor; launch `n` of a call that uses set `s` takes its task ids from `STATE_CURSOR + s * CURSORS + n`."""
CURSORS = 64
"""Cursors of a set, so launches that a call can have."""
STATE_WORDS = STATE_CURSOR + 2 * CURSORS

ERROR_KIND = 0
ERROR_RANK = 1
ERROR_FAMILY = 2
ERROR_TASK = 3
ERROR_SIGNAL = 4
ERROR_INDEX = 5
ERROR_EXPECTED = 6
ERROR_SEEN = 7
ERROR_WORDS = 16


class ErrorKind(IntEnum):
    """What an error record reports, and how its words are meant.

    HANG: `family` and `task` waited for counter `index` of `signal` to reach `expected`, and last saw `seen`.
    BAD_ID: token `task` names expert `seen` in place `index`, and there are `expected` experts.
    CAPACITY: `seen` rows came to a rank that has room for `expected`.
    MISMATCH: a peer's call has signature `seen`, and the own one `expected`.
    """

    NONE = 0
    HANG = 1
    BAD_ID = 2
    CAPACITY = 3
    MISMATCH = 4
