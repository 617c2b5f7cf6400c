"""Plans for tests: routings as ids, the plan's module for them, and the tables that the plain Python plan expects."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from uniep_compiler.codegen.plan_view import plan_source, plan_view
from uniep_compiler.codegen.state_layout import ERROR_WORDS, STATE_WORDS
from uniep_compiler.ir.routing import Routing, balanced_placement
from uniep_compiler.options import Order, Send
from uniep_compiler.runtime.modules import load_module
from uniep_compiler.runtime.plan import PlanShape, allocate_plan, run_plan

UNTOUCHED = -77  # stands wherever a plan does not write


@dataclass(frozen=True, kw_only=True)
class PlanCase:
    """One routing: `ids[rank][token][k]`, and what is bound at compile time."""

    ids: list[list[list[int]]]
    experts: int
    topk: int
    placement: tuple[int, ...] = ()
    tile_rows: int = 4
    block: int = 8
    send: Send | None = None
    order: Order = Order.PRIORITY
    dtype: torch.dtype = field(default=torch.int64)

    @property
    def places(self):
        return self.placement or balanced_placement(self.experts, len(self.ids))

    @property
    def shape(self):
        return PlanShape(
            tokens=tuple(len(tokens) for tokens in self.ids),
            experts=self.experts,
            topk=self.topk,
            tile_rows=self.tile_rows,
            block=self.block,
        )

    @property
    def source(self):
        return self.source_for(interpret=True)

    def source_for(self, *, interpret):
        view = plan_view(
            ranks=len(self.ids),
            experts=self.experts,
            topk=self.topk,
            tile_rows=self.tile_rows,
            block=self.block,
            send=self.send,
            order=self.order,
            interpret=interpret,
        )
        return plan_source(view)

    @property
    def routing(self):
        """The same in plain Python, with ids that are no expert as -1."""
        ids = tuple(tuple(tuple(self._checked(e) for e in token) for token in tokens) for tokens in self.ids)
        return Routing(
            ids=ids,
            experts=self.experts,
            topk=self.topk,
            placement=self.places,
            tile_rows=self.tile_rows,
            block=self.block,
            send=self.send or Send.RANK,
            order=self.order,
        )

    def _checked(self, expert):
        return expert if 0 <= expert < self.experts else -1


def random_case(seed, *, ranks, experts, topk, most_tokens=20, spread=None, **options):
    """Ids drawn from `spread` (default: all experts and -1); some of several ranks have no tokens."""
    rng = random.Random(seed)
    spread = spread or range(-1, experts)
    tokens = [rng.choice((0, rng.randint(1, most_tokens), most_tokens)) for _ in range(ranks)]
    if not any(tokens):
        tokens[-1] = most_tokens
    ids = [[[rng.choice(spread) for _ in range(topk)] for _ in range(count)] for count in tokens]
    return PlanCase(ids=ids, experts=experts, topk=topk, **options)


def starts(counts):
    """Sums over earlier entries, and over all."""
    return torch.tensor([sum(counts[:i]) for i in range(len(counts) + 1)], dtype=torch.int32)


def run(case, *, num_parts=None, device="cpu"):
    """The plan of the case on a device, its error record, and the state."""
    module = load_module(case.source_for(interpret=device == "cpu"), "plan", interpret=device == "cpu")
    plan = allocate_plan(case.shape, torch.device(device))
    plan.storage.fill_(UNTOUCHED)
    flat = [token for tokens in case.ids for token in tokens]
    ids = torch.tensor(flat, dtype=case.dtype).reshape(-1, case.topk).to(device)
    state = torch.zeros(STATE_WORDS, dtype=torch.int64, device=device)
    error = torch.zeros(ERROR_WORDS, dtype=torch.int64, device=device)
    run_plan(
        module,
        plan,
        ids,
        state=state,
        error=error,
        token_start=starts([len(tokens) for tokens in case.ids]).to(device),
        expert_first=starts(case.places).to(device),
        num_parts=num_parts,
    )
    return plan, error, state


def expected_tables(case):
    """Every table of the plan from the plain Python plan, UNTOUCHED where nothing is written."""
    routing, shape = case.routing, case.shape
    tables = {name: torch.full(dims, UNTOUCHED, dtype=torch.int32) for name, dims in shape.tables.items()}
    _fill(tables["row_of"], [row for rows in routing.row_of for row in rows])
    for rank, tiles in enumerate(routing.tiles):
        _fill(tables["tile_expert"][rank], [tile.expert for tile in tiles])
        _fill(tables["tile_row"][rank], [tile.row for tile in tiles])
        _fill(tables["tile_rows"][rank], [tile.rows for tile in tiles])
        _fill(tables["totals"][rank], [len(tiles), len(routing.rows[rank])])
        blocks = routing.block_routes[rank]
        _fill(tables["block_routes"][rank], [*blocks, *[0] * (shape.blocks_bound - len(blocks))])
        first = routing.first_expert[rank]
        rows = [row.expert for row in routing.rows[rank]]
        for expert in range(first, first + routing.placement[rank]):
            tables["expert_rows"][expert] = rows.count(expert)
            tables["expert_row"][expert] = sum(earlier < expert for earlier in rows)
            tables["tile_first"][expert] = sum(tile.expert < expert for tile in tiles)
    if shape.ranks == 1:
        _fill(tables["row_route"][0], [row.route for row in routing.rows[0]])
    if case.send is not None:
        _fill_sends(tables, case)
    return tables


def _fill_sends(tables, case):
    per_token = case.shape.ranks if case.send is Send.ALL else case.topk
    for rank, lists in enumerate(case.routing.sends):
        tokens_before = sum(case.shape.tokens[:rank])
        room = tokens_before * per_token
        counts = [len(items) for items in lists]
        _fill(tables["send_count"][rank], counts)
        _fill(tables["send_first"][rank], [room + first - tokens_before * case.topk for first in starts(counts)[:-1]])
        _fill(tables["send_item"][room:], [item for items in lists for item in items])


def _fill(table, values):
    table[: len(values)] = torch.tensor(values, dtype=torch.int32)


def assert_as_expected(case, plan):
    for name, table in expected_tables(case).items():
        got = getattr(plan, name).cpu()
        assert torch.equal(got, table), f"{name}: got {got.tolist()}, expected {table.tolist()}"
