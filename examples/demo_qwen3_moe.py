"""The tour: one program, compiled, inside a Qwen3-MoE model of transformers, and compared with the model's own code.

make demo                              # installs into .venv, and runs this
python examples/demo_qwen3_moe.py      # where everything is installed: on the GPU if there is one, else interpreted

Exit status: 0 if the logits agree and repeat, 1 if they don't, 2 if something is not installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

import uniep_compiler as uniep
from uniep_compiler.ir.index import Expr, Int, evaluate
from uniep_compiler.ir.index_text import print_expr
from uniep_compiler.ir.routing import Routing
from uniep_compiler.ir.schedule import Interleave, Segment, Slice
from uniep_compiler.ir.tasks import Family

if TYPE_CHECKING:
    from transformers import Qwen3MoeForCausalLM

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "examples" / "qwen3_moe.uniep"
DOCUMENT = ROOT / "README.md"
FOLDER = ROOT / "build" / "demo"

DIMS = {"H": 64, "I": 64, "E": 8, "K": 2}
# Tiles go through the pipeline in groups, by default of 8. The demo has about ten, so smaller groups show more of it.
SCHEDULE = {"group": 2}
NUM_LAYERS = 2
NUM_TOKENS = 64
TOLERANCE = 1e-5

Experts = Callable[[torch.nn.Module, Tensor, Tensor, Tensor], Tensor]
"""An experts implementation of transformers: module, hidden[T, H], experts[T, K], weights[T, K] -> out[T, H]."""


# -- the model ---------------------------------------------------------------------------------------------------------


def make_model(device: torch.device) -> Qwen3MoeForCausalLM:
    """A small Qwen3-MoE model in fp32 with its own ("eager") experts. The weights are random, and always the same."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=DIMS["H"],
        intermediate_size=DIMS["I"],
        moe_intermediate_size=DIMS["I"],
        num_experts=DIMS["E"],
        num_experts_per_tok=DIMS["K"],
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=DIMS["H"] ** -0.5,  # values keep their size, so that the experts matter in the logits
        attn_implementation="eager",
        experts_implementation="eager",
        dtype="float32",
    )
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(config).eval().to(device)


def document_ids(device: torch.device) -> Tensor:
    """i64[1, NUM_TOKENS]: the first bytes of the README, each a token."""
    return torch.tensor([list(DOCUMENT.read_bytes()[:NUM_TOKENS])], device=device)


