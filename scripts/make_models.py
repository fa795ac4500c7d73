"""Make the base model inside the package from random weights: an hour on one thread.

    python scripts/make_models.py --out my-base-model --seed 0

Data: model_skills.py. Copying comes first, from the easiest case, because other skills need it (2,400 steps of the
plain mixture ended at a copy fidelity of 0.1):

    few_words     repeats over 64 words
    all_words     repeats over all words, copy
    ambiguous     repeats in which one word does not decide the next, copy; until both losses are low
    mixture       read, copy, answer, direct, and a few repeats
    polish        facts are written in reading order, so that sampling hallucinates fewer names
    focus         more answering from one or two paragraphs
    none          reads that write nothing, with or without facts; the loss counts the mass on all possible next
                  sentences, so that fewer start with a hallucinated name
    about         facts about one person, or none; longer memories to answer from

Without the ambiguous repeats the model copies the value after the same verb for any subject, and stays at 0.88 of the
values. With them and `copy` it learns to find the subject, suddenly, at a step that differs between seeds: so this
stage ends by its losses, the others after a number of steps.

AdamW: one for the first four stages, a new one for each later stage. The same machine and thread count produce the same
weights; across machines the last bits differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from model_skills import Example, Skills
from palimpsest.config.schema import ModelConfig, RunConfig
from palimpsest.data.synthetic.world import FILLER, PEOPLE, RELATIONS
from palimpsest.engines.embedded.compute import set_threads
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory import document_baselines, overwrite
from palimpsest.metrics.memory_metrics import copy_fidelity
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.seeding import derive_seed, keyed_random
from palimpsest.text.codec import Codec
from palimpsest.training.supervised.lessons import UNKNOWN
from palimpsest.types import Completion, Outcome, SamplingParams, Trajectory, Turn, spans_of

WINDOW = 50
"""Steps for the average of a stage's losses."""


@dataclass(frozen=True, slots=True)
class BaseModelConfig:
    """Size, data and schedule; losses in nats per token."""

    seed: int = 0
    few_words_steps: int = 210
    all_words_steps: int = 240
    ambiguous_steps: int = 6000  # at most; the stage ends once its losses are below the next two
    ambiguous_repeat_loss: float = 1.25
    ambiguous_copy_loss: float = 1.2  # most of it is the order of the facts, which nothing decides
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
    focus_steps: int = 900
    polish_learning_rate: float = 1.5e-3  # of polish and focus
    none_steps: int = 400
    about_steps: int = 800
    none_learning_rate: float = 1e-3  # of none and about
    choice_weight: float = 2.0  # in none and about, of -log of the mass on all ids right where a sentence starts


# ---- tokenizer ----------------------------------------------------------------------------------------------------

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COMMON = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were her all she there would their we him been has when who will more no if out so said what up its
about into than them can only other new some could time these two may then do first any my now such like our over man
me even most made after also did many before must through back years where much your way well down should because
each just those people how too little state good very make world still own see men work long get here between both
life being under never day same another know while last might us great old year off come since against go came right
used take three film American born known city band album song team season series book company University music
history family school member national United States English British Roman John William James born released located
television actor director writer singer player football county district village river town north south east west"""
FORMATS = (
    "<update> Alice drinks tea.</update>",
    "<recall>Alice</recall>",
    "<think>",
    "</think>",
    '<tool_call>\n{"name": "search", "arguments": {"query": "Alice"}}\n</tool_call>',
    '{"name": "prune_context", "arguments": {"memory": "Alice drinks tea.", "delete_ids": ["a1", "b2"]}}',
    '"memory": "", "delete_ids": []',
    "<tool_response>\n[id: c3] Alice drinks tea.\n</tool_response>",
    "system\n",
    "tool\n",
    "FINAL_ANSWER: tea",
    "FINAL_ANSWER: [",
)
"""Ways in which agents answer, so that tags and calls are few tokens."""


def corpus() -> list[str]:
    """Lines for training the merges; words of the world weigh most."""
    values = [value for relation in RELATIONS for value in relation.values]
    lines: list[str] = []
    for word in dict.fromkeys([*PEOPLE, *values, UNKNOWN]):
        lines += [" " + word] * 40 + [word] * 40
    for relation in RELATIONS:
        texts = (*relation.statements, relation.question, relation.of or "")
        lines += [text.replace("{s}", "").replace("{v}", "") for text in texts] * 100
    prompts = overwrite.SHORT
    shown = [*FILLER, prompts.read, prompts.read_section_first, prompts.answer, document_baselines.SHORT.answer]
    lines += [*shown, "user\n", "assistant\n", " none", *FORMATS] * 100
    return lines + [" " + word for word in COMMON.split()] * 3


def build_tokenizer(folder: Path, vocab_size: int) -> None:
    """Byte-level BPE with GPT-2's word pattern: every name and value of the synthetic world is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(str(folder))


