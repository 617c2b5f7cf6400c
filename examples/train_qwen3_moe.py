"""A small Qwen3-MoE language model learns the bytes of this repository's documents, with compiled experts and its own.

python examples/train_qwen3_moe.py              # fp32, 60 steps; on the CPU some minutes, in Triton's interpreter
python examples/train_qwen3_moe.py --dtype bf16 --steps 300 --repeat     # on a GPU: twice, for equal bits

Exit status: 0 if the compiled experts learn, and what the model's own learn; 1 if not; 2 if something is not installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import uniep_compiler as uniep

if TYPE_CHECKING:
    from transformers import Qwen3MoeForCausalLM

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
CURVES = ROOT / "build" / "train" / "loss.svg"

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
LEARNING_RATE = 3e-3
COMPARED_STEPS = 20
CLOSE = 1e-3
"""How far fp32 losses of the first steps may lie apart: sums in another order grow apart as training goes on."""
LEARNED = 1.0
"""Nats that the loss has to fall."""
LAST = 5
"""Steps whose mean is the loss at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training: the loss of each step, a hash of the weights at the end, and how long it took."""

    experts: str
    losses: tuple[float, ...]
    weights: str
    seconds: float

    @property
    def final(self) -> float:
        """The loss at the end."""
        last = self.losses[-LAST:]
        return sum(last) / len(last)


def make_model(experts: str, device: torch.device, dtype: torch.dtype) -> Qwen3MoeForCausalLM:
    """The model of the demo, with these experts; its weights are random and always the same."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        attn_implementation="eager",
        experts_implementation=experts,
    )
    return Qwen3MoeForCausalLM(config).to(device, dtype).train()


def batches(num_steps: int, num_tokens: int, device: torch.device) -> list[Tensor]:
    """i64[1, num_tokens] for each step: bytes of the documents from random places, the same in every run."""
    text = torch.tensor(list(b"".join(path.read_bytes() for path in DOCUMENTS)))
    starts = torch.randint(len(text) - num_tokens, (num_steps,), generator=torch.Generator().manual_seed(1))
    return [text[start : start + num_tokens].unsqueeze(0).to(device) for start in starts.tolist()]


def train(experts: str, data: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Run:
    """Train a model on the batches, one step each."""
    model = make_model(experts, device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    start = perf_counter()
    for number, ids in enumerate(data, 1):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number % 10 == 0 or number == len(data):
            print(
                f"  {experts:>6}  step {number:>4}  loss {losses[-1]:.4f}  {perf_counter() - start:5.1f} s", flush=True
            )
    digest = sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return Run(experts=experts, losses=tuple(losses), weights=digest.hexdigest()[:16], seconds=perf_counter() - start)


def verdicts(own: Run, compiled: Run, again: Sequence[Run], dtype: torch.dtype) -> dict[str, bool]:
    """What was to be shown, and whether it was. `again`: further runs, of compiled experts and then of the own ones."""
    found: dict[str, bool] = {}
    if dtype is torch.float32:
        pairs = list(zip(own.losses, compiled.losses, strict=True))[:COMPARED_STEPS]
        apart = max(abs(a - b) for a, b in pairs)
        found[f"losses of the first {len(pairs)} steps lie at most {apart:.1e} apart ({CLOSE:.0e} allowed)"] = (
            apart <= CLOSE
        )
    if len(compiled.losses) >= COMPARED_STEPS:
        fell = compiled.losses[0] - compiled.final
        found[f"the loss fell by {fell:.2f} nats ({LEARNED} asked for)"] = fell >= LEARNED
    if again:
        found["two runs of compiled experts end with equal weights, bit for bit"] = again[0].weights == compiled.weights
        finals = [own.final, *(run.final for run in again[1:])]
        spread = max(finals) - min(finals)
        apart = min(abs(compiled.final - final) for final in finals)
        print(f"  final loss {compiled.final:.4f}; of the model's own experts {', '.join(f'{x:.4f}' for x in finals)}")
        print(f"  which lie {spread:.1e} apart from run to run; the compiled ones' lies {apart:.1e} from the nearest")
    return found


def draw(runs: Sequence[Run], path: Path) -> None:
    """The losses as curves, in a picture."""
    width, height, left, top = 640, 320, 50, 20
    highest = max(max(run.losses) for run in runs)
    steps = max(len(run.losses) for run in runs)

    def points(run: Run) -> str:
        places = enumerate(run.losses)
        return " ".join(
            f"{left + width * step / max(steps - 1, 1):.1f},{top + height * (1 - loss / highest):.1f}"
            for step, loss in places
        )

    lines = [
        f'<polyline points="{points(run)}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        f'<text x="{left + width - 150}" y="{top + 20 + 20 * number}" fill="{color}">{run.experts} experts</text>'
        for number, (run, color, dashes) in enumerate(zip(runs, ("#888", "#06c"), ("none", "6 4"), strict=False))
    ]
    axes = (
        f'<path d="M{left},{top} V{top + height} H{left + width}" fill="none" stroke="#000"/>'
        f'<text x="4" y="{top + 10}">{highest:.1f}</text><text x="4" y="{top + height}">0</text>'
        f'<text x="{left}" y="{top + height + 18}">loss in nats per byte, {steps} steps</text>'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    size = f'width="{left + width + 20}" height="{top + height + 30}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    path.write_text(f'{head}<rect width="100%" height="100%" fill="#fff"/>{axes}{"".join(lines)}</svg>\n')


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, compares, and gives the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64, help="bytes of a step")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--repeat", action="store_true", help="train twice, to compare weights bit for bit")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        uniep.integrations.transformers.register()
    except ImportError as error:
        print(f"this needs transformers 5 ({error}): pip install 'transformers>=5'", file=sys.stderr)
        return 2
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    device, dtype = torch.device("cuda" if torch.cuda.is_available() else "cpu"), DTYPES[options.dtype]
    data = batches(options.steps, options.tokens, device)
    own, compiled = (train(experts, data, device, dtype) for experts in ("eager", "uniep"))
    again = [train(experts, data, device, dtype) for experts in ("uniep", "eager")] if options.repeat else []
    draw((own, compiled), CURVES)
    print(f"  curves: {CURVES.relative_to(ROOT)}")
    found = verdicts(own, compiled, again, dtype)
    for what, good in found.items():
        print(f"  {'ok   ' if good else 'WRONG'}  {what}")
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
