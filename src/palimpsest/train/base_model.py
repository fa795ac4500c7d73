"""Makes the embedded base model from scratch: a small Llama that reads, copies and answers, and keeps nothing.

The recipe behind the model inside the package; `palimpsest base-model --out DIR` repeats it. Data: train/skills.py.
Copying is grown first, from the easiest case, because nothing else is learnt well without it (measured: 2,400 steps
of the plain mixture ended at a copy fidelity of 0.1):

    stage         share    what
    few_words      7 %     repeats over 64 words
    all_words      8 %     repeats over all words, copy
    ambiguous     23 %     repeats in which one word does not tell the next, copy
    mixture       62 %     read, copy, answer, direct, and a few repeats

Without the ambiguous repeats the model copies the value that follows the same verb, whoever the subject is, and
stays at 0.88 of the values; with them and `copy` it finds the subject within 150 steps. Two more stages
polish (facts are written in reading order, so that sampling names somebody who isn't on the page less often) and focus
(answering from one or two paragraphs).

AdamW, constant learning rate to 50 % of the steps, then linear to 1 % of it.

Guaranteed: seeded, so the same machine and thread count give the same weights.
Not covered: bit-equality across machines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palimpsest.seeding import derive_seed, keyed_random
from palimpsest.text.codec import Codec
from palimpsest.train.base_tokenizer import build_tokenizer
from palimpsest.train.skills import Example, Skills


@dataclass(frozen=True, slots=True)
class BaseModelConfig:
    """Size, data and schedule of the embedded model."""

    seed: int = 0
    steps: int = 3000
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
    until: tuple[float, float, float] = (0.07, 0.15, 0.38)
    """Share of the steps at which each of the first three stages ends."""
    polish_steps: int = 1000
    """Further steps, with a fresh optimiser, in which facts are written in reading order."""
    focus_steps: int = 900
    """Further steps, again with a fresh optimiser, that add answering from one or two paragraphs."""
    polish_learning_rate: float = 1.5e-3
    """Of these last two stages."""

    @property
    def total_steps(self) -> int:
        return self.steps + self.polish_steps + self.focus_steps


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


def nll(model: Any, examples: Sequence[Example]) -> Tensor:
    """Mean negative log-likelihood (nats) of the completions' tokens."""
    tokens_B_T, mask_B_T, targets_N = collate(examples)
    hidden_B_T_D = model.model(input_ids=tokens_B_T[:, :-1]).last_hidden_state  # causal: right padding is not seen
    return nn.functional.cross_entropy(model.lm_head(hidden_B_T_D[mask_B_T]), targets_N)


def examples_of(skills: Skills, config: BaseModelConfig, step: int) -> list[list[Example]]:
    """The batches of one step, one for each skill of its stage."""
    rng = keyed_random(config.seed, "base-model", "data", step)
    few = keyed_random(config.seed, "base-model", "words").sample(skills.words, config.few_words)
    progress = step / config.steps
    few_end, all_end, ambiguous_end = config.until
    if progress < few_end:
        return [[skills.repeat(rng, few, ambiguous=0.0) for _ in range(32)]]
    if progress < ambiguous_end:
        ambiguous = 0.5 if progress >= all_end else 0.0
        repeats = [skills.repeat(rng, ambiguous=ambiguous) for _ in range(24)]
        return [repeats, [skills.copy(rng) for _ in range(24 if ambiguous else 12)]]
    return [
        [skills.read(rng, in_order=False) for _ in range(20)],
        [skills.copy(rng) for _ in range(10)],
        [skills.answer(rng) for _ in range(16)],
        [skills.direct(rng, most=2) for _ in range(20)],
        [skills.repeat(rng) for _ in range(8)],
    ]


def polish_examples(skills: Skills, config: BaseModelConfig, step: int) -> list[list[Example]]:
    """The batches of one step of the polish."""
    rng = keyed_random(config.seed, "polish", step)
    kinds = ((skills.read, 40), (skills.copy, 8), (skills.answer, 16), (skills.direct, 4))
    return [[draw(rng) for _ in range(count)] for draw, count in kinds]


def focus_examples(skills: Skills, config: BaseModelConfig, step: int) -> list[list[Example]]:
    """The batches of one step of the last stage."""
    rng = keyed_random(config.seed, "focus", step)
    return [
        [skills.read(rng) for _ in range(32)],
        [skills.direct(rng, most=2) for _ in range(24)],
        [skills.answer(rng) for _ in range(12)],
        [skills.copy(rng) for _ in range(6)],
    ]


@dataclass(frozen=True, slots=True)
class Phase:
    """So many steps of one optimiser."""

    steps: int
    learning_rate: Callable[[int], float]
    examples: Callable[[int], list[list[Example]]]
    weights: Callable[[int], Sequence[float]]
    """Weight of each batch's loss, for so many batches."""


def phases(skills: Skills, config: BaseModelConfig) -> tuple[Phase, ...]:
    """From random weights to the mixture, the polish, the focus."""

    def decaying(steps: int) -> Callable[[int], float]:
        def rate(step: int) -> float:
            warmup = min(1.0, (step + 1) / config.warmup_steps)
            return config.polish_learning_rate * warmup * (0.01 + 0.99 * (1 - step / steps))

        return rate

    return (
        Phase(
            config.steps,
            lambda step: config.learning_rate * _schedule(step, config),
            lambda step: examples_of(skills, config, step),
            lambda count: [1 / count] * count,
        ),
        Phase(
            config.polish_steps,
            decaying(config.polish_steps),
            lambda step: polish_examples(skills, config, step),
            lambda count: [3 / 6, 1 / 6, 1 / 6, 1 / 6],
        ),
        Phase(
            config.focus_steps,
            decaying(config.focus_steps),
            lambda step: focus_examples(skills, config, step),
            lambda count: [2 / 6, 2 / 6, 1 / 6, 1 / 6],
        ),
    )


def train_base_model(
    folder: Path, config: BaseModelConfig, on_step: Callable[[int, dict[str, float]], None] | None = None
) -> dict[str, Any]:
    """Train, write the Hugging Face folder with `training.json` beside the weights, return its content."""
    from transformers.utils.logging import disable_progress_bar

    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer(folder, config.vocab_size)
    skills = Skills(Codec.load(folder))
    model = new_model(config)
    started = time.monotonic()
    done = 0
    for phase in phases(skills, config):
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=config.weight_decay)
        for step in range(phase.steps):
            losses = _step(model, optimizer, phase, step)
            if on_step is not None:
                on_step(done + step, losses)
        done += phase.steps
    disable_progress_bar()
    model.save_pretrained(str(folder))
    report = {
        "config": asdict(config),
        "wall_s": round(time.monotonic() - started),
        "threads": torch.get_num_threads(),
    }
    (folder / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _step(model: Any, optimizer: torch.optim.Optimizer, phase: Phase, step: int) -> dict[str, float]:
    for group in optimizer.param_groups:
        group["lr"] = phase.learning_rate(step)
    losses: dict[str, float] = {}
    batches = phase.examples(step)
    for batch, weight in zip(batches, phase.weights(len(batches)), strict=True):
        loss = nll(model, batch)
        (loss * weight).backward()
        losses[f"loss_{len(losses)}"] = loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return losses


def _schedule(step: int, config: BaseModelConfig) -> float:
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = step / config.steps
    return 1.0 if progress < 0.5 else 0.01 + 0.99 * 2 * (1 - progress)