# ---- losses and stages --------------------------------------------------------------------------------------------


def new_model(config: BaseModelConfig) -> Any:
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
    hidden_B_T_D = model.model(input_ids=tokens_B_T[:, :-1]).last_hidden_state  # causal: right padding has no effect
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


Draw = Callable[[random.Random], Example]


@dataclass(frozen=True, slots=True)
class Stage:
    """At most `steps` of the same mixture of skills."""

    name: str
    steps: int
    learning_rate: Callable[[int], float]
    batches: tuple[tuple[Draw, int, float], ...]
    """Skill, examples per step, weight of their loss."""
    until: tuple[float, ...] | None = None
    """Ends once the mean losses of the last WINDOW steps are below these."""
    fresh_optimizer: bool = False

    def learnt(self, losses: Sequence[Sequence[float]]) -> bool:
        """Return whether the means over the last of `losses` [step][batch] are below `until`; True for None."""
        if self.until is None:
            return True
        means = (fmean(column) for column in zip(*losses[-WINDOW:], strict=True))
        return len(losses) >= WINDOW and all(mean < bound for mean, bound in zip(means, self.until, strict=True))

    def ended(self, losses: Sequence[Sequence[float]]) -> bool:
        return len(losses) >= self.steps or (self.until is not None and self.learnt(losses))


def stages(skills: Skills, config: BaseModelConfig) -> tuple[Stage, ...]:
    few = keyed_random(config.seed, "base-model", "words").sample(skills.words, config.few_words)
    peak = config.learning_rate

    def warm(step: int) -> float:
        return min(1.0, (step + 1) / config.warmup_steps)

    def falling(rate: float, steps: int, start: float) -> Callable[[int], float]:
        """Constant up to the share `start` of the steps, then linear to 1 % of it."""
        return lambda step: rate * min(1.0, 0.01 + 0.99 * (1 - step / steps) / (1 - start))

    def fresh(name: str, steps: int, rate: float, *batches: tuple[Draw, int, float]) -> Stage:
        fall = falling(rate, steps, 0.0)
        return Stage(name, steps, lambda step: fall(step) * warm(step), batches, fresh_optimizer=True)

    few_repeats = partial(skills.repeat, words=few, ambiguous=0.0)
    repeats = partial(skills.repeat, ambiguous=0.0)
    shuffled, short = partial(skills.read, in_order=False), partial(skills.direct, most=2)
    copy, answer, read, none = skills.copy, skills.answer, skills.read, skills.read_or_none
    mixed = ((shuffled, 20, 0.2), (copy, 10, 0.2), (answer, 16, 0.2), (short, 20, 0.2), (skills.repeat, 8, 0.2))
    polish, last = config.polish_learning_rate, config.none_learning_rate
    until = (config.ambiguous_repeat_loss, config.ambiguous_copy_loss)
    long = (skills.answer_long, 6, 0.2)
    return (
        Stage("few_words", config.few_words_steps, lambda step: peak * warm(step), ((few_repeats, 32, 1.0),)),
        Stage("all_words", config.all_words_steps, lambda _: peak, ((repeats, 24, 0.5), (copy, 12, 0.5))),
        Stage(
            "ambiguous", config.ambiguous_steps, lambda _: peak, ((skills.repeat, 24, 0.5), (copy, 24, 0.5)), until
        ),
        Stage("mixture", config.mixture_steps, falling(peak, config.mixture_steps, 0.4), mixed),
        fresh(
            "polish", config.polish_steps, polish,
            (read, 40, 3 / 6), (copy, 8, 1 / 6), (answer, 16, 1 / 6), (skills.direct, 4, 1 / 6),
        ),
        fresh(
            "focus", config.focus_steps, polish,
            (read, 32, 2 / 6), (short, 24, 2 / 6), (answer, 12, 1 / 6), (copy, 6, 1 / 6),
        ),
        fresh("none", config.none_steps, last, (none, 20, 0.6), (copy, 3, 0.1), (answer, 5, 0.2), (short, 3, 0.1)),
        fresh(
            "about", config.about_steps, last,
            (none, 20, 0.6), (copy, 3, 0.1), long, (short, 3, 0.1), (skills.about, 12, 0.3),
        ),
    )  # fmt: skip


# ---- training -----------------------------------------------------------------------------------------------------


