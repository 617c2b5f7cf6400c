"""What a generated module says of itself before its first line of code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.modules import LAYER, finished, lowered
from uniep_compiler import compiler
from uniep_compiler.codegen.emit import emit
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.target import find_target


def header(name="<string>", **options):
    """The docstring and the listing of the layer's module, where its program's file is called `name`."""
    ops, settings = lowered(**options)
    settings = replace(settings, source=replace(settings.source, name=name))
    return emit(finished(**options), settings, ops).source.split("# Dims of the program")[0].split("\n")


@pytest.mark.parametrize("name", ["moe.uniep", "/some/where/moe.uniep", r"C:\some\moe.uniep"])
def test_a_programs_file_is_named_without_its_folder(name):
    assert "program: moe.uniep" in header(name)


def test_a_text_has_no_file():
    assert not [line for line in header() if line.startswith("program:")]


def test_a_file_of_any_name_stays_on_its_line():
    assert "program: a\N{REPLACEMENT CHARACTER}b.uniep" in header("a\nb.uniep")


def test_another_element_type_than_that_of_the_text_is_named():
    program = parse(LAYER.replace("f32", "bf16").replace("weights : bf16", "weights : f32"))

    def header_in(dtype):
        changed, ops = compiler.in_dtype(program, lower(program), dtype)
        options = {"dims": {"H": 32, "I": 16, "E": 4, "K": 2}, "target": find_target("sm_90"), "placement": (4,)}
        settings = compiler.make_settings(changed, **options, local=True)
        return compiler.build(ops, settings).sources["forward"].split("# Dims of the program")[0]

    assert "compiled with rows of f16, in place of what the program says" in header_in(DType.F16)
    assert "compiled with rows" not in header_in(DType.BF16)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": "sm_90"}, "launch: one worker per multiprocessor; 8 warps each, loads run ahead over 3 stages"),
        ({"target": "sm_90", "workers": 7}, "launch: 7 workers; 8 warps each, loads run ahead over 3 stages"),
        ({"target": "cpu"}, "launch: one worker"),
        ({"target": "cpu", "workers": 3}, "launch: 3 workers, one after the other"),
    ],
)
def test_what_a_kernel_is_launched_with(options, expected):
    assert expected in header(**options)


def test_the_listing_has_the_numbers_that_families_quote():
    lines = LAYER.split("\n")
    for line in header():
        if line.startswith("#  ") and "|" in line:
            number, text = line.removeprefix("#").split("|", 1)
            assert lines[int(number) - 1] == text.removeprefix(" ")
