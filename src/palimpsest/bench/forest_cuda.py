"""Prefix forests on a GPU: FlexAttention beside separate segments, at 4K to 32K tokens a forest.

The model is a random-weight Qwen3 of 0.6B in bfloat16. Beside the forest stand `varlen` (all segments end to end in
one call, flash attention, if the `kernels` or `flash_attn` package gives it to transformers) and `rows` (one segment
at a time, SDPA). `matrix_share` is the forest's arithmetic over time and over the chip's own rate, which is measured
with products of 8,192 x 8,192 matrices: 6 FLOP per physical token and weight (embeddings left out, the vocabulary
projection for sampled tokens only), and 12 * layers * heads * head size for each pair of tokens that sees the other.

On a CPU the same code runs at tiny sizes in float32, to show that it is complete.

Not covered: several GPUs, compiled models.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.import_utils import is_flash_attn_2_available

from palimpsest.bench.forest import build_learner
from palimpsest.bench.workloads import Shapes, plain_gradient
from palimpsest.engines.protocol import StepBatch, UpdateStats


@dataclass(frozen=True, slots=True)
class GpuSizes:
    forests: tuple[int, ...] = (4096, 8192, 16384, 32768)
    """Physical tokens of a forest: one prompt and its segments."""
    prompt: int = 1500
    own: int = 300
    layers: int = 28
    width: int = 1024
    inner: int = 3072
    heads: int = 16
    groups: int = 8
    head_dim: int = 128
    vocab: int = 151_936
    matrix: int = 8192
    rounds: int = 3


TINY_GPU = GpuSizes(
    forests=(96,), prompt=32, own=16, layers=2, width=32, inner=48, heads=4, groups=2, head_dim=16, vocab=64, matrix=64,
    rounds=1,
)  # fmt: skip


def available() -> bool:
    """Whether there is a CUDA device."""
    return torch.cuda.is_available()


def run(*, device: str = "cuda", sizes: GpuSizes | None = None) -> dict[str, Any]:
    """For each size of forest: seconds of each way, reuse, speed-ups, share of the matrix rate, peak memory in MB."""
    sizes = sizes or (GpuSizes() if device == "cuda" else TINY_GPU)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    net = _model(sizes, device, dtype)
    rate = _matrix_rate(sizes.matrix, device, dtype)
    rows = [_one(net, sizes, physical, device, rate) for physical in sizes.forests]
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "dtype": str(dtype), "matrix_tflops": rate / 1e12, "forests": rows}


def _model(sizes: GpuSizes, device: str, dtype: Any) -> Any:
    config = Qwen3Config(
        vocab_size=sizes.vocab,
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.groups,
        head_dim=sizes.head_dim,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    model: Any = Qwen3ForCausalLM(config)  # its own types leave out `to(device, dtype)`
    return model.to(device, dtype).eval()


def _one(net: Any, sizes: GpuSizes, physical: int, device: str, rate: float) -> dict[str, Any]:
    """One prompt with as many segments as make up `physical` tokens."""
    count = (physical - sizes.prompt) // sizes.own
    batch = Shapes(sizes.vocab).star(count, sizes.prompt, sizes.own)
    learner = build_learner(net, 2 * physical)
    passes: list[UpdateStats] = []

    def forest() -> None:
        passes.append(learner.accumulate(batch))

    ways: dict[str, Callable[[], object]] = {"forest": forest, "rows": lambda: plain_gradient(net, batch)}
    result: dict[str, Any] = {}
    for name, way in ways.items():
        result[f"{name}_s"], result[f"{name}_peak_mb"] = _timed(net, way, sizes.rounds, device)
    result["varlen_s"] = _varlen(net, batch, sizes.rounds, device)
    best = min(result[name] for name in ("rows_s", "varlen_s") if result[name] is not None)
    flop = _flop(sizes, passes[-1].physical_tokens, count)
    return {
        "segments": count,
        "physical_tokens": int(passes[-1].physical_tokens),
        "reuse": passes[-1].reuse,
        **result,
        "speedup": best / result["forest_s"],
        "matrix_share": flop / result["forest_s"] / rate,
    }


def _timed(net: Any, way: Callable[[], object], rounds: int, device: str) -> tuple[float, float | None]:
    """Best seconds after a warm-up, which compiles, and peak memory."""
    best, cuda = float("inf"), device == "cuda"
    for number in range(rounds + 1):
        net.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        started = time.perf_counter()
        way()
        if cuda:
            torch.cuda.synchronize()
        if number:
            best = min(best, time.perf_counter() - started)
    return best, torch.cuda.max_memory_allocated() / 2**20 if cuda else None


def _varlen(net: Any, batch: StepBatch, rounds: int, device: str) -> float | None:
    """Seconds with all segments end to end in one row; None where transformers has no flash attention."""
    if device != "cuda" or not is_flash_attn_2_available():
        return None
    rows = [item.segment for item in batch.segments]
    ids = torch.tensor([[i for row in rows for i in row.token_ids]], device=device)
    positions = torch.cat([torch.arange(len(row.token_ids), device=device) for row in rows])[None]
    wanted = torch.tensor([m for row in rows for m in row.loss_mask], device=device)
    before = torch.roll(wanted, -1)

    def once() -> None:
        states = net.get_decoder()(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state[0]
        logits = net.get_output_embeddings()(states[before]).float()
        torch.nn.functional.cross_entropy(logits, ids[0, wanted]).backward()

    implementation = net.config._attn_implementation
    net.set_attn_implementation("flash_attention_2")
    try:
        return _timed(net, once, rounds, device)[0]
    finally:
        net.set_attn_implementation(implementation)


def _flop(sizes: GpuSizes, physical: float, count: int) -> float:
    """Floating-point operations of a forward and a backward pass over the forest."""
    heads = sizes.heads * sizes.head_dim
    layer = sizes.width * (2 * heads + 2 * sizes.groups * sizes.head_dim) + 3 * sizes.width * sizes.inner
    pairs = sizes.prompt**2 / 2 + count * (sizes.own * sizes.prompt + sizes.own**2 / 2)
    sampled = count * sizes.own / 2
    return (
        6 * (sizes.layers * layer * physical + sampled * sizes.width * sizes.vocab) + 12 * sizes.layers * heads * pairs
    )


def _matrix_rate(size: int, device: str, dtype: Any) -> float:
    """Operations per second of a large product, the best of several."""
    one = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(8):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        one @ one
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
