"""The arithmetic that generated code brings along: the same names in both texts, and right values where interpreted."""

from __future__ import annotations

import ast

import numpy as np
import pytest
import torch

from uniep_compiler.codegen.loader import template_text
from uniep_compiler.runtime.modules import load_module

INTERPRETED = template_text("prelude/arith_interpreted.py.jinja")
COMPILED = template_text("prelude/arith_compiled.py.jinja")
FOR_THE_INTERPRETER_ONLY = {"plain", "block_of", "as_block", "as_int", "fold"}
FOR_THE_COMPILER_ONLY = {"add_two", "smaller_of_two", "larger_of_two"}

KERNEL = """
ROWS = constant(4)
COLS = constant(8)


@triton.jit
def kernel(x, by_row, by_col, largest, smallest, before, rounded, counted, count):
    row = tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    at = row[:, None] * COLS + col[None, :]
    values = tl.load(x + at)
    tl.store(by_row + row, sum_of(values, 1))
    tl.store(by_col + col, sum_of(values, 0) + zeros([COLS], tl.int32))
    tl.store(largest + row, max_of(values, 1))
    tl.store(smallest + row, min_of(values, 1))
    tl.store(before + at, prefix_sum(values, 1))
    tl.store(rounded + at, cdiv(values, 3))
    for step in range(as_int(count), as_int(cdiv(count, 2)) * 4, ROWS):
        tl.store(counted + step, step)
"""


def names(text):
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets}
    return found


def test_both_texts_define_the_same_names():
    assert names(INTERPRETED) - FOR_THE_INTERPRETER_ONLY == names(COMPILED) - FOR_THE_COMPILER_ONLY


def test_values():
    module = load_module(INTERPRETED + KERNEL, "arith", interpret=True)
    x = torch.arange(32, dtype=torch.int32).reshape(4, 8) * 7 % 13
    by_row, by_col, largest, smallest = (torch.zeros(size, dtype=torch.int32) for size in (4, 8, 4, 4))
    before, rounded, counted = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(16, dtype=torch.int32)
    module.kernel[(1,)](x, by_row, by_col, largest, smallest, before, rounded, counted, 3)
    assert by_row.tolist() == x.sum(1).tolist()
    assert by_col.tolist() == x.sum(0).tolist()
    assert largest.tolist() == x.amax(1).tolist()
    assert smallest.tolist() == x.amin(1).tolist()
    assert torch.equal(before, x.cumsum(1) - x)
    assert torch.equal(rounded, -(-x // 3))
    assert counted.nonzero().flatten().tolist() == [3, 7]


@pytest.mark.parametrize(("a", "b"), [(0, 3), (1, 3), (3, 3), (4, 3), (2**31 - 1, 2), (2**31 - 1, 128)])
def test_division_rounds_up_and_does_not_overflow(a, b):
    module = load_module(INTERPRETED, "arith", interpret=True)
    assert module.cdiv(a, b) == -(-a // b)
    kernel = "\n\n@triton.jit\ndef kernel(out, a, b):\n    tl.store(out, cdiv(a, b))\n"
    out = torch.zeros(1, dtype=torch.int32)
    load_module(INTERPRETED + kernel, "cdiv", interpret=True).kernel[(1,)](out, a, b)
    assert out.item() == -(-a // b)


@pytest.mark.parametrize("num_rows", [1, 2, 16])
def test_the_sum_of_a_row_has_the_same_bits_wherever_it_stands(num_rows):
    """Also in a block of another height, and one that is stored by columns."""
    module = load_module(INTERPRETED, "arith", interpret=True)
    row = np.random.default_rng(5).standard_normal(64).astype(np.float32)
    block = np.random.default_rng(6).standard_normal((num_rows, 64)).astype(np.float32)
    block[-1] = row
    alone = module.sum_of(module.as_block(row[None, :], module.tl.float32), 1).handle.data[0]
    for array in (block, np.asfortranarray(block)):
        assert module.sum_of(module.as_block(array, module.tl.float32), 1).handle.data[-1].tobytes() == alone.tobytes()


def test_a_sum_of_raw_bf16_bits_is_refused():
    module = load_module(INTERPRETED, "arith", interpret=True)
    with pytest.raises(TypeError, match="cast to fp32 first"):
        module.sum_of(module.as_block(np.zeros(4, dtype=np.uint16), module.tl.bfloat16), 0)
