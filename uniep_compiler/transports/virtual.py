"""The virtual transport: n ranks as parts of one launch on one device, each with its own symmetric buffers.

For tests, development and schedule work: all tasks of a group run in the order (stage, rank, index) of one cursor, and
a peer's memory is a fixed distance away.
"""

from __future__ import annotations

from dataclasses import dataclass

from uniep_compiler.diagnostics import Diagnostic, UniepError

MAX_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualGroup:
    """A group of `num_ranks` ranks on one device. Every argument of a layer is a list with one tensor per rank.

    UEP0601 unless there are 1 to 64.
    """

    num_ranks: int

    def __post_init__(self) -> None:
        ranks = self.num_ranks
        if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MAX_RANKS:
            message = f"a virtual group has 1 to {MAX_RANKS} ranks, not {ranks!r}"
            raise UniepError([Diagnostic(code="UEP0601", message=message)])


def virtual_group(num_ranks: int) -> VirtualGroup:
    """A virtual group of 1 to 64 ranks; UEP0601 for any other number."""
    return VirtualGroup(num_ranks=num_ranks)
