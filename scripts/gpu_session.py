"""First figures of a GPU of 80 GB, in one run of nine minutes: python scripts/gpu_session.py --out DIR [--device cpu]

Each part is a process with a deadline: a crash or a hang costs its own figures only, and the next part gets the time
that one leaves. Models have random weights and the shapes of published ones.

kernels   rates of a device copy and a bfloat16 product; the forest's attention, forward and backward, against float64
learner   4 layers of Qwen2.5-7B's shape, forests of 16,384 places: turns with the memory or the section first, with and
          without gradient checkpointing; optimizer step; longest kernels in DIR/profile.txt
compiled  the same with torch.compile around each layer except its attention
sampler   the embedded sampler with the shapes of Qwen2.5-0.5B and Qwen3-4B, 8 rows and as many as its memory holds
tests     the tests `sampler` and `step` of scripts/gpu_tests.py
ranks     FSDP2 on one rank with two of these layers: a step, publication, checkpoint

DIR contains figures.json and figures.md, replaced after each figure, and session.log with all errors. `--device cpu`
runs the same at tiny sizes. Needs neither Ray nor vLLM.

MFU = 3 F / (seconds * peak), HFU = (3 F + R) / (seconds * peak), with the data sheet's bfloat16 rate as the peak or, on
other devices, the rate measured here. F: operations of a forward pass for T places, U of them before a trained token, L
layers of B weights (K of them for keys and values), query width q, mean path c (c' of the U places), projection of H:

    F = (L - 1) (2 B T + 4 q c T) + 2 K T + 2 (B - K) U + 4 q c' U + 2 H U

R: what the backward pass computes again: 2 H U, and with checkpointing the first term.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from gpu_tests import CHECKOUT, LIMIT_S, import_error, rounded, run_part, surroundings, wait, with_source
from gpu_tests import PARTS as TESTS

T = TypeVar("T")
LIMITS = MappingProxyType({"kernels": 80, "learner": 150, "compiled": 60, "sampler": 80, "tests": 110, "ranks": 60})
"""Seconds of the 540 that each part adds to its deadline."""


class Figures:
    """The results so far, in files."""

    def __init__(self, out: Path) -> None:
        self._out, self._json = out, out / "figures.json"
        self.all: list[dict[str, Any]] = json.loads(self._json.read_text()) if self._json.exists() else []

    def add(self, part: str, name: str, value: Any, unit: str = "", why: str = "") -> None:
        """`value` None: no figure, for the reason `why`."""
        self.all.append({"part": part, "figure": name, "value": value, "unit": unit, "why": why})
        print(f"{part:9}{name}: {shown(value)} {unit} {why}".rstrip(), flush=True)
        rows = (f"| {x['part']} | {x['figure']} | {shown(x['value'])} {x['unit']} | {x['why']} |" for x in self.all)
        table = "\n".join(["| part | figure | value | why not |", "|---|---|---|---|", *rows, ""])
        for name, text in (("figures.json", json.dumps(self.all, indent=1) + "\n"), ("figures.md", table)):
            draft = self._out / f".{name}"
            draft.write_text(text)
            draft.replace(self._out / name)

    def value(self, name: str) -> Any:
        return next((each["value"] for each in self.all if each["figure"] == name), None)


def shown(value: Any) -> str:
    return "no figure" if value is None else rounded(value)


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


# ---- the parent: a process per part ----------------------------------------------------------------------------


def run(parts: Sequence[str], device: str, out: Path, limit_s: float) -> bool:
    """Run the parts in order; returns whether every one came to its end."""
    started, deadline, ended = time.monotonic(), 0.0, True
    for part in parts:
        deadline += LIMITS[part] * limit_s / sum(LIMITS[each] for each in parts)
        left = started + deadline - time.monotonic()
        if part == "tests":
            ended &= run_tests(device, out, left)
        else:
            command = [sys.executable, __file__, "--part", part, "--device", device, "--out", str(out)]
            ended &= run_process(part, command, out, left)
    return ended


def run_process(part: str, command: Sequence[str], out: Path, limit_s: float) -> bool:
    """Run one part; a crash or a hang becomes its last figure."""
    path, began = [str(CHECKOUT), with_source()["PYTHONPATH"]], time.monotonic()
    log = out / "session.log"
    with log.open("a") as errors:
        before = errors.tell()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        process = subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)
        ended = wait(process, limit_s)
    last = log.read_bytes()[before:].decode(errors="replace").strip().rpartition("\n")[2][:300]
    why = "" if ended else f"killed after {limit_s:.0f} s"
    if ended and process.returncode:
        why = f"ended with {process.returncode}: {last}"
    Figures(out).add(part, "part", None if why else time.monotonic() - began, "s", why)
    return not why


def run_tests(device: str, out: Path, limit_s: float) -> bool:
    """Tests of the marker `gpu`: the sampler's, and on a GPU those of a whole step."""
    figures, deadline, passed = Figures(out), time.monotonic() + limit_s, True
    wanted = ("sampler", "step") if device == "cuda" else ("sampler",)
    for number, part in enumerate(part for part in TESTS if part.name in wanted):
        left = deadline - time.monotonic()
        for result in run_part(part, device, out, max(1.0, left / (len(wanted) - number))):
            done = result.outcome == "passed"
            passed &= done
            name = f"{part.name}: {result.test}"
            figures.add("tests", name, result.seconds if done else None, "s", "" if done else result.why)
            for each, value in result.figures.items():
                figures.add("tests", f"{name}: {each}", value)
    return passed


