"""What the schedule machine can find wrong, and its report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from uniep_compiler.ir.instance import TaskId


class Fault(StrEnum):
    """Kinds of findings."""

    DEADLOCK = "deadlock"
    LOST_POST = "lost post"
    RACE = "race"
    STALE_READ = "stale read"
    STALE_WRITE = "stale write"
    DOUBLE_WRITE = "double write"
    NARROW_SCOPE = "scope too narrow"
    MISSING_FENCE = "missing fence"
    ASYNC_WRITE = "async write"
    NEVER_WRITTEN = "never written"
    OUT_OF_BOUNDS = "out of bounds"
    OUT_OF_REACH = "out of reach"


_MEANINGS = {
    Fault.DEADLOCK: "waits for posts of tasks that can't run",
    Fault.LOST_POST: "waits for more posts than there are",
    Fault.RACE: "is not ordered against",
    Fault.STALE_READ: "reads something else than the last value that data flow gives it; there stands what was left by",
    Fault.STALE_WRITE: "writes over the newer value of",
    Fault.DOUBLE_WRITE: "writes again what was written by",
    Fault.NARROW_SCOPE: "is ordered only by a scope that the ranks don't share, against",
    Fault.MISSING_FENCE: "reads through the async proxy, without a proxy fence, what was written by",
    Fault.ASYNC_WRITE: "reads, before the kernel ends, what was written through the async proxy by",
    Fault.NEVER_WRITTEN: "is never written",
    Fault.OUT_OF_BOUNDS: "touches what is not there",
    Fault.OUT_OF_REACH: "touches, on another rank, what is not symmetric memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault: the task that met it, the place (a buffer's rows or a counter), and the other task if there is one."""

    fault: Fault
    place: str
    task: TaskId | None = None
    other: TaskId | None = None

    def __str__(self) -> str:
        subject = self.place if self.task is None else str(self.task)
        other = "" if self.other is None else f" {self.other}"
        place = "" if self.task is None else f" at {self.place}"
        return f"{self.fault}: {subject} {_MEANINGS[self.fault]}{other}{place}"

    @property
    def kind(self) -> tuple[str, ...]:
        """What it has in common with its like: one of each kind is reported."""
        families = (task.family if task is not None else "" for task in (self.task, self.other))
        return (self.fault, self.place.partition("[")[0], *families)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """Outcome of runs: findings, steps taken, and whether all interleavings were seen (exhaustive runs only)."""

    findings: tuple[Finding, ...]
    num_steps: int
    complete: bool = False

    @property
    def faults(self) -> frozenset[Fault]:
        """The kinds of faults found."""
        return frozenset(finding.fault for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"nothing wrong in {self.num_steps} steps"


def joined(reports: list[MachineReport]) -> MachineReport:
    """One report for several runs."""
    unique = {finding.kind: finding for report in reversed(reports) for finding in reversed(report.findings)}
    return MachineReport(
        findings=tuple(reversed(unique.values())),
        num_steps=sum(report.num_steps for report in reports),
        complete=all(report.complete for report in reports),
    )
