"""`uniepc ops`: the op table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from uniep_compiler.cli.failures import guarded
from uniep_compiler.cli.options import AsJson
from uniep_compiler.cli.output import print_json, print_table

WIDTH = 100
"""Columns of the tables where no terminal says how many there are: they hold sentences, which are wrapped."""


@guarded
def ops_command(as_json: AsJson = False) -> None:
    """Print the ops of the language, the sugar over them, and the ops that only backward passes have."""
    from uniep_compiler.frontend.expressions import WRITTEN
    from uniep_compiler.frontend.sugar import SUGAR
    from uniep_compiler.ir.op_table import OPS

    ops = [
        {
            "name": op.name,
            "signature": op.signature,
            "doc": op.doc,
            "call": op.surface,
            "written": op.name in WRITTEN,
            "results": op.num_results,
        }
        for op in OPS.values()
    ]
    sugar = [{"name": one.name, "signature": one.signature, "meaning": one.meaning} for one in SUGAR.values()]
    if as_json:
        print_json({"ok": True, "ops": ops, "sugar": sugar})
        return
    _print_ops("ops", "written as", [op for op in ops if op["written"]])
    print_table(
        "sugar",
        ("name", "written as", "stands for"),
        ((one["name"], one["signature"], one["meaning"]) for one in sugar),
        width=WIDTH,
    )
    _print_ops(
        "in backward passes only: programs cannot write these", "signature", [op for op in ops if not op["written"]]
    )


def _print_ops(title: str, signatures: str, ops: Sequence[Mapping[str, object]]) -> None:
    rows = ((op["name"], op["signature"], op["doc"]) for op in ops)
    print_table(title, ("name", signatures, "what it gives"), rows, width=WIDTH)
