"""Targets: what the compiler knows of the machines it compiles for. No torch, no triton."""

from __future__ import annotations

from dataclasses import dataclass

NUM_WARPS = 8
"""Warps of a CTA."""
NUM_STAGES = 3
"""Tiles of operands that are in flight: loads run ahead of matrix instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An architecture. `name` is `cpu` (Triton's interpreter) or `sm_NN`.

    `has_tma`: loads through the tensor memory accelerator. `workers`: CTAs to launch where the device is not known.
    `shared_bytes`: shared memory that a CTA can have.
    """

    name: str
    capability: int
    has_tma: bool
    workers: int
    shared_bytes: int = 0

    @property
    def interpreted(self) -> bool:
        """Whether kernels run in Triton's interpreter."""
        return self.capability == 0


TARGETS: tuple[Target, ...] = (
    Target(name="cpu", capability=0, has_tma=False, workers=1),
    Target(name="sm_80", capability=80, has_tma=False, workers=108, shared_bytes=163 * 1024),
    Target(name="sm_90", capability=90, has_tma=True, workers=132, shared_bytes=227 * 1024),
    Target(name="sm_100", capability=100, has_tma=True, workers=148, shared_bytes=227 * 1024),
)


def find_target(name: str) -> Target | None:
    """The target of that name, or None."""
    return next((target for target in TARGETS if target.name == name), None)
