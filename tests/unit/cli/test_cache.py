"""`uniepc cache`: what it shows, and what it removes."""

from __future__ import annotations

import json

import pytest

from uniep_compiler.runtime.cache import CACHE_VARIABLE, Entry, Kind, keep


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def filled(root):
    for text in ("x = 1\n", "x = 20\n"):
        keep(Entry(kind=Kind.MODULES, name="moe_forward", text=text))
    keep(Entry(kind=Kind.PROOFS, name="moe", text="proved"))
    return root


def test_an_empty_cache_is_no_error_and_is_not_made(uniepc, root):
    done = uniepc("cache")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"nothing in {root}; UNIEP_CACHE_DIR names another place\n"
    assert not root.exists()


def test_entries_are_shown_by_name(uniepc, filled):
    lines = uniepc("cache").stdout.splitlines()
    assert lines[0] == "3 files, 0 KiB"
    assert [line.split()[:3] for line in lines if "moe" in line] == [
        ["moe", "proofs", "1"],
        ["moe_forward", "modules", "2"],
    ]
    assert str(filled) in lines[-1]


def test_json_says_how_much_where(uniepc, filled):
    shown = json.loads(uniepc("cache", "--json").stdout)
    assert (shown["ok"], shown["folder"], shown["count"], shown["bytes"]) == (True, str(filled), 3, 19)
    assert [(row["name"], row["kind"], row["count"], row["bytes"]) for row in shown["entries"]] == [
        ("moe", "proofs", 1, 6),
        ("moe_forward", "modules", 2, 13),
    ]


def test_clear_empties_it(uniepc, filled):
    done = uniepc("cache", "clear")
    assert (done.exit_code, done.stdout) == (0, f"removed 3 files, 0 KiB, from {filled}\n")
    assert json.loads(uniepc("cache", "--json").stdout)["entries"] == []


@pytest.mark.parametrize("command", [("cache", "clear", "--json"), ("cache", "--json", "clear")])
def test_clear_says_in_json_what_it_removed(uniepc, filled, command):
    assert json.loads(uniepc(*command).stdout) == {"ok": True, "folder": str(filled), "count": 3, "bytes": 19}


def test_clear_spares_what_is_young(uniepc, filled):
    assert uniepc("cache", "clear", "--older-than", "0.5").stdout.startswith("removed 0 files")
    assert json.loads(uniepc("cache", "--json").stdout)["count"] == 3


@pytest.mark.parametrize("command", [("cache",), ("cache", "clear")])
def test_a_folder_that_is_not_safe_is_wrong_usage_and_stays(uniepc, filled, command):
    filled.chmod(0o777)
    done = uniepc(*command, "--json")
    assert done.exit_code == 2
    assert f"others can write to {filled}\n  = help: `chmod go-w {filled}`" in done.stderr
    assert not json.loads(done.stdout)["ok"]
    assert len(list((filled / "modules").iterdir())) == 2


def test_days_are_not_negative(uniepc, filled):
    assert uniepc("cache", "clear", "--older-than", "-1").exit_code == 2
    assert len(list((filled / "modules").iterdir())) == 2
