"""The commands that read no program: ops, explain, doctor; and the application itself."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from uniep_compiler.diagnostics import CODES
from uniep_compiler.frontend.sugar import SUGAR
from uniep_compiler.ir.op_table import OPS
from uniep_compiler.version import VERSION


def test_ops_prints_the_whole_table(uniepc):
    done = uniepc("ops")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    for entry in (*OPS.values(), *SUGAR.values()):
        (line,) = [line for line in lines if line.split()[:1] == [entry.name]]
        assert entry.signature.split()[0] in line
    table = json.loads(uniepc("ops", "--json").stdout)
    assert [op["name"] for op in table["ops"]] == list(OPS)
    assert [one["name"] for one in table["sugar"]] == list(SUGAR)


def test_ops_that_programs_cannot_write_stand_apart(uniepc):
    """Whatever is listed as written is: by a call of it, or by an operator, `cast` or a number."""
    lines = uniepc("ops").stdout.splitlines()
    (title,) = [place for place, line in enumerate(lines) if line.startswith("in backward passes only")]
    for op in json.loads(uniepc("ops", "--json").stdout)["ops"]:
        (place,) = [place for place, line in enumerate(lines) if line.split()[:1] == [op["name"]]]
        assert (place < title) is op["written"]
        assert op["written"] is (op["call"] or op["name"] in {"add", "sub", "mul", "neg", "round", "const"})


def test_ops_fits_a_page_where_no_terminal_says_how_wide_it_is(uniepc):
    assert max(map(len, uniepc("ops").stdout.splitlines())) <= 100


def test_explain_prints_a_page(uniepc):
    done = uniepc("explain", "uep0112")
    assert done.exit_code == 0
    assert done.stdout.startswith("# UEP0112: ")
    page = json.loads(uniepc("explain", "UEP0112", "--json").stdout)
    assert page["page"] == done.stdout
    assert page["title"] == CODES["UEP0112"]


@pytest.mark.parametrize("code", CODES)
def test_explain_knows_every_code(uniepc, code):
    done = uniepc("explain", code)
    assert done.exit_code == 0
    assert code in done.stdout


def test_explain_lists_all_codes(uniepc):
    done = uniepc("explain")
    assert all(f"{code}   {title}" in done.stdout for code, title in CODES.items())
    assert json.loads(uniepc("explain", "--json").stdout)["codes"] == dict(CODES)


def test_explain_suggests_a_code(uniepc):
    done = uniepc("explain", "UEP2001")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no code UEP2001\n  = help: did you mean UEP" in done.stderr


def test_doctor_finds_the_interpreter_and_the_transports(uniepc):
    done = uniepc("doctor", "--json")
    assert done.exit_code == 0
    found = {(finding["kind"], finding["name"]): finding for finding in json.loads(done.stdout)["findings"]}
    for key in (("target", "cpu"), ("ahead of time", "sm_90"), ("transport", "local"), ("transport", "virtual")):
        assert found[key]["works"], found[key]
    assert "relative error" in found["target", "cpu"]["detail"]
    assert found["version", "torch"]["detail"] == metadata.version("torch")
    if not found["target", "cuda"]["works"]:
        assert found["target", "cuda"]["help"]


def test_doctor_says_what_is_missing(uniepc, monkeypatch):
    from uniep_compiler.cli import doctor

    def version(name):
        if name == "triton":
            raise metadata.PackageNotFoundError(name)
        return "2.4.0"

    def broken(*_):
        raise ModuleNotFoundError("No module named 'triton'")

    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setattr(doctor, "_run_layer", broken)
    monkeypatch.setattr(doctor, "_build_ahead", broken)
    done = uniepc("doctor")
    assert done.exit_code == 1
    assert "triton: pip install triton" in done.stdout
    assert "numpy: pip install 'numpy<2.4'" in done.stdout
    assert "No module named 'triton'" in done.stdout


def test_the_application_speaks_of_itself(uniepc):
    assert uniepc("--version").stdout == f"uniepc {VERSION}\n"
    for arguments in (("--help",), ("-h",)):
        done = uniepc(*arguments)
        assert done.exit_code == 0
        for command in ("compile", "show", "verify", "run", "ops", "explain", "doctor"):
            assert f" {command} " in done.stdout
    wrong = uniepc("compil")
    assert wrong.exit_code == 2
    assert "compile" in wrong.stderr


@pytest.mark.parametrize("command", ["compile", "show", "verify", "run", "ops", "explain", "doctor"])
def test_every_command_has_help_and_json(uniepc, command):
    done = uniepc(command, "--help")
    assert done.exit_code == 0
    assert "--json" in done.stdout
