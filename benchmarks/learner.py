"""The embedded learner against padded training: one optimizer step, prefix forests of several shapes; Ray against it;
TRL's token trie against it.

    python benchmarks/learner.py step
    python benchmarks/learner.py forest
    python benchmarks/learner.py ray
    pip install trl==1.16.0; python benchmarks/learner.py trl [--device cuda]

Padded training is what the authors' code does: every segment is a row of equal width, with logits for every position.
Both compute gradients of the same loss on the same segments, on one thread. Seconds are the best round of each way;
peak memory is above that of the loaded model, measured in a separate process per way (Linux).

step     256 segments like the quickstart's: `ours_s`, `padded_s`, `ours_peak_mb`, `padded_peak_mb`, their ratios, and
         `loss_gap`, the difference of the two losses
forest   a model of the default size with random weights (speed does not depend on them) and a longer window;
         the ways alternate in one process, and of the padded way only a part of the segments is timed and its time
         multiplied, since its rows are equally wide:

    memact_reuse, memact_speedup      logical over physical tokens; padded seconds over ours
    peak_memory_ratio                 forest over padded, MemAct shape
    section_first_reuse, _speedup     a MemAgent group: seconds of `memory_first` over `section_first`, both in forests
    section_first_over_padded         padded `memory_first`, as the authors' code trains, over `section_first`
    section_first_prefill_ratio       prompt tokens the sampler computes, `memory_first` over `section_first`
    scaling                           [segments over one prefix, physical tokens, seconds]

ray      a training step on the segments of `step`, with engine.name=ray (one rank, one sampler) and embedded: seconds
         to sample the segments' turns, to update, to publish; ratios of Ray over embedded; of the last step
         `same_turns` (the share with the same tokens), their `logprob_gap`, and `loss_gap`

trl      the trie of TRL's AsyncGRPO (trl/experimental/async_grpo/packing.py) and the forest, on a MemAct group and on
         whole MemAgent trajectories of a group in both layouts: `share`, segment tokens per computed token, and seconds
         of a gradient, of each; `ratio` of the seconds, TRL's over ours; `loss_gap`. TRL's kernel needs an H100; on a
         CPU, torch's attention per segment computes the same

Not covered: several threads or devices, the authors' engines. Axes: B rows, T tokens of a row.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from transformers import AutoConfig, AutoModelForCausalLM

from palimpsest.config.engine import EmbeddedEngineConfig, model_path
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import LossConfig, ModelConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.compute import ComputeThread, set_threads
from palimpsest.engines.embedded.engine import EmbeddedEngine
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.losses import policy_loss
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine, StepBatch, TrainSegment, UpdateStats
from palimpsest.types import Completion, SampledSpan, SamplingParams, Segment

WINDOW = 4096
MICRO_BATCH_TOKENS = 32_768
PROMPT, OWN, TRAJECTORIES, SEGMENTS = 1500, 300, 16, 5
"""MemAct shape: tokens of the prompt and of a segment after it, half of them sampled; segments per trajectory."""
SECTION, MEMORY, QUESTION, GROUP = 1000, 200, 50, 16
"""A read turn of a MemAgent group: tokens of section, of memory and of response, of question; rollouts."""
SCALING = (1, 4, 16, 64)
PADDED_SHARE = 8
"""One padded segment in this many is timed (MemAct); one in four of a MemAgent group."""

Piece = tuple[list[int], bool]
"""Token ids, and whether they were sampled."""


# ---- batches ------------------------------------------------------------------------------------------------------


class Shapes:
    """Draws batches of random tokens; the same calls in the same order give the same tokens."""

    def __init__(self, vocab: int) -> None:
        self._draw, self._vocab = random.Random(0), vocab

    def ids(self, count: int) -> list[int]:
        return [self._draw.randrange(self._vocab) for _ in range(count)]

    def batch(self, rows: Sequence[Sequence[Piece]]) -> StepBatch:
        """Segments whose sampled tokens all have the same weight, with an advantage of 1 or -1 per segment."""
        weight = 1.0 / max(1, sum(len(ids) for row in rows for ids, sampled in row if sampled))
        return StepBatch(tuple(self._segment(row, weight) for row in rows))

    def _segment(self, row: Sequence[Piece], weight: float) -> TrainSegment:
        ids = tuple(i for piece, _ in row for i in piece)
        ends = [*accumulate(len(piece) for piece, _ in row)]
        spans = tuple(
            SampledSpan(end - len(piece), end, 0) for (piece, sampled), end in zip(row, ends, strict=True) if sampled
        )
        count = sum(len(piece) for piece, sampled in row if sampled)
        advantage = self._draw.choice((-1.0, 1.0))
        return TrainSegment(Segment(ids, spans, (-7.0,) * count), (advantage,) * count, (weight,) * count)

    def memact(self, segments: int, prompt: int, own: int) -> StepBatch:
        """Segments over one prompt: tool results and sampled tokens in turn."""
        root: Piece = (self.ids(prompt), False)
        sampled = (False, True, False, True)
        return self.batch([[root, *((self.ids(own // 4), each) for each in sampled)] for _ in range(segments)])

    def reading(self) -> tuple[StepBatch, StepBatch]:
        """One read turn of a MemAgent group: the same turns with the memory first, and with the section first."""
        text, asked = (self.ids(SECTION), False), (self.ids(QUESTION), False)
        turns = [((self.ids(MEMORY), False), (self.ids(MEMORY), True)) for _ in range(GROUP)]
        memory_first = self.batch([[asked, before, text, after] for before, after in turns])
        section_first = self.batch([[text, asked, before, after] for before, after in turns])
        return memory_first, section_first

    def trajectories(self, layout: str, chunks: int) -> StepBatch:
        """Every read turn of a MemAgent group over one document."""
        asked, texts = (self.ids(QUESTION), False), [(self.ids(SECTION), False) for _ in range(chunks)]
        empty, rows = self.ids(8), []
        for _ in range(GROUP):
            memory = empty
            for text in texts:
                before, after = (memory, False), (memory := self.ids(MEMORY), True)
                rows.append([asked, before, text, after] if layout == "memory_first" else [text, asked, before, after])
        return self.batch(rows)

    def turns(self, count: int, memory_tokens: int) -> StepBatch:
        """Single turns like the quickstart's: prompts of 70 to 130 tokens, completions of 4 to `memory_tokens`."""
        lengths = [(self._draw.randint(70, 130), self._draw.randint(4, memory_tokens)) for _ in range(count)]
        return self.batch([[(self.ids(prompt), False), (self.ids(sampled), True)] for prompt, sampled in lengths])


