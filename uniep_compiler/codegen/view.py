"""What kernel templates see: frozen, final strings and numbers. All arithmetic and all policy is done before."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantView:
    """A named constant: its text, and why it is there."""

    name: str
    text: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantGroup:
    """Constants that belong together, under one comment."""

    comment: str
    constants: tuple[ConstantView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """A wait: address of the counter, target, scope, what the error record says of it, and in words what it is for."""

    counter: str
    target: str
    scope: str
    signal: str
    place: str
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostView:
    """A post: address of the counter (or of a block of counters), and scope."""

    counter: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorView:
    """An accumulator of a GEMM tile, and where its weight's tile is read."""

    name: str
    pointer: str
    cols_text: str
    expert_shape: str
    col_offset: str
    depth_offset: str
    step: str
    tma: str
    tma_first: str
    tma_index: str
    tma_transpose: str
    bias: str
    bias_stride: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductView:
    """The loop of a GEMM tile over the products of some rows with weights."""

    depth: str
    depth_tail: bool
    gather_lines: tuple[str, ...]
    gather_row: str
    rows_pointer: str
    rows_stride: str
    rows_tma: str
    rows_tma_first: str
    weights_tma: bool
    accumulators: tuple[AccumulatorView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowValueView:
    """A number for each row that an epilogue reads, and where."""

    name: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """Rows of numbers that an epilogue reads; `row` says which, where the template does not."""

    name: str
    pointer: str
    stride: str
    cols_text: str
    mask: str
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """A value that an epilogue stores; one that is `summed` is a number per row."""

    value: str
    pointer: str
    stride: str
    cols_text: str
    dtype: str
    mask: str
    summed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyView:
    """What every family's template sees; `body` holds what its own template needs besides."""

    name: str
    const: str
    doc: str
    comments: tuple[str, ...]
    template: str
    rank: str
    decode: tuple[str, ...]
    waits: tuple[WaitView, ...]
    posts: tuple[PostView, ...]
    body: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """An output: its pointer and its size in elements, both arguments of every kernel."""

    pointer: str
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """The lines that find a task of one stage."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchView:
    """One kernel: its entry function, the order of its tasks, and whether it begins or ends a call."""

    name: str
    number: int
    suffix: str
    doc: str
    locate_doc: str
    first: bool
    last: bool
    stages: tuple[StageView, ...]
    num_tasks: tuple[str, ...]
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TmaView:
    """A tensor descriptor that the host makes: of which buffer, and its block in rows and columns.

    A `ragged` one reads some of the buffer's rows as if there were zeros after them.
    """

    name: str
    buffer: str
    block: tuple[int, int]
    ragged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelView:
    """A generated module.

    `arguments` are those of every kernel in it, in order; Triton must not specialise kernels on `run_time_counts`.
    """

    title: str
    header: tuple[str, ...]
    program: tuple[str, ...]
    interpreted: bool
    local: bool
    uses_tma: bool
    dot_precision: str
    constants: tuple[ConstantGroup, ...]
    families: tuple[FamilyView, ...]
    launches: tuple[LaunchView, ...]
    outputs: tuple[OutputView, ...]
    arguments: tuple[str, ...]
    descriptors: tuple[TmaView, ...]
    run_time_counts: tuple[str, ...]
