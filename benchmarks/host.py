"""The host's time of a call, in microseconds: python -m benchmarks.host --help.

On a GPU calls are queued while the device is busy with little, so that no launch waits for it. Without one, kernels are
compiled and launched into nothing: what is missing then is the time that CUDA takes for allocations and launches.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import uniep_compiler
from benchmarks import record
from benchmarks.peers import PROGRAM
from benchmarks.stub import stub_device
from benchmarks.timing import synchronize
from uniep_compiler.runtime.layer import Layer

DIMS = {"E": 8, "K": 2, "H": 256, "I": 128}
TOKENS = 64
CALLS = 200
"""In a row: with three launches each, they fit into the device's queue."""
REPEATS = 15


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the result."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host", description="Times the host's part of a call.")
    parser.add_argument("--device", choices=("cuda", "stub"), default="cuda")
    parser.add_argument("--calls", type=int, default=CALLS, help="in a row (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of those; their median is told")
    parser.add_argument("--out", type=Path, help="folder to write host-GPU.json into")
    parser.add_argument("--commit", help="the commit to record, where there is no repository")
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    with torch.no_grad(), nullcontext() if on_gpu else stub_device(lambda *_: None):
        layer = uniep_compiler.compile(
            uniep_compiler.parse_file(PROGRAM), dims=DIMS, target="cuda" if on_gpu else "sm_90"
        )
        device = torch.device(options.device if on_gpu else "cpu")
        times = {name: time_us(call, device, options) for name, call in cases(layer, device).items()}
    result = record.about("host", arguments, options.commit)
    result |= {"device": {"gpu": torch.cuda.get_device_name(device)} if on_gpu else {}, "us": times}
    if options.out:
        record.write(result, options.out)
    for name, us in times.items():
        print(f"{name:<28}{us:9.1f} us")
    return 0


def cases(layer: Layer, device: torch.device) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    args = make_args(TOKENS, device)
    half = [value.bfloat16() if value.dtype == torch.float32 else value for value in args]
    operator = layer.register("host_benchmark")
    sizes = endless_sizes(device)

    def with_gradients() -> object:
        with torch.enable_grad():
            return layer(*args)

    return {
        "empty": lambda: torch.empty(TOKENS, DIMS["H"], dtype=torch.bfloat16, device=device),
        "call": lambda: layer(*args),
        "call, bf16 router weights": lambda: layer(*half),
        "call, grad mode": with_gradients,
        "operator": lambda: operator(*args),
        "call, new number of tokens": lambda: layer(*next(sizes)),
    }


def make_args(tokens: int, device: torch.device) -> list[Tensor]:
    """Arguments of a call with that many tokens."""
    E, K, H, I = DIMS.values()  # noqa: E741
    return [
        torch.randn(tokens, H, device=device, dtype=torch.bfloat16),
        torch.randint(0, E, (tokens, K), device=device, dtype=torch.int32),
        torch.rand(tokens, K, device=device),
        torch.randn(E, 2 * I, H, device=device, dtype=torch.bfloat16),
        torch.randn(E, H, I, device=device, dtype=torch.bfloat16),
    ]


def endless_sizes(device: torch.device) -> Iterator[list[Tensor]]:
    """Arguments with one token more each time, from one allocation."""
    x, ids, weights, w13, w2 = make_args(2**14, device)
    tokens = 1
    while True:
        yield [x[:tokens], ids[:tokens], weights[:tokens], w13, w2]
        tokens = tokens % 2**14 + 1


def time_us(call: Callable[[], object], device: torch.device, options: argparse.Namespace) -> float:
    """Microseconds of the host for one call, of many in a row."""
    for _ in range(20):
        call()
    times = []
    for _ in range(options.repeats):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(options.calls):
            call()
        times.append(1e6 * (time.perf_counter() - start) / options.calls)
    synchronize(device)
    return median(times)


if __name__ == "__main__":
    sys.exit(main())