# ---- the two ways -------------------------------------------------------------------------------------------------


def padded_gradient(
    model: Any, segments: Sequence[TrainSegment], width: int, micro_batch_tokens: int, loss: LossConfig
) -> float:
    """Loss, its gradient accumulated, from rows of `width` tokens and full logits; as many rows at once as fit."""
    rows = max(1, micro_batch_tokens // width)
    parts = [segments[begin : begin + rows] for begin in range(0, len(segments), rows)]
    return sum(_padded(model, part, width, loss) for part in parts)


def _padded(model: Any, part: Sequence[TrainSegment], width: int, config: LossConfig) -> float:
    def column(values: Any, fill: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*v, *[fill] * (width - len(v))] for v in map(values, part)], dtype=dtype)

    ids_B_T = column(lambda item: item.segment.token_ids, 0, torch.long)
    mask_B_T = column(lambda item: item.segment.loss_mask, False, torch.bool)[:, 1:]
    attention_B_T = column(lambda item: [1] * len(item.segment.token_ids), 0, torch.long)
    logits = model(input_ids=ids_B_T, attention_mask=attention_B_T, use_cache=False).logits[:, :-1]
    every = logits.float().log_softmax(-1)
    entropy = -(every.detach().exp() * every.detach()).sum(-1)

    def trained(values: Any) -> torch.Tensor:
        return torch.tensor([value for item in part for value in values(item)], dtype=torch.float32)

    sampler = trained(lambda item: item.segment.logprobs)
    loss, _ = policy_loss(
        logprobs=every.gather(-1, ids_B_T[:, 1:, None])[..., 0][mask_B_T],
        old_logprobs=sampler,
        sampler_logprobs=sampler,
        advantages=trained(lambda item: item.advantages),
        weights=trained(lambda item: item.weights),
        ref_logprobs=None,
        entropy=entropy[mask_B_T],
        config=config,
    )
    loss.backward()
    return float(loss.detach())


