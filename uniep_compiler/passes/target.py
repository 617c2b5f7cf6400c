"""Targets: what the compiler knows of the machines it compiles for. No torch, no triton."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An architecture. `name` is `cpu` (Triton's interpreter) or `sm_NN`.

    `has_tma`: loads through the tensor memory accelerator. `workers`: CTAs to launch where the device is not known.
    """

    name: str
    capability: int
    has_tma: bool
    workers: int

    @property
    def interpreted(self) -> bool:
        """Whether kernels run in Triton's interpreter."""
        return self.capability == 0


TARGETS: tuple[Target, ...] = (
    Target(name="cpu", capability=0, has_tma=False, workers=1),
    Target(name="sm_80", capability=80, has_tma=False, workers=108),
    Target(name="sm_90", capability=90, has_tma=True, workers=132),
    Target(name="sm_100", capability=100, has_tma=True, workers=148),
)


def find_target(name: str) -> Target | None:
    """The target of that name, or None."""
    return next((target for target in TARGETS if target.name == name), None)
