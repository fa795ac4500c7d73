"""Makes the embedded base model from scratch, measures what it can do, and writes it as a folder.

The recipe behind the model inside the package; `palimpsest base-model --out DIR` repeats it. Data:
training/supervised/skills.py.
Copying is grown first, from the easiest case, because nothing else is learnt well without it (measured: 2,400 steps
of the plain mixture ended at a copy fidelity of 0.1):

    few_words     repeats over 64 words
    all_words     repeats over all words, copy
    ambiguous     repeats in which one word does not tell the next, copy; until both are learnt
    mixture       read, copy, answer, direct, and a few repeats
    polish        facts are written in reading order, so that sampling names somebody off the page less often
    focus         more answering from one or two paragraphs
    none          reads that write nothing, whatever there is to write; the mass on all sentences that might have begun
                  is trained as well as the one that did, so that fewer begin with somebody off the page
    about         what is said of somebody, none where nothing is; longer memories to answer from

Without the ambiguous repeats the model copies the value that follows the same verb, whoever the subject is, and stays
at 0.88 of the values; with them and `copy` it comes to find the subject, suddenly and at a step that differs from seed
to seed: so that stage ends by its losses, and the others after a number of steps.

AdamW, one for the first four stages, a fresh one for each of the others.

Guaranteed: seeded, so the same machine and thread count give the same weights.
Not covered: bit-equality across machines.

What a base model can do, measured by sampling it on held-out examples of the skills it was taught.

copy_fidelity      share of the sentences written in `read` that stand verbatim in the memory or the section,
                   sampled at temperature 1 (as in training) and greedily (as in evaluation); a reply that writes
                   nothing, by the word that an empty memory shows, has none
answer, direct     share of greedy answers that are exactly the expected ones, "unknown" included
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from palimpsest import files
from palimpsest.base_model.base_tokenizer import build_tokenizer
from palimpsest.config.schema import ModelConfig, RunConfig
from palimpsest.engines.embedded.compute import set_threads
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.errors import RunError
from palimpsest.memory.overwrite import SHORT
from palimpsest.metrics.memory_metrics import copy_fidelity
from palimpsest.metrics.reading_trace import Texts, readings
from palimpsest.progress.reporter import Progress
from palimpsest.runs.folder_guard import refuse_moving
from palimpsest.seeding import derive_seed, keyed_random
from palimpsest.text.codec import Codec
from palimpsest.training.supervised.skills import Example, Skills
from palimpsest.types import Completion, Outcome, SamplingParams, Trajectory, Turn, spans_of


@dataclass(frozen=True, slots=True)
class BaseModelConfig:
    """Size, data and schedule of the embedded model."""

    seed: int = 0
    few_words_steps: int = 210
    all_words_steps: int = 240
    ambiguous_steps: int = 6000
    """At most so many; the stage ends earlier once its losses, over 50 steps, are below the next two."""
    ambiguous_repeat_loss: float = 1.25
    """Nats a token."""
    ambiguous_copy_loss: float = 1.2
    """Nats a token; most of it is the order of the facts, which nothing tells."""
    mixture_steps: int = 1900
    learning_rate: float = 2e-3
    warmup_steps: int = 40
    weight_decay: float = 0.01
    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 4
    heads: int = 4
    max_context: int = 1024
    vocab_size: int = 2752
    few_words: int = 64
    polish_steps: int = 1000
    """Further steps, with a fresh optimiser, in which facts are written in reading order."""
    focus_steps: int = 900
    """Further steps, again with a fresh optimiser, that add answering from one or two paragraphs."""
    polish_learning_rate: float = 1.5e-3
    """Of these two stages."""
    none_steps: int = 400
    """Further steps, with a fresh optimiser, of reads that may write nothing."""
    about_steps: int = 800
    """Further steps, with a fresh optimiser, that add what is said of somebody and answering from longer memories."""
    none_learning_rate: float = 1e-3
    """Of the last two stages."""
    choice_weight: float = 2.0
    """In the last two stages, of -log of the mass on all ids that would have been right where a sentence begins."""

    @property
    def total_steps(self) -> int:
        """The most that all stages can take."""
        early = self.few_words_steps + self.all_words_steps + self.ambiguous_steps + self.mixture_steps
        return early + self.polish_steps + self.focus_steps + self.none_steps + self.about_steps


def new_model(config: BaseModelConfig) -> Any:
    """A LlamaForCausalLM with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(derive_seed(config.seed, "base-model", "init"))
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.max_context,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