def long_model(name: str) -> Any:
    """A model of the shape of `name` with random weights and a window of WINDOW tokens."""
    set_threads(1)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model_path(ModelConfig(path=name)), trust_remote_code=False)
    config.max_position_embeddings = WINDOW
    built = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", trust_remote_code=False)
    return built.float().eval()


def forest_learner(model: Any) -> ForestLearner:
    return ForestLearner(model, optim=OptimConfig(), loss=LossConfig(), micro_batch_tokens=MICRO_BATCH_TOKENS)


def best_of(rounds: int, ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Least seconds of each way; they take turns."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


# ---- one optimizer step -------------------------------------------------------------------------------------------


def step(options: argparse.Namespace) -> dict[str, Any]:
    found = {way: in_a_process("step", way, options) for way in ("ours", "padded")}
    figures: dict[str, Any] = {"segments": options.segments, "trained_tokens": found["ours"]["tokens"]}
    for way, each in found.items():
        figures |= {f"{way}_s": each["seconds"], f"{way}_peak_mb": each["peak_mb"]}
    figures["ratio_speed"] = figures["padded_s"] / figures["ours_s"]
    figures["ratio_memory"] = figures["padded_peak_mb"] / max(figures["ours_peak_mb"], 1.0)
    figures["loss_gap"] = abs(found["ours"]["loss"] - found["padded"]["loss"])
    return figures


def step_of(way: str, options: argparse.Namespace) -> dict[str, float]:
    config = load_recipe("memagent-quickstart", [f"model.path={options.model}"])
    settings = config.engine
    assert isinstance(settings, EmbeddedEngineConfig)
    engine = EmbeddedEngine(config, objective="policy")
    thread = ComputeThread(settings.num_threads)
    memory_tokens = int(config.policy.options.get("memory_tokens", 32))
    batch = Shapes(engine.codec.vocab_size).turns(options.segments, memory_tokens)
    width = max(len(item.segment.token_ids) for item in batch.segments) + 24  # room that a budget leaves unused
    losses: list[float] = []

    def once() -> None:
        engine.model.zero_grad(set_to_none=True)
        if way == "ours":
            losses.append(asyncio.run(thread.run(engine.trainer.accumulate, batch)).loss)  # as in training
        else:
            micro_batch_tokens = settings.micro_batch_tokens
            losses.append(padded_gradient(engine.model, batch.segments, width, micro_batch_tokens, config.loss))

    before = peak_mb()
    seconds = best_of(options.rounds, {way: once})[way]
    trained = sum(len(item.weights) for item in batch.segments)
    return {"seconds": seconds, "peak_mb": peak_mb() - before, "loss": losses[-1], "tokens": trained}


# ---- Ray ----------------------------------------------------------------------------------------------------------


def ray(options: argparse.Namespace) -> dict[str, Any]:
    return asyncio.run(_ray(options))


async def _ray(options: argparse.Namespace) -> dict[str, Any]:
    """Rounds alternate between the engines, and the median counts; the first step of each starts its processes."""
    common = [f"model.path={options.model}", "engine.num_threads=1"]
    configs = {
        name: load_recipe("memagent-quickstart", [*common, f"engine.name={name}"]) for name in ("embedded", "ray")
    }
    engines = {name: open_engine(config, objective="policy") for name, config in configs.items()}
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    last: dict[str, tuple[list[Completion], UpdateStats]] = {}
    try:
        batch = Shapes(engines["embedded"].codec.vocab_size).turns(options.segments, 32)
        for _ in range(options.rounds + 1):
            for name, engine in engines.items():
                times, sampled, stats = await training_step(engine, batch)
                last[name] = sampled, stats
                seconds[name].append(times)
    finally:
        for engine in engines.values():
            await engine.close()
    medians = {
        name: {part: statistics.median(each[part] for each in rounds[1:]) for part in rounds[0]}
        for name, rounds in seconds.items()
    }
    figures: dict[str, Any] = {f"{name}_s": parts for name, parts in medians.items()}
    figures["ratio"] = {part: medians["ray"][part] / max(s, 1e-9) for part, s in medians["embedded"].items()}
    (here, mine), (there, theirs) = last["embedded"], last["ray"]
    same = [(a, b) for a, b in zip(here, there, strict=True) if a.token_ids == b.token_ids]
    figures["same_turns"] = len(same) / len(here)
    figures["logprob_gap"] = max(abs(x - y) for a, b in same for x, y in zip(a.logprobs, b.logprobs, strict=True))
    return figures | {"loss_gap": abs(mine.loss - theirs.loss)}


async def training_step(engine: Engine, batch: StepBatch) -> tuple[dict[str, float], list[Completion], UpdateStats]:
    """Seconds of each phase, the sampled turns and the update's statistics."""

    def replay(number: int, segment: Segment) -> Awaitable[Completion]:
        params = SamplingParams(max_tokens=len(segment.logprobs), seed=number)
        return engine.sampler.generate(segment.token_ids[: segment.positions[0]], params)

    assert engine.learner is not None
    marks = [time.perf_counter()]
    sampled = await asyncio.gather(*(replay(n, each.segment) for n, each in enumerate(batch.segments)))
    marks.append(time.perf_counter())
    (stats,) = await engine.learner.update([batch])
    marks.append(time.perf_counter())
    await engine.learner.publish()
    marks.append(time.perf_counter())
    names = ("sampling", "update", "publish")
    parts = {name: end - begin for name, begin, end in zip(names, marks, marks[1:], strict=False)}
    return parts | {"step": marks[-1] - marks[0]}, sampled, stats


# ---- prefix forests -----------------------------------------------------------------------------------------------


def forest(options: argparse.Namespace) -> dict[str, Any]:
    model = long_model(options.model)
    shapes = Shapes(model.config.vocab_size)
    figures = memact(model, shapes, options.rounds) | layouts(model, shapes, options.rounds)
    ours, padded = (in_a_process("forest", way, options)["peak_mb"] for way in ("ours", "padded"))
    return figures | {"peak_memory_ratio": ours / max(padded, 1.0), "scaling": scaling(model, shapes, options.rounds)}


def memact(model: Any, shapes: Shapes, rounds: int) -> dict[str, Any]:
    batch = shapes.memact(TRAJECTORIES * SEGMENTS, PROMPT, OWN)
    learner, passes = forest_learner(model), list[UpdateStats]()
    part = batch.segments[: len(batch.segments) // PADDED_SHARE]
    ways = {
        "forest": lambda: passes.append(learner.accumulate(batch)),
        "padded": lambda: padded_gradient(model, part, PROMPT + OWN, MICRO_BATCH_TOKENS, LossConfig()),
    }
    seconds = best_of(rounds, ways)
    model.zero_grad(set_to_none=True)
    speedup = seconds["padded"] * len(batch.segments) / len(part) / seconds["forest"]
    return {"memact_reuse": passes[-1].reuse, "memact_speedup": speedup}


def layouts(model: Any, shapes: Shapes, rounds: int) -> dict[str, Any]:
    memory_first, section_first = shapes.reading()
    learner, passes = forest_learner(model), list[UpdateStats]()
    part = memory_first.segments[: GROUP // 4]
    width = len(part[0].segment.token_ids)
    ways: dict[str, Callable[[], object]] = {
        "memory": lambda: learner.accumulate(memory_first),
        "section": lambda: passes.append(learner.accumulate(section_first)),
        "padded": lambda: padded_gradient(model, part, width, MICRO_BATCH_TOKENS, LossConfig()),
    }
    seconds = best_of(rounds + 1, ways)
    model.zero_grad(set_to_none=True)
    return {
        "section_first_reuse": passes[-1].reuse,
        "section_first_speedup": seconds["memory"] / seconds["section"],
        "section_first_over_padded": seconds["padded"] * GROUP / len(part) / seconds["section"],
        "section_first_prefill_ratio": prefill(model, memory_first) / prefill(model, section_first),
    }


def prefill(model: Any, batch: StepBatch) -> int:
    """Prompt tokens that the sampler computes for the turns of a batch."""
    sampler = EmbeddedSampler(model)

    async def sample() -> None:
        prompts = [item.segment.token_ids[: item.segment.positions[0]] for item in batch.segments]
        wanted = (sampler.generate(p, SamplingParams(max_tokens=4, seed=i)) for i, p in enumerate(prompts))
        await asyncio.gather(*wanted)

    asyncio.run(sample())
    return int(sampler.stats().computed_prompt_tokens)


def scaling(model: Any, shapes: Shapes, rounds: int) -> list[list[float]]:
    learner, rows = forest_learner(model), list[list[float]]()
    for count in SCALING:
        batch = shapes.memact(count, SECTION, MEMORY)
        physical = int(learner.accumulate(batch).physical_tokens)
        rows.append([count, physical, best_of(rounds, {"": partial(learner.accumulate, batch)})[""]])
    return rows


def memory_of(way: str, options: argparse.Namespace) -> dict[str, float]:
    """Megabytes above the loaded model after a pass over the MemAct shape."""
    model = long_model(options.model)
    shapes, learner = Shapes(model.config.vocab_size), forest_learner(model)
    learner.accumulate(shapes.memact(1, 16, 16))  # what the first pass loads
    batch, before = shapes.memact(TRAJECTORIES * SEGMENTS, PROMPT, OWN), peak_mb()
    if way == "ours":
        learner.accumulate(batch)
    else:  # two micro-batches: the peak does not grow with more of them
        rows = 2 * (MICRO_BATCH_TOKENS // (PROMPT + OWN))
        padded_gradient(model, batch.segments[:rows], PROMPT + OWN, MICRO_BATCH_TOKENS, LossConfig())
    return {"peak_mb": peak_mb() - before}


# ---- TRL's token trie ---------------------------------------------------------------------------------------------


def trl(options: argparse.Namespace) -> dict[str, Any]:
    packing = trl_packing()
    if options.device == "cpu":
        packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=by_segment)
    packing.register_tree_attention()
    model = long_model(options.model).to(options.device, torch.float32 if options.device == "cpu" else torch.bfloat16)
    learner, theirs = forest_learner(model), copy.deepcopy(model)
    theirs.set_attn_implementation(packing.TREE_ATTENTION)
    shapes = Shapes(model.config.vocab_size)
    batches = {"memact": shapes.memact(TRAJECTORIES * SEGMENTS, PROMPT, OWN)}
    batches |= {layout: shapes.trajectories(layout, options.chunks) for layout in ("memory_first", "section_first")}
    figures: dict[str, Any] = {}
    for name, batch in batches.items():
        row, passes = trie_of(packing.TreeRow(), batch), list[UpdateStats]()
        packed = {key: value.to(options.device) for key, value in row.pack().items()}
        losses, tokens = list[float](), sum(len(item.segment.token_ids) for item in batch.segments)
        ways: dict[str, Callable[[], object]] = {
            "ours": partial(kept, passes, learner.accumulate, batch),
            "trl": partial(kept, losses, trie_gradient, theirs, packed, batch),
        }
        seconds = best_of(options.rounds, ways)
        ours = passes[-1]
        figures[name] = {
            "share": {"ours": ours.reuse, "trl": tokens / len(row.tokens)},
            "seconds": seconds,
            "ratio": seconds["trl"] / seconds["ours"],
            "loss_gap": abs(ours.loss - losses[-1]),
        }
    return figures


def kept(results: list[Any], work: Callable[..., Any], *arguments: object) -> None:
    results.append(work(*arguments))


def trl_packing() -> Any:
    """TRL's module alone: its package imports its trainer."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        sys.exit("error: TRL isn't installed: pip install trl==1.16.0")
    file = Path(found.origin).parent / "experimental" / "async_grpo" / "packing.py"
    spec = importlib.util.spec_from_file_location("packing", file)
    assert spec is not None
    assert spec.loader is not None
    packing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packing)
    return packing


def trie_of(row: Any, batch: StepBatch) -> Any:
    """TRL's `TreeRow` with every segment; an advantage per segment is its only credit."""
    for item in batch.segments:
        ids, mask = torch.tensor(item.segment.token_ids), torch.tensor(item.segment.loss_mask)
        logprobs = torch.zeros(len(ids)).masked_scatter(mask, torch.tensor(item.segment.logprobs))
        sample = {"input_ids": ids, "completion_mask": mask.long(), "old_log_probs": logprobs, "group_id": 0}
        row.add({**sample, "advantage": item.advantages[0]})
    return row


def trie_gradient(model: Any, packed: Mapping[str, torch.Tensor], batch: StepBatch) -> float:
    """Loss of the batch, its gradient accumulated, with TRL's attention: the forward of its trainer."""
    queries, keys = (int(size) for size in packed["tree_max_seqlens"])
    named = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    hidden = model.get_decoder()(
        input_ids=packed["input_ids"][None],
        position_ids=packed["position_ids"][None],
        use_cache=False,
        tree_max_seqlen_q=queries,
        tree_max_seqlen_k=keys,
        **named,
    ).last_hidden_state[0]
    labels = packed["input_ids"].new_tensor([t for s in batch.segments for t in trained_ids(s)])
    every = model.lm_head(hidden[packed["token_index"]]).float().log_softmax(-1)
    weights = torch.tensor([w for item in batch.segments for w in item.weights], device=every.device)
    loss, _ = policy_loss(
        logprobs=every.gather(-1, labels[:, None])[:, 0],
        old_logprobs=packed["old_log_probs"],
        sampler_logprobs=packed["old_log_probs"],
        advantages=packed["advantages"],
        weights=weights,
        ref_logprobs=None,
        entropy=None,
        config=LossConfig(),
    )
    loss.backward()
    return float(loss.detach())


def trained_ids(item: TrainSegment) -> list[int]:
    return [item.segment.token_ids[at] for at in item.segment.positions]


def by_segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, queries: Any, keys: Any, *_: int, **options: Any
) -> torch.Tensor:
    """[N, H, D] flash attention of variable lengths, as torch's attention of each segment on its path."""
    parts = []
    for (a, b), (c, d) in zip(pairwise(queries.tolist()), pairwise(keys.tolist()), strict=True):
        q, k, v = (each.transpose(0, 1)[None] for each in (query[a:b], key[c:d], value[c:d]))
        mask = None if b - a == 1 else causal_lower_right(b - a, d - c)
        grouped = q.shape[1] != k.shape[1]
        scale = options["softmax_scale"]
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
        parts.append(attended[0].transpose(0, 1))
    return torch.cat(parts)


# ---- processes ----------------------------------------------------------------------------------------------------


def in_a_process(figure: str, way: str, options: argparse.Namespace) -> dict[str, float]:
    """One way of a figure, in a separate process."""
    given = {"--way": way, "--model": options.model, "--rounds": options.rounds, "--segments": options.segments}
    words = [str(word) for pair in given.items() for word in pair]
    done = subprocess.run([sys.executable, __file__, figure, *words], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def peak_mb() -> float:
    """Highest resident memory of this process so far; `ru_maxrss` would start with the parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["step", "forest", "ray", "trl"])
    parser.add_argument("--model", default="embedded", help="forest: its size is taken")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--segments", type=int, default=256, help="of step and ray")
    parser.add_argument("--chunks", type=int, default=7, help="of trl: sections of the document")
    parser.add_argument("--device", default="cpu", help="of trl")
    parser.add_argument("--way", choices=["ours", "padded"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps((step_of if options.figure == "step" else memory_of)(options.way, options)))
    else:
        print(json.dumps({"step": step, "forest": forest, "ray": ray, "trl": trl}[options.figure](options), indent=1))


if __name__ == "__main__":
    main()
