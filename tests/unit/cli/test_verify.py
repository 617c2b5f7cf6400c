"""`uniepc verify`: the proof, the machine, and what they say of a broken schedule."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

DIMS = ("--dims", "H=64,I=32,E=8,K=2")


@pytest.fixture
def without_waits(monkeypatch):
    """A compiler that forgets every wait of every task."""
    from uniep_compiler import compiler

    right = compiler.final_schedule

    def forget(passed):
        schedule = right(passed)
        families = tuple(replace(family, waits=()) for family in schedule.graph.families)
        return replace(schedule, graph=replace(schedule.graph, families=families))

    monkeypatch.setattr(compiler, "final_schedule", forget)


@pytest.mark.parametrize("ranks", [(), ("--ranks", 2)])
def test_a_right_layer(uniepc, example, ranks):
    done = uniepc("verify", example, *DIMS, *ranks)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "proven: no deadlock and no race" in done.stdout
    assert "--machine N" in done.stdout


def test_the_machine_runs_too(uniepc, example):
    result = json.loads(uniepc("verify", example, *DIMS, "--ranks", 2, "--machine", 3, "--json").stdout)
    assert result["ok"]
    assert result["proven"]
    assert result["machine"]["runs"] == 3
    assert result["machine"]["steps"] > 100
    assert result["machine"]["findings"] == []


def test_the_seed_picks_the_runs(uniepc, example):
    options = (*DIMS, "--ranks", 2, "--machine", 1, "--json")
    runs = [json.loads(uniepc("verify", example, *options, "--seed", seed).stdout)["machine"] for seed in (4, 4, 5, 6)]
    assert runs[0] == runs[1]
    assert len({run["steps"] for run in runs}) > 1


def test_a_broken_schedule_fails(uniepc, example, without_waits):
    done = uniepc("verify", example, *DIMS, "--ranks", 2, "--machine", 5)
    assert done.exit_code == 1
    assert "error[UEP03" in done.stderr
    assert "proven" not in done.stdout
    assert "machine: seed " in done.stdout
    result = json.loads(uniepc("verify", example, *DIMS, "--ranks", 2, "--machine", 5, "--json").stdout)
    assert not result["ok"]
    assert not result["proven"]
    assert result["diagnostics"]
    assert result["machine"]["findings"]


def test_a_wrong_program_is_not_verified(uniepc, example, tmp_path):
    (path := tmp_path / "wrong.uniep").write_text(example.read_text().replace("silu", "silo"))
    done = uniepc("verify", path, *DIMS)
    assert done.exit_code == 1
    assert "UEP0203" in done.stderr
