"""`uniepc ops`: the op table."""

from __future__ import annotations

from uniep_compiler.cli.failures import guarded
from uniep_compiler.cli.options import AsJson
from uniep_compiler.cli.output import print_json, print_table


@guarded
def ops_command(as_json: AsJson = False) -> None:
    """Print the ops of the language, and the sugar over them."""
    from uniep_compiler.frontend.sugar import SUGAR
    from uniep_compiler.ir.op_table import OPS

    ops = [
        {"name": op.name, "signature": op.signature, "doc": op.doc, "call": op.surface, "results": op.num_results}
        for op in OPS.values()
    ]
    sugar = [{"name": one.name, "signature": one.signature, "meaning": one.meaning} for one in SUGAR.values()]
    if as_json:
        print_json({"ok": True, "ops": ops, "sugar": sugar})
        return
    print_table(
        "ops",
        ("name", "written as", "what it gives"),
        ((op["name"], op["signature"], op["doc"]) for op in ops),
    )
    print_table(
        "sugar",
        ("name", "written as", "stands for"),
        ((one["name"], one["signature"], one["meaning"]) for one in sugar),
    )