def collate(examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids [B, T] padded at the right, mask [B, T-1] of positions that predict a trained token, targets [N]."""
    rows = [(*e.prompt_ids, *e.completion_ids) for e in examples]
    width = max(map(len, rows))
    tokens_B_T = torch.zeros(len(rows), width, dtype=torch.long)
    mask_B_T = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (row, example) in enumerate(zip(rows, examples, strict=True)):
        tokens_B_T[i, : len(row)] = torch.tensor(row)
        mask_B_T[i, len(example.prompt_ids) : len(row)] = True
    mask_B_T = mask_B_T[:, 1:]
    return tokens_B_T, mask_B_T, tokens_B_T[:, 1:][mask_B_T]


def losses(model: Any, examples: Sequence[Example]) -> tuple[Tensor, Tensor | None]:
    """Mean negative log-likelihood (nats) of the completions' tokens; of their choices -log mass, None without any."""
    tokens_B_T, mask_B_T, targets_N = collate(examples)
    hidden_B_T_D = model.model(input_ids=tokens_B_T[:, :-1]).last_hidden_state  # causal: right padding is not seen
    likelihood = nn.functional.cross_entropy(model.lm_head(hidden_B_T_D[mask_B_T]), targets_N)
    places = [
        (row, len(example.prompt_ids) + place - 1, ids)
        for row, example in enumerate(examples)
        for place, ids in example.choices.items()
    ]
    if not places:
        return likelihood, None
    rows, columns, allowed = zip(*places, strict=True)
    logits_C_V = model.lm_head(hidden_B_T_D[torch.tensor(rows), torch.tensor(columns)])
    outside_C_V = torch.full_like(logits_C_V, float("-inf"))
    for row, ids in zip(outside_C_V, allowed, strict=True):
        row[list(ids)] = 0.0
    return likelihood, (logits_C_V.logsumexp(-1) - (logits_C_V + outside_C_V).logsumexp(-1)).mean()


Batches = list[list[Example]]
"""One batch for each skill of a stage."""


@dataclass(frozen=True, slots=True)
class Stage:
    """At most `steps` of the same mixture of skills."""

    name: str
    steps: int
    learning_rate: Callable[[int], float]
    draw: Callable[[random.Random], Batches]
    weights: tuple[float, ...]
    """Of each batch's loss."""
    until: tuple[float, ...] | None = None
    """Ends once the mean losses of the last 50 steps are below these."""
    fresh_optimizer: bool = False

    def learnt(self, losses: Sequence[Sequence[float]]) -> bool:
        """Whether the means over the last 50 of `losses` [step][batch] are below `until`; True where that is None."""
        if self.until is None:
            return True
        means = (fmean(column) for column in zip(*losses[-WINDOW:], strict=True))
        return len(losses) >= WINDOW and all(mean < bound for mean, bound in zip(means, self.until, strict=True))

    def ended(self, losses: Sequence[Sequence[float]]) -> bool:
        """Whether it is over after `losses` [step][batch]."""
        return len(losses) >= self.steps or (self.until is not None and self.learnt(losses))


WINDOW = 50


def stages(skills: Skills, config: BaseModelConfig) -> tuple[Stage, ...]:
    """From random weights to the mixture, the polish, the focus."""
    few = keyed_random(config.seed, "base-model", "words").sample(skills.words, config.few_words)
    peak, second = config.learning_rate, config.polish_learning_rate

    def warm(step: int) -> float:
        return peak * min(1.0, (step + 1) / config.warmup_steps)

    def falling(rate: float, steps: int, start: float) -> Callable[[int], float]:
        """Constant up to the share `start` of the steps, then linear to 1 % of it."""
        return lambda step: rate * min(1.0, 0.01 + 0.99 * (1 - step / steps) / (1 - start))

    def warm_falling(steps: int, rate: float = second) -> Callable[[int], float]:
        fall = falling(rate, steps, 0.0)
        return lambda step: fall(step) * min(1.0, (step + 1) / config.warmup_steps)

    def many(*kinds: tuple[Callable[[random.Random], Example], int]) -> Callable[[random.Random], Batches]:
        return lambda rng: [[draw(rng) for _ in range(count)] for draw, count in kinds]

    repeat_few = partial(skills.repeat, words=few, ambiguous=0.0)
    repeat_all = partial(skills.repeat, ambiguous=0.0)
    shuffled, short = partial(skills.read, in_order=False), partial(skills.direct, most=2)
    return (
        Stage("few_words", config.few_words_steps, warm, many((repeat_few, 32)), (1.0,)),
        Stage(
            "all_words", config.all_words_steps, lambda _: peak, many((repeat_all, 24), (skills.copy, 12)), (0.5, 0.5)
        ),
        Stage(
            "ambiguous",
            config.ambiguous_steps,
            lambda _: peak,
            many((skills.repeat, 24), (skills.copy, 24)),
            (0.5, 0.5),
            until=(config.ambiguous_repeat_loss, config.ambiguous_copy_loss),
        ),
        Stage(
            "mixture",
            config.mixture_steps,
            falling(peak, config.mixture_steps, 0.4),
            many((shuffled, 20), (skills.copy, 10), (skills.answer, 16), (short, 20), (skills.repeat, 8)),
            (0.2,) * 5,
        ),
        Stage(
            "polish",
            config.polish_steps,
            warm_falling(config.polish_steps),
            many((skills.read, 40), (skills.copy, 8), (skills.answer, 16), (skills.direct, 4)),
            (3 / 6, 1 / 6, 1 / 6, 1 / 6),
            fresh_optimizer=True,
        ),
        Stage(
            "focus",
            config.focus_steps,
            warm_falling(config.focus_steps),
            many((skills.read, 32), (short, 24), (skills.answer, 12), (skills.copy, 6)),
            (2 / 6, 2 / 6, 1 / 6, 1 / 6),
            fresh_optimizer=True,
        ),
        Stage(
            "none",
            config.none_steps,
            warm_falling(config.none_steps, config.none_learning_rate),
            many((skills.read_or_none, 20), (skills.copy, 3), (skills.answer, 5), (short, 3)),
            (0.6, 0.1, 0.2, 0.1),
            fresh_optimizer=True,
        ),
        Stage(
            "about",
            config.about_steps,
            warm_falling(config.about_steps, config.none_learning_rate),
            many((skills.read_or_none, 20), (skills.copy, 3), (skills.answer_long, 6), (short, 3), (skills.about, 12)),
            (0.6, 0.1, 0.2, 0.1, 0.3),
            fresh_optimizer=True,
        ),
    )


def train_base_model(
    folder: Path, config: BaseModelConfig, on_step: Callable[[int, str, list[float]], None] | None = None
) -> dict[str, Any]:
    """Train, write the Hugging Face folder with `training.json` beside the weights, return its content.

    `not_learnt` in it are the stages that used up their steps before their losses were where they should be.
    """
    from transformers.utils.logging import disable_progress_bar

    set_threads(1)  # the number decides the last bits: one is the same everywhere
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer(folder, config.vocab_size)
    skills = Skills(Codec.load(folder))
    model = new_model(config)
    started = time.monotonic()
    done, not_learnt = 0, list[str]()
    optimizer = _optimizer(model, config)
    for stage in stages(skills, config):
        if stage.fresh_optimizer:
            optimizer = _optimizer(model, config)
        seen: list[list[float]] = []
        while not stage.ended(seen):
            seen.append(_step(model, optimizer, stage, config, len(seen)))
            if on_step is not None:
                on_step(done + len(seen) - 1, stage.name, seen[-1])
        done += len(seen)
        if not stage.learnt(seen):
            not_learnt.append(stage.name)
    disable_progress_bar()
    model.save_pretrained(str(folder))
    report = {
        "config": asdict(config),
        "steps": done,
        "not_learnt": not_learnt,
        "wall_s": round(time.monotonic() - started),
        "threads": torch.get_num_threads(),
    }
    (folder / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _optimizer(model: Any, config: BaseModelConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=config.weight_decay)


def _step(
    model: Any, optimizer: torch.optim.Optimizer, stage: Stage, config: BaseModelConfig, step: int
) -> list[float]:
    """The negative log-likelihood of each batch, in nats a token."""
    for group in optimizer.param_groups:
        group["lr"] = stage.learning_rate(step)
    seen = []
    batches = stage.draw(keyed_random(config.seed, "base-model", stage.name, step))
    for batch, weight in zip(batches, stage.weights, strict=True):
        likelihood, choice = losses(model, batch)
        loss = likelihood if choice is None else likelihood + config.choice_weight * choice
        (loss * weight).backward()
        seen.append(likelihood.item())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return seen


# ---- What a base model can do, measured by sampling it on held-out examples of the skills it was taught ------


EXAMPLES = 512


def skill_figures(path: str, seed: int = 0, count: int = EXAMPLES) -> dict[str, float]:
    """The figures of the model in folder `path`, each over `count` examples."""
    engine = open_engine(RunConfig(model=ModelConfig(path=path)), objective=None)
    skills = Skills(engine.codec)

    def sample(draw: Callable[[random.Random], Example], temperature: float) -> list[tuple[Example, Completion]]:
        rng = keyed_random(seed, "skill-figures", draw.__name__)
        examples = [draw(rng) for _ in range(count)]
        return list(zip(examples, asyncio.run(_complete(engine, examples, temperature, seed)), strict=True))

    def right(draw: Callable[[random.Random], Example]) -> float:
        pairs = sample(draw, 0.0)
        return sum(c.token_ids == tuple(e.completion_ids) for e, c in pairs) / len(pairs)

    return {
        "copy_fidelity_sampled": _fidelity(engine, sample(skills.read, 1.0)),
        "copy_fidelity_greedy": _fidelity(engine, sample(skills.read, 0.0)),
        "answer_accuracy": right(skills.answer),
        "direct_accuracy": right(skills.direct),
    }


async def _complete(engine: Engine, examples: Sequence[Example], temperature: float, seed: int) -> list[Completion]:
    async def one(index: int, example: Example) -> Completion:
        params = SamplingParams(
            max_tokens=32, temperature=temperature, stop_ids=engine.codec.stop_ids, seed=derive_seed(seed, index)
        )
        return await engine.sampler.generate(list(example.prompt_ids), params)

    return await asyncio.gather(*(one(i, e) for i, e in enumerate(examples)))


def _fidelity(engine: Engine, pairs: Sequence[tuple[Example, Completion]]) -> float:
    texts, reads = Texts(engine.codec), []
    nothing = tuple(engine.codec.encode(SHORT.empty_memory))
    for example, completion in pairs:
        if completion.token_ids[: len(nothing)] == nothing:
            continue
        turn = Turn(tuple(example.prompt_ids), completion, 0, "read", spans=spans_of(example.prompt_ids))
        reads += readings(Trajectory("", "", 0, (turn,), Outcome.ANSWERED), texts)
    return copy_fidelity(reads) or 0.0


# ---- The base model inside the package, trained from scratch into a folder -----------------------------------


def make_base_model(out: Path, *, seed: int, force: bool, progress: Progress) -> None:
    """Train the embedded base model; `out` appears whole, or not at all."""
    if out.exists() and any(out.iterdir()) and not force:
        raise RunError(f"{out} is not empty: give another --out, or --force to move it aside")
    if out.exists():
        refuse_moving(out, whole=False)
    out = out.absolute()
    aside = files.hidden_folder(out)
    try:
        report = _made(aside, BaseModelConfig(seed=seed), progress)
        if out.exists() and any(out.iterdir()):
            progress.message(f"{out}: what it held is now {files.set_aside(out)}")
        files.publish_folder(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    progress.message(f"{out}: {report['steps']} steps in {report['wall_s']} s")
    for stage in report["not_learnt"]:
        progress.message(f"stage {stage} was at its limit of steps before it was learnt: another --seed may do better")
    progress.message(", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in report["figures"].items()))


def _made(folder: Path, config: BaseModelConfig, progress: Progress) -> dict[str, Any]:
    """The model in `folder`, with the report of its training."""
    with progress.count("base model", config.total_steps) as tick:
        report = train_base_model(
            folder,
            config,
            lambda _, stage, losses: tick(note=f"{stage}, loss " + " ".join(f"{loss:.3f}" for loss in losses)),
        )
    report["figures"] = skill_figures(str(folder))
    (folder / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    return report
