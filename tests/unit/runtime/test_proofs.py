"""Remembered proofs: when a schedule is proved again, and when it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import uniep_compiler as uniep
from tests.schedules import build
from uniep_compiler import compiler
from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.index import Int
from uniep_compiler.runtime import proofs
from uniep_compiler.runtime.cache import CACHE_VARIABLE, Kind, stored
from uniep_compiler.runtime.proofs import check_once, checker_digest

PROGRAM = """
uniep 1
moe one(x : f32[T, H], experts : i32[T, K], w : f32[E, N, H]) -> f32[T, N] {
    return combine(group_gemm(dispatch(x, experts), w))
}
"""


@pytest.fixture
def proved(monkeypatch, tmp_path):
    """The schedules that were proved, and not just looked up."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    found, check = [], compiler.check
    monkeypatch.setattr(compiler, "check", lambda schedule, source: (check(schedule, source), found.append(schedule)))
    forget(monkeypatch)
    return found


def forget(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(proofs, "_proved", set())


def stored_proofs():
    return [one for one in stored() if one.kind is Kind.PROOFS]


def unsafe():
    """A schedule with a wait for one post more than there is."""
    schedule = build(ranks=1)
    *rest, last = schedule.graph.families
    (wait,) = last.waits
    broken = replace(last, waits=(replace(wait, target=Int(1_000_000)),))
    return replace(schedule, graph=replace(schedule.graph, families=(*rest, broken)))


def test_a_process_proves_a_schedule_once(proved, monkeypatch):
    for _ in range(3):
        check_once(build(ranks=1), None)
    check_once(build(ranks=2), None)
    assert len(proved) == 2


def test_another_process_finds_the_proof(proved, monkeypatch):
    check_once(build(ranks=1), None)
    forget(monkeypatch)
    check_once(build(ranks=1), None)
    assert len(proved) == 1
    (proof,) = stored_proofs()
    assert proof.name == "qwen3_moe"


def test_what_is_not_safe_is_never_remembered(proved):
    for _ in range(2):
        with pytest.raises(InternalError, match="cannot prove"):
            check_once(unsafe(), None)
    assert stored_proofs() == []


def test_another_checker_proves_again(proved, monkeypatch):
    check_once(build(ranks=1), None)
    forget(monkeypatch)
    monkeypatch.setattr(proofs, "checker_digest", lambda: "0" * 64)
    check_once(build(ranks=1), None)
    assert len(proved) == 2


def test_a_proof_that_was_tampered_with_is_none(proved, monkeypatch, tmp_path):
    check_once(build(ranks=1), None)
    (path,) = (tmp_path / "cache" / "proofs").iterdir()
    path.write_text(path.read_text().replace("$num_tiles", "1 + $num_tiles", 1))
    forget(monkeypatch)
    check_once(build(ranks=1), None)
    assert len(proved) == 2


def test_without_a_cache_schedules_are_proved_in_each_process(proved, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    for _ in range(2):
        forget(monkeypatch)
        check_once(build(ranks=1), None)
    assert len(proved) == 2


def test_a_checker_without_source_has_no_digest_and_proves_each_time(proved, monkeypatch, tmp_path):
    monkeypatch.setattr(uniep, "__file__", str(tmp_path / "__init__.pyc"))
    checker_digest.cache_clear()
    try:
        assert checker_digest() is None
        for _ in range(2):
            check_once(build(ranks=1), None)
    finally:
        checker_digest.cache_clear()
    assert len(proved) == 2


def test_the_digest_covers_the_checker_and_the_ir(monkeypatch, tmp_path):
    (tmp_path / "ir" / "verify").mkdir(parents=True)
    (tmp_path / "ir" / "tasks.py").write_text("")
    (rules := tmp_path / "ir" / "verify" / "order.py").write_text("")
    monkeypatch.setattr(uniep, "__file__", str(tmp_path / "__init__.py"))
    digests = []
    for text in ("", "x", "y", ""):
        rules.write_text(text)
        checker_digest.cache_clear()
        digests.append(checker_digest())
    checker_digest.cache_clear()
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]


def test_compile_remembers(proved):
    for _ in range(2):
        uniep.compile(uniep.parse(PROGRAM), dims={"H": 16, "N": 16, "E": 2, "K": 1}, target="sm_90")
    assert len(proved) == 1
