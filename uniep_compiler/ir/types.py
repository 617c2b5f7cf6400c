"""Types of OpGraph values: dtypes, affine dims, tensors, routes and rows."""

from __future__ import annotations

import re
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


LARGEST_F32 = float.fromhex("0x1.fffffep127")
"""The largest number that f32 has."""

_TERM = re.compile(r"(?P<sign>[+-]?)(?:(?P<number>[0-9]+)(?:\*(?P<scaled>[A-Za-z_]\w*))?|(?P<name>[A-Za-z_]\w*))")


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

    @staticmethod
    def parse(text: str) -> Dim:
        """Reads what `str` writes; ValueError for anything else."""
        packed = re.sub(r" ?([+-]) ?", r"\1", text)
        result, end = Dim(), 0
        while end < len(packed) or end == 0:
            term = _TERM.match(packed, end)
            if term is None or (end > 0 and not term["sign"]):
                raise ValueError(f"not a dim: {text}")
            name = term["scaled"] or term["name"]
            factor = int(term["number"] or 1) * (-1 if term["sign"] == "-" else 1)
            result = result.plus(Dim.of(name).times(factor) if name else Dim(constant=factor))
            end = term.end()
        return result

    @property
    def names(self) -> tuple[str, ...]:
        """The names it depends on, sorted."""
        return tuple(name for name, _ in self.terms)

    @property
    def name(self) -> str | None:
        """Its name, where it is just a name."""
        return self.names[0] if self.names and self == Dim.of(self.names[0]) else None

    def plus(self, other: Dim) -> Dim:
        """The sum of two dims."""
        coefficients = dict(self.terms)
        for name, factor in other.terms:
            coefficients[name] = coefficients.get(name, 0) + factor
        return Dim.make(self.constant + other.constant, coefficients)

    def times(self, factor: int) -> Dim:
        """This dim multiplied by an integer."""
        return Dim.make(self.constant * factor, {name: f * factor for name, f in self.terms})

    def half(self) -> Dim | None:
        """Half of this dim, or None where that isn't a dim whatever its names stand for."""
        if any(factor % 2 for factor in (self.constant, *dict(self.terms).values())):
            return None
        return Dim.make(self.constant // 2, {name: factor // 2 for name, factor in self.terms})

    def bind(self, values: Mapping[str, int]) -> Dim:
        """This dim with the names in `values` replaced by their values."""
        bound = sum(factor * values[name] for name, factor in self.terms if name in values)
        free = {name: factor for name, factor in self.terms if name not in values}
        return Dim.make(self.constant + bound, free)

    def value(self, values: Mapping[str, int]) -> int:
        """The number this dim stands for; KeyError if a name is unbound."""
        return self.constant + sum(factor * values[name] for name, factor in self.terms)

    def __str__(self) -> str:
        parts = [_scaled(name, factor) for name, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


def _scaled(name: str, factor: int) -> str:
    return {1: name, -1: f"-{name}"}.get(factor, f"{factor}*{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """A dense tensor `D[d, ...]`. A constant is an `f32[]`."""

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


def dims_of(type_: Type) -> tuple[Dim, ...]:
    """The dims that a type names, the row dim aside."""
    match type_:
        case RoutesType():
            return (type_.tokens, type_.topk, type_.experts)
        case TensorType() | RowsType():
            return type_.shape
