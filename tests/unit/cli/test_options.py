"""Options with values that they cannot take: wrong usage, said in a line or two, whatever the length of the value."""

from __future__ import annotations

import pytest

DIMS = ("--dims", "H=64,I=32,E=8,K=2")
NINES = "9" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", *DIMS, "--seed", "99999999999999999999999"),
        ("run", *DIMS, "--seed", 2**32),
        ("verify", *DIMS, "--seed", "-1"),
        ("graph", *DIMS, "--seed", NINES),
        ("run", *DIMS, "--tokens", 2**31),
        ("run", *DIMS, "--timeout", "1e999"),
        ("run", *DIMS, "--timeout", "nan"),
        ("verify", *DIMS, "--machine", NINES),
        ("compile", *DIMS, "--ranks", "\u0662"),
        ("compile", *DIMS, "--tokens", "1_0"),
        ("compile", "--dims", f"H={NINES},I=32,E=8,K=2"),
        ("compile", "--dims", "H=\u0663\u0662,I=32,E=8,K=2"),
        ("compile", "--dims", NINES),
        ("compile", *DIMS, "--schedule", f"lanes={NINES}"),
        ("compile", *DIMS, "--schedule", f"tile(h)=({NINES},1,1)"),
        ("compile", *DIMS, "--schedule", "tile(h)=(128,\u0662,64)"),
        ("graph", *DIMS, "--routing", NINES),
        ("graph", *DIMS, "--routing", "0,\u0662"),
        ("compile", *DIMS, "-o", ""),
        ("graph", *DIMS, "-o", ""),
        ("run", *DIMS, "--inputs", ""),
    ],
)
def test_values_that_cannot_be_are_wrong_usage(uniepc, example, monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    done = uniepc(arguments[0], example, *arguments[1:])
    assert done.exit_code == 2
    assert len(done.stderr) < 1000
    assert "UEP0501" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_empty_path_is_not_the_current_folder(uniepc):
    done = uniepc("show", "", "--stage", "ops")
    assert done.exit_code == 2
    assert "the path is empty" in done.stderr


def test_a_seed_may_be_as_large_as_32_bits(uniepc, example):
    assert uniepc("graph", example, *DIMS, "--tokens", 2, "--seed", 2**32 - 1).exit_code == 0
