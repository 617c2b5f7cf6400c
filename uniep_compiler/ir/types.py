"""Types of OpGraph values: dtypes, affine dims, tensors, routes and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class DType(StrEnum):
    """Element types. The value is the spelling in programs and in every printed IR."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    I32 = "i32"
    I64 = "i64"

    @property
    def is_float(self) -> bool:
        """Whether values of this type are floating point numbers."""
        return self in (DType.BF16, DType.F16, DType.F32)

    @property
    def num_bytes(self) -> int:
        """Size of one element in bytes."""
        return {DType.BF16: 2, DType.F16: 2, DType.F32: 4, DType.I32: 4, DType.I64: 8}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """An affine dim such as `2*I` or `H + 1`: a constant plus integer multiples of names.

    `terms` holds (name, coefficient) pairs sorted by name, without zero coefficients, so that equal dims compare equal.
    """

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(name: str) -> Dim:
        """The dim that is just `name`."""
        return Dim(terms=((name, 1),))

    @staticmethod
    def make(constant: int, coefficients: Mapping[str, int]) -> Dim:
        """The dim with these coefficients, in canonical form."""
        terms = tuple(sorted((name, factor) for name, factor in coefficients.items() if factor))
        return Dim(constant=constant, terms=terms)

    @property
    def names(self) -> tuple[str, ...]:
        """The names it depends on, sorted."""
        return tuple(name for name, _ in self.terms)

    def plus(self, other: Dim) -> Dim:
        """The sum of two dims."""
        coefficients = dict(self.terms)
        for name, factor in other.terms:
            coefficients[name] = coefficients.get(name, 0) + factor
        return Dim.make(self.constant + other.constant, coefficients)

    def times(self, factor: int) -> Dim:
        """This dim multiplied by an integer."""
        return Dim.make(self.constant * factor, {name: f * factor for name, f in self.terms})

    def bind(self, values: Mapping[str, int]) -> Dim:
        """This dim with the names in `values` replaced by their values."""
        result = Dim(constant=self.constant)
        for name, factor in self.terms:
            result = result.plus(Dim(constant=values[name]) if name in values else Dim.of(name)) if factor == 1 else (
                result.plus((Dim(constant=values[name]) if name in values else Dim.of(name)).times(factor))
            )
        return result

    def value(self, values: Mapping[str, int]) -> int:
        """The number this dim stands for; KeyError if a name is unbound."""
        return self.constant + sum(factor * values[name] for name, factor in self.terms)

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """A dense tensor `D[d, ...]`."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesType:
    """The routes of `tokens` tokens, `topk` each, to `experts` experts."""

    tokens: Dim
    topk: Dim
    experts: Dim

    def __str__(self) -> str:
        return f"routes[{self.tokens}, {self.topk}, {self.experts}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsType:
    """`D[rows(r), d, ...]`: one row per valid route of the routes value named `routes`, in plan order.

    `shape` holds the dims after the row dim; it is empty for one number per row.
    """

    dtype: DType
    routes: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join([f'rows({self.routes})', *map(str, self.shape)])}]"


Type = TensorType | RoutesType | RowsType
