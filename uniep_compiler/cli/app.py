"""The `uniepc` application: its commands, in the order in which a person meets them.

Start-up is quick because commands import what they need when they run: rich for tables, torch and triton for kernels.
"""

from __future__ import annotations

from typing import Annotated

import typer

from uniep_compiler.cli.cache import cache_app
from uniep_compiler.cli.compile import compile_command
from uniep_compiler.cli.doctor import doctor_command
from uniep_compiler.cli.explain import explain_command
from uniep_compiler.cli.graph import graph_command
from uniep_compiler.cli.ops import ops_command
from uniep_compiler.cli.output import show_logged_warnings
from uniep_compiler.cli.run import run_command
from uniep_compiler.cli.show import show_command
from uniep_compiler.cli.verify import verify_command
from uniep_compiler.version import VERSION

app = typer.Typer(
    name="uniepc",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile_command)
app.command("show")(show_command)
app.command("verify")(verify_command)
app.command("run")(run_command)
app.command("graph")(graph_command)
app.command("ops")(ops_command)
app.command("explain")(explain_command)
app.command("doctor")(doctor_command)
app.add_typer(cache_app, name="cache")


def main() -> None:
    """Run `uniepc` on the arguments of this process. Exit status: 0, 1 (the program is wrong) or 2 (usage)."""
    app(prog_name="uniepc")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"uniepc {VERSION}")
        raise typer.Exit


@app.callback()
def _describe(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Compile Mixture-of-Experts layers to one persistent Triton kernel.

    Exit status: 0; 1 if the program is wrong; 2 if the command line is.
    """
    show_logged_warnings()