# ---- the parts, each in its own process; torch is imported here only -------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Of a Qwen; `query` and `kv`: heads times head size; `inner`: width of the feed-forward part."""

    layers: int
    width: int
    query: int
    kv: int
    inner: int
    vocab: int
    tied: bool
    kv_heads: int


SIZES = {
    "0.5B": Sizes(24, 896, 896, 128, 4864, 151_936, True, 2),
    "Qwen/Qwen2.5-7B-Instruct": Sizes(28, 3584, 3584, 512, 18_944, 152_064, False, 4),
    "Qwen/Qwen3-4B": Sizes(36, 2560, 4096, 1024, 9728, 151_936, True, 8),
}


@dataclass(frozen=True)
class Session:
    """What a part measures with."""

    part: str
    device: str
    out: Path
    figures: Figures

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def add(self, name: str, value: Any, unit: str = "") -> None:
        self.figures.add(self.part, name, value, unit)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Record an error, such as a lack of memory, and continue after the block."""
        from palimpsest.errors import PalimpsestError

        try:
            yield
        except (RuntimeError, PalimpsestError) as error:
            self.figures.add(self.part, name, None, why=reason(error))
            sys.excepthook(type(error), error, error.__traceback__)

    def timed(self, work: Callable[[], T], rounds: int = 1) -> tuple[float, T]:
        """Seconds of the fastest round, and the last result."""
        import torch

        best = float("inf")
        for _ in range(rounds):
            began = time.perf_counter()
            result = work()
            if self.cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        return best, result

    def shape(self, name: str) -> Sizes:
        """Sizes of a model; on a CPU tiny ones."""
        return Sizes(2, 64, 64, 32, 128, 4096, True, 2) if self.device == "cpu" else SIZES[name]

    def build(self, shape: Sizes) -> Any:
        """A Qwen of random weights, on the device."""
        import torch
        from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

        kind: Any = Qwen2Config if shape.query == shape.width else Qwen3Config
        config = kind(
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.query * shape.kv_heads // shape.kv,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.kv // shape.kv_heads,
            vocab_size=shape.vocab,
            max_position_embeddings=32_768,
            tie_word_embeddings=shape.tied,
        )
        loader: Any = AutoModelForCausalLM
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        with torch.device(self.device):
            torch.manual_seed(0)
            return loader.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def batch_of(layout: str, places: int, vocab: int) -> Any:
    """Turns of MemAgent that fill a forest of `places`."""
    from benchmarks.learner import Shapes

    shapes, memory, section = Shapes(vocab), places // 28, places // 4
    asked, text = (shapes.ids(places // 160), False), (shapes.ids(section), False)
    turn = section + len(asked[0]) + 2 * memory
    own = 2 * memory if layout == "section_first" else turn - len(asked[0])
    rows = []
    for _ in range(1 + (places - turn) // own):
        before, after = (shapes.ids(memory), False), (shapes.ids(memory), True)
        another = (shapes.ids(section), False)
        rows.append([text, asked, before, after] if layout == "section_first" else [asked, before, another, after])
    return shapes.batch(rows)


def operations(shape: Sizes, batch: Any) -> tuple[float, float, float]:
    """F of the docstring, its first term, and its last."""
    from palimpsest.engines.embedded.forest.layout import build_forests

    first = rest = head = 0.0
    for forest in build_forests(batch.segments, 1 << 20, 1 << 20):
        places, wanted, paths = forest.physical_tokens, len(forest.places), forest.positions + 1
        kv = 2 * shape.width * shape.kv
        matrices = 2 * shape.width * (shape.query + shape.kv) + 3 * shape.width * shape.inner
        first += (shape.layers - 1) * (2 * matrices * places + 4 * shape.query * float(paths.sum()))
        rest += 2 * kv * places + 2 * (matrices - kv) * wanted + 4 * shape.query * float(paths[forest.places].sum())
        head += 2 * shape.vocab * shape.width * wanted
    return first + rest + head, first, head


def kernels(s: Session) -> None:
    import torch

    for name, text in surroundings(s.device).items():
        s.add(name, text)
    size, width = (1 << 30, 8192) if s.cuda else (1 << 22, 512)
    source = torch.zeros(size, dtype=torch.uint8, device=s.device)
    target = torch.empty_like(source)
    s.add("device copy, read and written", 2 * size / s.timed(partial(target.copy_, source), 5)[0] / 1e9, "GB/s")
    factor = torch.randn(width, width, device=s.device, dtype=torch.bfloat16 if s.cuda else torch.float32)
    s.add("product rate", 2 * width**3 / s.timed(partial(torch.mm, factor, factor), 5)[0] / 1e12, "TFLOP/s")
    with s.attempt("attention"):
        attention(s)


def attention(s: Session) -> None:
    """`attend` and its gradients in bfloat16 against `dense` in float64, next to `dense` in bfloat16."""
    import torch

    from palimpsest.engines.embedded.forest.attention import attend, dense, plan_of
    from palimpsest.engines.embedded.forest.layout import build_forests

    places, heads, groups, size = (2048, 28, 4, 128) if s.cuda else (256, 4, 2, 16)
    (forest,) = build_forests(batch_of("section_first", places, 4096).segments, places, places, s.device)
    draw = torch.Generator(s.device).manual_seed(0)
    query, key, value, grad = (
        torch.randn(1, count, forest.physical_tokens, size, generator=draw, device=s.device, dtype=torch.float64)
        for count in (heads, groups, groups, heads)
    )
    seconds, plan = s.timed(partial(plan_of, forest, torch.bfloat16))
    s.add("mask, first call", seconds, "s")

    def computed(function: Any, dtype: Any) -> list[Any]:
        given = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        result = function(*given, plan)
        return [result.detach(), *torch.autograd.grad(result, given, grad.transpose(1, 2).to(dtype))]

    exact = computed(dense, torch.float64)
    s.add("attention, first call", s.timed(partial(computed, attend, torch.bfloat16))[0], "s")
    seconds, found = s.timed(partial(computed, attend, torch.bfloat16), 5)
    s.add("attention, forward and backward", seconds * 1e3, "ms")
    s.add("attention rate", 12 * heads * size * float((forest.positions + 1).sum()) / seconds / 1e12, "TFLOP/s")
    for way, results in (("attention", found), ("dense mask", computed(dense, torch.bfloat16))):
        names = ("output", "queries' gradient", "keys' gradient", "values' gradient")
        for name, one, wanted in zip(names, results, exact, strict=True):
            s.add(f"{way}, relative error of {name}", float((one.double() - wanted).abs().max() / wanted.abs().max()))


@dataclass(frozen=True)
class Learning:
    """A learner on four layers of a 7B model."""

    s: Session
    shape: Any
    places: int
    model: Any
    learner: Any
    peak: float | None

    @classmethod
    def start(cls, s: Session) -> Learning:
        import torch

        from palimpsest.config.schema import LossConfig
        from palimpsest.config.training_steps import OptimConfig
        from palimpsest.engines.embedded.learner import ForestLearner
        from palimpsest.errors import ConfigError
        from palimpsest.planning.hardware import named_device

        places, shape = 16_384 if s.cuda else 512, s.shape("Qwen/Qwen2.5-7B-Instruct")
        shape = replace(shape, layers=min(4, shape.layers))
        model, peak = s.build(shape), s.figures.value("product rate")
        with suppress(ConfigError):
            peak = named_device(torch.cuda.get_device_name() if s.cuda else "").tflops
        made = partial(ForestLearner, model, optim=OptimConfig(), loss=LossConfig(), micro_batch_tokens=places)
        seconds, learner = s.timed(made)
        s.add("learner and its check", seconds, "s")
        return cls(s, shape, places, model, learner, peak)

    def measure(self, layout: str, recompute: bool) -> Callable[[], Any]:
        """Figures of passes over one batch; returns the pass."""
        s, batch = self.s, batch_of(layout, self.places, self.shape.vocab)
        name, work = f"{layout}{', checkpointing' * recompute}", partial(self.learner.accumulate, batch)
        with s.attempt(name):
            enable = self.model.gradient_checkpointing_enable
            enable({"use_reentrant": False}) if recompute else self.model.gradient_checkpointing_disable()
            s.add(f"{name}: first pass", s.timed(work)[0], "s")
            if s.cuda:
                import torch

                torch.cuda.reset_peak_memory_stats()
            seconds, stats = s.timed(work, 2)
            forward, layers, head = operations(self.shape, batch)
            s.add(f"{name}: pass", seconds, "s")
            s.add(f"{name}: computed places", stats.physical_tokens / seconds, "/s")
            s.add(f"{name}: reuse", stats.reuse)
            if self.peak:
                s.add(f"{name}: MFU", 3 * forward / seconds / self.peak / 1e12)
                s.add(f"{name}: HFU", (3 * forward + head + layers * recompute) / seconds / self.peak / 1e12)
            if s.cuda:
                s.add(f"{name}: peak memory", torch.cuda.max_memory_allocated() / 1e9, "GB")
        return work


def learner(s: Session) -> None:
    from torch.profiler import ProfilerActivity, profile

    learning = Learning.start(s)
    for layout in ("memory_first", "section_first"):
        for recompute in (True, False):
            work = learning.measure(layout, recompute)
    with s.attempt("profile"):
        with profile(activities=[ProfilerActivity.CUDA if s.cuda else ProfilerActivity.CPU]) as profiler:
            work()
        order, averages = "self_device_time_total" if s.cuda else "self_cpu_time_total", profiler.key_averages()
        (s.out / "profile.txt").write_text(averages.table(sort_by=order, row_limit=30, max_name_column_width=80) + "\n")
        times = sorted(((getattr(each, order), each.key) for each in averages), reverse=True)
        for spent, name in times[:8]:
            s.add(f"profile, share of {name[:60]}", spent / sum(each for each, _ in times))
    with s.attempt("optimizer step"):
        learning.learner.apply(work())  # allocates the moments
        s.add("optimizer step", s.timed(partial(learning.learner.apply, work()))[0], "s")


def compiled(s: Session) -> None:
    import torch
    from transformers import AttentionInterface

    from palimpsest.engines.embedded.forest.attention import NAME

    learning = Learning.start(s)
    AttentionInterface.register(NAME, torch.compiler.disable(AttentionInterface()[NAME]))
    *layers, last = learning.model.get_decoder().layers
    for module in (*layers, last.mlp):
        module.compile(dynamic=True, backend="inductor" if s.cuda else "aot_eager")
    for recompute in (False, True):
        learning.measure("memory_first", recompute)


def sampler(s: Session) -> None:
    for name in ("0.5B", "Qwen/Qwen3-4B"):
        model = s.build(s.shape(name))
        for rows in (8, 128):
            with s.attempt(f"{name}, {rows} rows"):
                sampled(s, f"{name}, {rows} rows", model, rows)


def sampled(s: Session, name: str, model: Any, rows: int) -> None:
    """A group over one prompt: the first prompt, then 16 tokens of each."""
    import numpy as np

    from palimpsest.engines.embedded.compute import memory_of
    from palimpsest.engines.embedded.sampling.continuous_batch import ContinuousBatch, Request
    from palimpsest.engines.protocol import kv_bytes
    from palimpsest.types import SamplingParams

    length, steps, draw = 6600 if s.cuda else 200, 16, random.Random(0)
    prompt = [draw.randrange(4096) for _ in range(length - 1)]
    batch = ContinuousBatch(model, max_num_seqs=rows, memory=kv_bytes(None, memory_of(model.device)))
    requests = [
        Request(np.array([*prompt, token]), SamplingParams(max_tokens=200, seed=token)) for token in range(rows)
    ]
    s.add(f"{name}: prompt of {length}", length / s.timed(partial(batch.step, requests[:1], ()))[0], "tokens/s")
    for arrivals in (requests[1:], [], []):
        batch.step(arrivals, ())
    before = batch.counters.generated_tokens
    seconds, _ = s.timed(lambda: [batch.step((), ()) for _ in range(steps)])
    tokens = batch.counters.generated_tokens - before
    s.add(f"{name}: rows in memory", tokens / steps)
    s.add(f"{name}: step", 1e3 * seconds / steps, "ms")
    s.add(f"{name}: sampled", tokens / seconds, "tokens/s")


def ranks(s: Session) -> None:
    import torch.distributed as dist
    from transformers import AutoTokenizer

    from palimpsest.config.engine import named

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    shape = replace(s.shape("Qwen/Qwen2.5-7B-Instruct"), layers=2, vocab=32_768 if s.cuda else 4096)
    with tempfile.TemporaryDirectory() as disk:
        backend, meeting = "cpu:gloo,cuda:nccl" if s.cuda else "gloo", f"file://{disk}/meeting"
        dist.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        s.build(shape).save_pretrained(Path(disk) / "model")
        AutoTokenizer.from_pretrained(named("embedded")).save_pretrained(Path(disk) / "model")
        one_rank(s, Path(disk), shape.vocab)
        dist.destroy_process_group()


def one_rank(s: Session, folder: Path, vocab: int) -> None:
    from safetensors.torch import save_file

    from palimpsest.config.schema import RunConfig
    from palimpsest.engines.embedded.model_loading import DTYPES, merged_weights
    from palimpsest.engines.ray.learner import RankLearner
    from palimpsest.engines.ray.rank_batches import plan
    from palimpsest.engines.ray.sharding import full

    places, dtype = (8192, "bfloat16") if s.cuda else (512, "float32")
    model = {"path": str(folder / "model"), "device": s.device, "dtype": dtype, "gradient_checkpointing": True}
    config = RunConfig.model_validate({"model": model, "engine": {"name": "ray", "micro_batch_tokens": places}})
    seconds, rank = s.timed(partial(RankLearner, config, "policy"))
    s.add("load", seconds, "s")
    batch = batch_of("section_first", places, vocab)
    for number, name in enumerate(("first step", "step")):
        planned = plan([batch], 1, number=number, micro_batch_tokens=places, max_context=32_768, skips_silent=True)
        (part,) = planned.parts
        s.add(name, s.timed(partial(rank.update, part))[0], "s")
    rank._root.reshard()
    gathered, weights = s.timed(lambda: dict(merged_weights(rank._model, DTYPES[dtype], gather=full)))
    moved, held = s.timed(lambda: {name: x.to("cpu", copy=True).contiguous() for name, x in weights.items()})
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else folder
    with tempfile.TemporaryDirectory(dir=memory) as fast:
        (Path(fast) / "published").mkdir()
        written, _ = s.timed(partial(save_file, held, Path(fast) / "weights.safetensors"))
        published, _ = s.timed(partial(rank.publish, Path(fast) / "published"))
    size = sum(weight.nbytes for weight in held.values())
    steps = {"gather": gathered, "to host": moved, f"write to {memory.name}": written, "whole publication": published}
    for name, seconds in steps.items():
        s.add(name, size / seconds / 1e9, "GB/s")
    (folder / "saved").mkdir()
    seconds, _ = s.timed(partial(rank.save, folder / "saved"))
    size = sum(file.stat().st_size for file in (folder / "saved").rglob("*") if file.is_file())
    s.add("checkpoint, written and compared", size / seconds / 1e9, "GB/s")


def main() -> int | str:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path, default=Path("build/gpu-session"))
    parser.add_argument("--minutes", type=float, default=LIMIT_S / 60)
    parser.add_argument("--only", nargs="*", choices=LIMITS, help="these parts alone")
    parser.add_argument("--part", choices=LIMITS, help=argparse.SUPPRESS)
    options, began = parser.parse_args(), time.monotonic()
    if options.part:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a part ends with the session
        session = Session(options.part, options.device, options.out, Figures(options.out))
        work = {"kernels": kernels, "learner": learner, "compiled": compiled, "sampler": sampler, "ranks": ranks}
        try:
            work[options.part](session)
        except Exception as error:  # noqa: BLE001 - border: the last line of the log is the reason
            sys.excepthook(type(error), error, error.__traceback__)
            return reason(error)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if missing := import_error():
        print(f"{sys.executable} can't import palimpsest ({missing}): install it, or set PYTHONPATH", file=sys.stderr)
        return 2
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("figures.json", "session.log"):
        (out / name).unlink(missing_ok=True)
    parts = [part for part in LIMITS if not options.only or part in options.only]
    return 0 if run(parts, options.device, out, 60 * options.minutes - (time.monotonic() - began)) else 1


if __name__ == "__main__":
    sys.exit(main())