def experts_of(layer: uniep.Layer, seen: list[Tensor]) -> Experts:
    """The layer as an experts implementation. `seen` collects the expert ids of every call."""

    def forward(module: torch.nn.Module, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        seen.append(experts)
        return layer(hidden, experts, weights, module.gate_up_proj, module.down_proj)

    return forward


def no_experts(module: torch.nn.Module, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """What is left of a model without experts, to see how much of the logits is theirs."""
    return torch.zeros_like(hidden)


def logits(model: Qwen3MoeForCausalLM, ids: Tensor, experts: Experts | None = None) -> Tensor:
    """f32[1, T, vocab]: the logits with these experts, by default the model's own."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    name = "eager"
    if experts is not None:
        name = "uniep_demo"
        ALL_EXPERTS_FUNCTIONS.register(name, experts)
    model.set_experts_implementation(name)
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How two runs of the compiled layers compare with the eager model, over all logits.

    `contribution` is the largest difference that leaving the experts out makes; `ids` are those of the first layer.
    """

    difference: float
    contribution: float
    same_bits: bool
    ids: Tensor

    @property
    def good(self) -> bool:
        """Whether the demo shows what it says."""
        return self.difference <= TOLERANCE and self.same_bits


def run(layer: uniep.Layer, console: Console) -> Outcome:
    """The model with its own experts, without any, and twice with the compiled ones."""
    seen: list[Tensor] = []
    experts = experts_of(layer, seen)
    with step(console, f"run a Qwen3-MoE model with its own experts: {NUM_LAYERS} layers, {NUM_TOKENS} tokens, fp32"):
        model, ids = make_model(layer.device), document_ids(layer.device)
        eager, without = logits(model, ids), logits(model, ids, no_experts)
    with step(console, "run it with the compiled experts, which builds their kernels"):
        first = logits(model, ids, experts)
    with step(console, "run it again"):
        second = logits(model, ids, experts)
        layer.check()
    return Outcome(
        difference=(first - eager).abs().max().item(),
        contribution=(without - eager).abs().max().item(),
        same_bits=torch.equal(first.view(torch.int32), second.view(torch.int32)),
        ids=seen[0].cpu(),
    )


# -- what was compiled -------------------------------------------------------------------------------------------------


def write_sources(layer: uniep.Layer, folder: Path) -> list[Path]:
    """The generated modules as files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{layer.graph.name}_{name}.py" for name in layer.source]
    for path, source in zip(paths, layer.source.values(), strict=True):
        path.write_text(source)
    return paths


def routing_of(layer: uniep.Layer, ids: Tensor) -> Routing:
    """The plan in plain Python, which gives the counts in a schedule their values. `ids`: i64[T, K]."""
    graph = layer.graph
    return Routing(
        ids=(tuple(map(tuple, ids.tolist())),),
        experts=graph.experts,
        topk=graph.topk,
        placement=layer.placement,
        tile_rows=graph.tile_rows,
        block=graph.block,
    )


def families_table(layer: uniep.Layer) -> Table:
    """Who computes what, and who waits for whom."""
    caption = "One rank sends nothing. Under a group, comm, relay and push tasks join these.\n"
    table = _table("Task families", caption, "family", "role", "a task for each", "waits until", "then posts")
    for family in layer.graph.families:
        table.add_row(
            *map(Text, (family.name, family.role, domain_text(family), waits_text(family), posts_text(family)))
        )
    return table


def domain_text(family: Family) -> str:
    """The ranges of the task's coordinates, but for those that have one value."""
    return "\n".join(f"{part.coord} < {_text(part.extent)}" for part in family.domain if part.extent != Int(1))


def waits_text(family: Family) -> str:
    return "\n".join(f"{wait.signal}[{_text(wait.index)}] >= {_text(wait.target)}" for wait in family.waits)


def posts_text(family: Family) -> str:
    return "\n".join(f"{post.signal}[{_text(post.index)}]" for post in family.posts)


def order_table(layer: uniep.Layer, routing: Routing) -> Table:
    """The linear order, segment by segment, and how many tasks each segment is under this routing."""
    counts = f"{routing.symbol('tokens', 0)} tokens in {routing.symbol('num_tiles', 0)} tiles of rows"
    caption = f"Last column: the model's first layer, {counts}.\n"
    table = _table("Linear order", caption, "launch", "step", "number of steps")
    table.add_column("tasks", justify="right")
    for launch in layer.schedule.launches:
        for segment in launch.segments:
            tasks, times, size = step_of(segment)
            here = size * evaluate(times, routing, 0, {})
            table.add_row(*map(Text, (launch.name, tasks, _text(times), str(here))))
    return table


def step_of(segment: Segment) -> tuple[str, Expr, int]:
    """The tasks that a segment repeats, how often it does, and their number."""
    match segment:
        case Slice(family=family, count=count):
            return f"1 {family}", count, 1
        case Interleave(steps=steps, members=members):
            tasks = " + ".join(f"{member.per_step} {member.family}" for member in members)
            return tasks, steps, sum(member.per_step for member in members)


def _table(title: str, caption: str, *columns: str) -> Table:
    return Table(
        *columns,
        title=title,
        caption=caption,
        title_style="bold",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
    )


def _text(expr: Expr) -> str:
    return print_expr(expr).replace("$", "")


# -- the tour ----------------------------------------------------------------------------------------------------------


@contextmanager
def step(console: Console, what: str) -> Iterator[None]:
    """Says what goes on, and then how long it took."""
    start = perf_counter()
    with console.status(what):
        yield
    console.print(f"[dim]{perf_counter() - start:5.1f} s[/]  {what}", highlight=False)


def import_transformers(console: Console) -> str:
    """Empty if transformers is here, in a version that lets others compute its experts; else what is missing."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is made from its config: there is nothing to fetch
    try:
        with step(console, "import transformers"):
            import transformers.integrations.moe  # noqa: F401
    except ImportError as error:
        return str(error).partition("\n")[0]
    return ""


def where(device: torch.device) -> str:
    """The machine that kernels run on, in words."""
    return torch.cuda.get_device_name() if device.type == "cuda" else "the CPU, in Triton's interpreter"


def tour(console: Console, target: str, folder: Path) -> Outcome:
    """Compile, run, and show what was compiled."""
    with step(console, f"compile {_short(PROGRAM)}"):
        layer = uniep.compile(uniep.parse_file(PROGRAM), dims=DIMS, target=target, dtype="f32", schedule=SCHEDULE)
    console.print(f"         target {layer.target.name}: kernels run on {where(layer.device)}", highlight=False)
    outcome = run(layer, console)
    console.print("", families_table(layer), order_table(layer, routing_of(layer, outcome.ids)), sep="\n")
    console.print("[bold]Generated source[/]")
    for path in write_sources(layer, folder):
        console.print(f"  {_short(path)} [dim]({len(path.read_text().splitlines())} lines)[/]", highlight=False)
    return outcome


def report(console: Console, outcome: Outcome) -> None:
    """What the run showed."""
    table = Table.grid(padding=(0, 2))
    small = outcome.difference <= TOLERANCE
    for what, value, verdict in (
        ("largest difference of the logits to the eager model's", f"{outcome.difference:.1e}", _verdict(small)),
        ("largest difference if the experts gave zeros", f"{outcome.contribution:.1e}", ""),
        ("bits of the second run", "equal" if outcome.same_bits else "differ", _verdict(outcome.same_bits)),
    ):
        table.add_row(f"  {what}", value, verdict)
    console.print("", "[bold]Result[/]", table, sep="\n")


def _verdict(good: bool) -> str:
    return "[green]ok[/]" if good else "[bold red]wrong[/]"


def _short(path: Path) -> str:
    """The path from here, if it lies below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def main() -> int:
    """Runs the tour, and gives its exit status."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    if missing := import_transformers(console):
        print(f"the demo needs transformers 5 ({missing}): pip install 'transformers>=5'", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("highest")  # no TF32 in the model that we compare with
    try:
        outcome = tour(console, "auto", FOLDER)
    except uniep.UniepError as error:
        print(error, file=sys.stderr)
        return 1
    report(console, outcome)
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