def train(folder: Path, config: BaseModelConfig) -> dict[str, Any]:
    """Train, write the Hugging Face folder, return the content of its training.json.

    `not_learnt` in it are the stages that used up their steps before their losses were where they should be.
    """
    set_threads(1)  # the number decides the last bits: one is the same everywhere
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer(folder, config.vocab_size)
    skills = Skills(Codec.load(folder))
    model, started = new_model(config), time.monotonic()
    done, not_learnt = 0, list[str]()
    optimizer = new_optimizer(model, config)
    for stage in stages(skills, config):
        if stage.fresh_optimizer:
            optimizer = new_optimizer(model, config)
        seen: list[list[float]] = []
        while not stage.ended(seen):
            seen.append(one_step(model, optimizer, stage, config, len(seen)))
            if len(seen) % WINDOW == 0:
                print(f"{stage.name} {len(seen)}: " + " ".join(f"{loss:.3f}" for loss in seen[-1]), flush=True)
        done += len(seen)
        if not stage.learnt(seen):
            not_learnt.append(stage.name)
    model.save_pretrained(str(folder))
    wall_s = round(time.monotonic() - started)
    return {"config": asdict(config), "steps": done, "not_learnt": not_learnt, "wall_s": wall_s, "threads": 1}


def new_optimizer(model: Any, config: BaseModelConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=config.weight_decay)


def one_step(
    model: Any, optimizer: torch.optim.Optimizer, stage: Stage, config: BaseModelConfig, step: int
) -> list[float]:
    """The negative log-likelihood of each batch, in nats per token."""
    for group in optimizer.param_groups:
        group["lr"] = stage.learning_rate(step)
    rng = keyed_random(config.seed, "base-model", stage.name, step)
    drawn = [([draw(rng) for _ in range(count)], weight) for draw, count, weight in stage.batches]
    seen = []
    for batch, weight in drawn:
        likelihood, choice = losses(model, batch)
        loss = likelihood if choice is None else likelihood + config.choice_weight * choice
        (loss * weight).backward()
        seen.append(likelihood.item())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return seen


# ---- what the model can do, sampled on held-out examples ----------------------------------------------------------


def skill_figures(path: str, count: int = 512) -> dict[str, float]:
    """Figures of the model in folder `path`, each over `count` examples.

    copy_fidelity: share of the sentences written in `read` that occur verbatim in the memory or the section, at
    temperature 1 (as in training) and greedily (as in evaluation); a reply that writes nothing has none.
    Accuracy: share of greedy answers that are exactly the expected ones, "unknown" included.
    """
    engine = open_engine(RunConfig(model=ModelConfig(path=path)), objective=None)
    skills = Skills(engine.codec)

    def sample(draw: Draw, temperature: float) -> list[tuple[Example, Completion]]:
        rng = keyed_random(0, "skill-figures", draw.__name__)
        examples = [draw(rng) for _ in range(count)]
        return list(zip(examples, asyncio.run(complete(engine, examples, temperature)), strict=True))

    def right(draw: Draw) -> float:
        return fmean(c.token_ids == tuple(e.completion_ids) for e, c in sample(draw, 0.0))

    return {
        "copy_fidelity_sampled": fidelity(engine, sample(skills.read, 1.0)),
        "copy_fidelity_greedy": fidelity(engine, sample(skills.read, 0.0)),
        "answer_accuracy": right(skills.answer),
        "direct_accuracy": right(skills.direct),
    }


async def complete(engine: Engine, examples: Sequence[Example], temperature: float) -> list[Completion]:
    async def one(index: int, example: Example) -> Completion:
        stop_ids, seed = engine.codec.stop_ids, derive_seed(0, index)
        params = SamplingParams(max_tokens=32, temperature=temperature, stop_ids=stop_ids, seed=seed)
        return await engine.sampler.generate(list(example.prompt_ids), params)

    return await asyncio.gather(*(one(i, e) for i, e in enumerate(examples)))


def fidelity(engine: Engine, pairs: Sequence[tuple[Example, Completion]]) -> float:
    texts, reads = GroupTexts(engine.codec), []
    nothing = tuple(engine.codec.encode(overwrite.SHORT.empty_memory))
    for example, completion in pairs:
        if completion.token_ids[: len(nothing)] == nothing:
            continue
        turn = Turn(tuple(example.prompt_ids), completion, 0, "read", spans=spans_of(example.prompt_ids))
        reads += readings(Trajectory("", "", 0, (turn,), Outcome.ANSWERED), texts)
    return copy_fidelity(reads) or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the Hugging Face model to")
    parser.add_argument("--seed", type=int, default=0, help="of initialization and data")
    options = parser.parse_args()
    if options.out.exists() and any(options.out.iterdir()):
        sys.exit(f"{options.out} is not empty: give another --out")
    report = train(options.out, BaseModelConfig(seed=options.seed))
    report["figures"] = skill_figures(str(options.out))
    (options.out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({key: report[key] for key in ("steps", "wall_s", "not_learnt", "figures")}, indent=1))


if __name__ == "__main__":
    main()
