"""The shapes that are measured: expert layers of known models, with the tokens of one training step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

DENSE_SIZE = 8192
"""Rows, columns and depth of the dense product that everything is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One expert layer: T tokens, K of E experts each, rows of H elements, I between the two GEMMs."""

    name: str
    T: int
    E: int
    K: int
    H: int
    I: int  # noqa: E741  # the dim's name in the language

    @property
    def flops(self) -> int:
        """Operations of a forward pass: three GEMMs of H by I for each of T·K rows, a multiply and an add each."""
        return 6 * self.T * self.K * self.H * self.I

    @property
    def dims(self) -> dict[str, int]:
        """What a program of this layer is compiled for: every dim but the token dim."""
        return {"E": self.E, "K": self.K, "H": self.H, "I": self.I}

    @property
    def sizes(self) -> dict[str, int]:
        """All five dims, by name."""
        return {name: size for name, size in asdict(self).items() if name != "name"}

    def smoke(self) -> Shape:
        """A tiny layer of the same name, which a CPU runs in seconds: it tests the benchmark and measures nothing."""
        return replace(self, T=48, E=min(self.E, 8), K=min(self.K, 2), H=64, I=32)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="qwen3-30b", T=32768, E=128, K=8, H=2048, I=768),
        Shape(name="qwen3-30b-8k", T=8192, E=128, K=8, H=2048, I=768),
        Shape(name="sonic-30b", T=32768, E=64, K=4, H=4096, I=1024),
        Shape(name="mixtral", T=8192, E=8, K=2, H=4096, I=14336),
        Shape(name="deepseek-v3", T=8192, E=32, K=8, H=7168, I=2048),  # the experts of one of 8 ranks
    )
}
