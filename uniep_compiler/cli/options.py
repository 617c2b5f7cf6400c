"""The options that commands share, and how their texts are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from uniep_compiler.cli.failures import UsageError
from uniep_compiler.transports.virtual import MAX_RANKS


class RowDType(StrEnum):
    """Element types that rows can have."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"


_NUMBER = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS = 18
_MOST_SHOWN = 60


def shown(text: str) -> str:
    """What was given, to stand in a message: all of it, or how it begins."""
    return f"`{text}`" if len(text) <= _MOST_SHOWN else f"`{text[:_MOST_SHOWN]}...` ({len(text)} characters)"


def read_number(text: str) -> int | None:
    """The integer that a text is: a sign or none, digits 0 to 9, and no more of them than anything here needs."""
    return int(text) if _NUMBER.fullmatch(text) and len(text.lstrip("+-")) <= _MOST_DIGITS else None


def integer(least: int, most: int = 10**_MOST_DIGITS - 1) -> Callable[[str | int], int]:
    """The parser of an option that takes an integer from `least` to `most`. Wrong usage for anything else."""

    def read_integer(value: str | int) -> int:
        number = read_number(value) if isinstance(value, str) else value
        if number is None:
            raise typer.BadParameter(f"{shown(str(value))} is not an integer of at most {_MOST_DIGITS} digits")
        if not least <= number <= most:
            raise typer.BadParameter(f"{number} is not in the range from {least} to {most}")
        return number

    return read_integer


def read_path(text: str) -> Path:
    """The path of that name. Wrong usage where it is empty, which would stand for the current folder."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


read_seed = integer(0, 2**32 - 1)

File = Annotated[
    Path, typer.Argument(parser=read_path, help="The program, a .uniep file.", metavar="FILE", show_default=False)
]
Moe = Annotated[str | None, typer.Option("--moe", metavar="NAME", help="Which layer, if the file has several.")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dims", metavar="H=..,I=..", help="A number for every dim but that of tokens. May be repeated."),
]
AnyTarget = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME",
        help="sm_80, sm_90, sm_100, or cpu for Triton's interpreter; cuda is the GPU of this machine, "
        "and auto that or the interpreter.",
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        parser=integer(1, MAX_RANKS),
        metavar="INTEGER",
        help="Build for a virtual group of so many ranks on one device.",
    ),
]


def read_dtype(text: str) -> RowDType:
    """The element type of that name. Wrong usage otherwise, with what names of other libraries are called here."""
    if text in set(RowDType):
        return RowDType(text)
    from uniep_compiler.frontend.scope import other_spelling

    meant = other_spelling(text.lower().removeprefix("torch."))
    found = f"; did you mean `{meant}`?" if meant is not None and meant.is_float else ""
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(repr(str(dtype)) for dtype in RowDType)}{found}")


DTypeOption = Annotated[
    RowDType | None,
    typer.Option(
        "--dtype",
        metavar="|".join(RowDType),
        parser=read_dtype,
        help="Element type of rows and weights, in place of the program's.",
    ),
]
ScheduleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        metavar="KEY=VALUE",
        help="A key of a schedule block that goes over the program's, such as relay=copy or 'tile(h)=(128,256,64)'. "
        "May be repeated.",
    ),
]
WhenTokens = Annotated[
    int | None,
    typer.Option(
        "--tokens",
        parser=integer(0),
        metavar="INTEGER",
        help="The number of tokens that decides which schedule block applies.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]

_PAIR = re.compile(r"\s*(?P<key>[A-Za-z_]\w*(?:\(.*\))?)\s*=\s*(?P<value>.*?)\s*")
_TILE = re.compile(r"tile\(\s*(?P<value>.+?)\s*\)")


def read_dims(texts: Sequence[str]) -> dict[str, int]:
    """The dims of texts such as `H=2048,I=768`. UsageError for anything else."""
    dims: dict[str, int] = {}
    for key, value in _pairs(texts, "--dims", "H=2048,I=768"):
        number = read_number(value)
        if not key.isidentifier() or number is None:
            raise UsageError(
                f"--dims: {shown(f'{key}={value}')} is not a name and an integer", "write --dims H=2048,I=768"
            )
        if key in dims:
            raise UsageError(f"--dims: {shown(key)} is given twice")
        dims[key] = number
    return dims


def read_schedule(texts: Sequence[str]) -> dict[str, object]:
    """Schedule keys of texts such as `relay=copy` and `tile(h)=(128,256,64)`. The compiler checks keys and values."""
    values: dict[str, object] = {}
    tiles: dict[str, tuple[int, ...]] = {}
    for key, value in _pairs(texts, "--schedule", "relay=copy"):
        if tile := _TILE.fullmatch(key):
            tiles[tile["value"]] = _shape(key, value)
        else:
            number = read_number(value)
            if number is None and _NUMBER.fullmatch(value):
                raise UsageError(f"--schedule: {shown(f'{key}={value}')} is too large a number")
            values[key] = value if number is None else number
    return {**values, "tiles": tiles} if tiles else values


def _pairs(texts: Sequence[str], option: str, example: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        for part in _split(text):
            pair = _PAIR.fullmatch(part)
            if pair is None or not pair["value"]:
                raise UsageError(f"{option}: {shown(part.strip())} is not NAME=VALUE", f"write {option} {example}")
            yield pair["key"], pair["value"]


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside of parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _shape(key: str, value: str) -> tuple[int, ...]:
    parts = value.removeprefix("(").removesuffix(")").split(",")
    numbers = tuple(number for part in parts if (number := read_number(part.strip())) is not None)
    if len(parts) != 3 or len(numbers) != 3:
        message = f"--schedule: {shown(f'{key}={value}')} is not a tile of rows, columns and depth"
        raise UsageError(message, "write '--schedule tile(h)=(128,256,64)', quoted")
    return numbers
