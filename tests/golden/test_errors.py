"""Every error that a user can cause has a golden. `cases/` holds those of a program's text; here are the others.

Each function below makes its mistake, and `errors/CODE.err` holds what the user sees. `pytest --update-golden` rewrites
the files that differ and then fails.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import SWIGLU, Shape, compile_layer, make_inputs
from tests.numerics.test_hang import broken, loses_its_posts
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.read import MAX_SOURCE_BYTES
from uniep_compiler.ir.ops_text import print_ops, read_ops
from uniep_compiler.ir.schedule_text import read_schedule
from uniep_compiler.runtime import calls, targets
from uniep_compiler.runtime.workspace import Records, _empty_workspace

FOLDER = Path(__file__).parent / "errors"
PAGES = Path(uniep.__file__).parent / "errors"

SHAPE = Shape(tokens=5, experts=4, topk=2)
DIMS = {"H": 256, "I": 256, "E": 8, "K": 2}

BUGS = {"UEP0501", *(f"UEP{code:04}" for code in (*range(310, 326), 327, 328, 329))}
"""Bugs of the compiler, and schedules that it never makes: tests/unit/ir/verify has each of these codes."""


def compile_program(text=SWIGLU, target="sm_90", dims=DIMS, **options):
    return uniep.compile(uniep.parse(text, "moe.uniep"), dims=dims, target=target, **options)


def with_schedule(text):
    return f"{SWIGLU}\nschedule layer for sm_90 when T <= 64 {{\n    {text}\n}}\n"


def small_call(**changes):
    layer, inputs = compile_layer(SHAPE, "cpu"), make_inputs(SHAPE, "cpu")
    return layer(*inputs.but(**changes).args)


def uep0105(monkeypatch):
    uniep.parse("#" * (MAX_SOURCE_BYTES + 1), "moe.uniep")


def uep0111(monkeypatch):
    read_ops(print_ops(lower(uniep.parse(SWIGLU))).replace("return", "retrun", 1))


def uep0112(monkeypatch):
    read_schedule(str(compile_layer(SHAPE, "cpu").schedule).replace("ranks = 1", "ranks = one", 1))


def uep0217(monkeypatch):
    compile_program(dims={"H": 256, "J": 256, "E": 8, "K": 2})


def uep0218(monkeypatch):
    compile_program(SWIGLU.replace("-> bf16[T, H] {", "-> bf16[T, H] where H % 16 == 0 {"), dims={**DIMS, "H": 100})


def uep0220(monkeypatch):
    compile_program(dims={**DIMS, "K": 9})


def uep0222(monkeypatch):
    compile_program(SWIGLU + SWIGLU.replace("uniep 1", "").replace("moe layer", "moe another"))


def uep0307(monkeypatch):
    compile_program(SWIGLU, schedule={"relay": "off", "send": "all"})


def uep0308(monkeypatch):
    compile_program(with_schedule("tile(h) = (128, 256, 128)").replace(" when T <= 64", ""))


def uep0309(monkeypatch):
    compile_program(with_schedule("tile(h) = (128, 128, 32)"))


def uep0326(monkeypatch):
    compile_program(with_schedule("tile(h) = (128, 128, 64)").replace(" when T <= 64", ""), dtype="f32")


def uep0401(monkeypatch):
    compile_program(SWIGLU.replace("dispatch(x, r)", "dispatch(relu(x), r)").replace("xs = ", "xs : bf16 = "))


def uep0402(monkeypatch):
    inputs = make_inputs(SHAPE, "cpu")
    x, ids, weights = (value[:1].expand(2**30, -1) for value in (inputs.x, inputs.ids, inputs.weights))
    small_call(x=x, ids=ids, weights=weights)


def uep0601(monkeypatch):
    small_call(w2=torch.zeros(4, 16, 17))


def uep0602(monkeypatch):
    layer = broken(compile_layer(SHAPE, "cpu"), "gemm_a", loses_its_posts)
    layer(*make_inputs(SHAPE, "cpu").args)


def uep0603(monkeypatch):
    small_call(ids=torch.full((5, 2), 4, dtype=torch.int32))


def uep0604(monkeypatch):
    monkeypatch.setattr(targets.torch.cuda, "is_available", lambda: False)
    compile_program(target="cuda")


def uep0605(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    uniep.integrations.transformers.register()


def uep0606(monkeypatch):
    x = make_inputs(SHAPE, "cpu").x.requires_grad_()
    (grad,) = torch.autograd.grad(small_call(x=x).sum(), x, create_graph=True)
    grad.sum().backward()


def uep0607(monkeypatch):
    device = torch.device("cpu")
    workspace = _empty_workspace(device, Records(device), captured=True)
    monkeypatch.setattr(calls, "workspace_of", lambda device: workspace)
    small_call()


def uep0608(monkeypatch):
    compile_layer(SHAPE, "cpu").register("taken")
    compile_layer(SHAPE, "cpu", dtype="bf16").register("taken")


CAUSES = {cause.__name__.upper(): cause for name, cause in list(globals().items()) if re.fullmatch(r"uep\d{4}", name)}


def message_of(cause, monkeypatch):
    """What the user sees: the error, or else the warning."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            cause(monkeypatch)
        except UniepError as error:
            return f"{error}\n"
    return "".join(f"{warning.message}\n" for warning in warned)


@pytest.mark.parametrize("code", CAUSES)
def test_the_mistake_gives_what_its_golden_file_holds(code, monkeypatch, request):
    text, golden = message_of(CAUSES[code], monkeypatch), FOLDER / f"{code}.err"
    assert f"[{code}]" in text
    if request.config.getoption("--update-golden") and (not golden.exists() or golden.read_text("utf-8") != text):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
        pytest.fail(f"rewrote {golden.name}: look at the difference, and run again")
    assert golden.exists(), f"{golden.name} is missing; --update-golden writes it"
    assert golden.read_text("utf-8") == text


def test_every_code_has_a_golden():
    goldens = [*FOLDER.glob("*.err"), *(Path(__file__).parent / "cases").glob("*.err")]
    text = "\n".join(path.read_text("utf-8") for path in goldens)
    shown = set(re.findall(r"^(?:error|warning)\[(\w+)\]", text, re.M))
    assert {path.stem for path in PAGES.glob("*.md")} - BUGS == shown


def test_no_golden_file_is_unused():
    assert {path.stem for path in FOLDER.iterdir()} == set(CAUSES)
