"""docs/language.md is true and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.snippets import codes, snippets
from uniep_compiler.diagnostics import explain
from uniep_compiler.frontend.expressions import FUNCTIONS
from uniep_compiler.frontend.read import MAX_SOURCE_BYTES
from uniep_compiler.frontend.schedule_block import setting_values
from uniep_compiler.frontend.sugar import SUGAR
from uniep_compiler.ir.types import DType
from uniep_compiler.options import ScheduleOptions
from uniep_compiler.passes.settings import Settings
from uniep_compiler.passes.target import TARGETS

PAGE = Path(__file__).parents[3] / "docs" / "language.md"
TEXT = PAGE.read_text("utf-8")
PACKAGE = PAGE.parents[1] / "uniep_compiler"


@pytest.mark.parametrize("snippet", snippets(PAGE), ids=str)
def test_snippets_do_what_the_page_says(snippet):
    assert set(codes(snippet)) == ({snippet.code} if snippet.code else set())


def test_the_page_has_snippets_that_compile_and_that_do_not():
    assert {snippet.code is None for snippet in snippets(PAGE)} == {True, False}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_op_is_there(name):
    assert re.search(rf"`{name}[`(]", TEXT)


@pytest.mark.parametrize("sugar", SUGAR.values(), ids=lambda sugar: sugar.name)
def test_sugar_is_called_as_it_says(sugar):
    assert f"| `{sugar.signature}` |" in TEXT


def schedule_rows():
    """The table of schedule keys: default and values of each."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", TEXT.partition("## Schedules")[2], re.MULTILINE)
    return {key: (default, values) for key, default, values in rows}


def test_every_schedule_key_and_word_is_there():
    for key, words in setting_values().items():
        assert [word for word in words or () if f"`{word}`" not in schedule_rows()[key][1]] == []


@pytest.mark.parametrize("key", setting_values())
def test_defaults_of_schedule_keys_are_the_real_ones(key):
    default = getattr(ScheduleOptions(), key)
    if default is None:
        sm_90 = next(target for target in TARGETS if target.name == "sm_90")
        default = getattr(Settings(dims={}, target=sm_90, options=ScheduleOptions()), key, None)
    if default is not None:  # else it depends on the program or the machine
        assert schedule_rows()[key][0].startswith(f"`{default}`" if isinstance(default, str) else str(default))


def test_what_is_without_effect_is_read_by_nothing():
    readers = [path for path in PACKAGE.rglob("*.py") if re.search(r"\.save\b", path.read_text("utf-8"))]
    assert readers == []
    assert "Without effect yet" in schedule_rows()["save"][1]


def test_every_dtype_is_there():
    assert [dtype for dtype in DType if f"`{dtype}`" not in TEXT] == []


def test_limits_are_the_real_ones():
    assert f"{MAX_SOURCE_BYTES // 1024} KiB" in TEXT


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (PAGE.parent / target).exists()
        if "/errors/" in target:
            assert explain(Path(target).stem)
