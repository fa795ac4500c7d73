"""Tokens of a training step, from the configuration and samples of its problems.

An episode is a list of rows, each a prompt and its reply. A prefix that rollouts of a group share, because it comes
before all replies or after equal ones, is computed once per micro-batch (docs/explanation/prefix-forest.md).

Guaranteed: readers (`overwrite`, `recall`) follow their prompts and budgets; lengths are those of samples and of the
model's tokenizer where both are on disk; other assumptions are listed.
Not covered: `train.variant`; custom policies, which count as one reply to the whole document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import orjson

from palimpsest.config.data import GENERATED, listed
from palimpsest.config.engine import named
from palimpsest.config.schema import RunConfig, is_served
from palimpsest.data.sources.file_source import build_source
from palimpsest.memory.lead import LeadPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.parallel import ParallelPolicy
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.recall import RecallPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.planning.model_shape import ModelShape
from palimpsest.text.codec import Codec
from palimpsest.types import Problem

SAMPLE = 16  # problems
CHARACTERS = 4.4  # of English per token, in vocabularies of 50,000 to 150,000
CHAT = 8  # tokens of a chat template and of the prompt's end after its last slot
QUESTION = 30  # tokens, where the file is not here
REPLY, ANSWER = 0.65, 300
"""Sampled share of a reply's budget (0.6 to 0.7 in the quickstarts that read), and the longest usual answer turn."""
CALL_SHARE, CALL, FILLED, PEAK, PRUNES = 0.3, 400, 0.5, 0.75, 0.4
"""Agents with tools: sampled share of `turn_tokens` and longest usual reply; mean and last prompt of a segment per
`context_tokens`; prunes per turn. The shares are memact-quickstart's."""
HOPS = 2
"""Turns per question of a file: two documents. memact-7b then reads 102,000 tokens for 5 questions; its paper reports
82,000 to 120,000."""
ENTROPY, RECALL_ENTROPY, TOOL_ENTROPY = 0.3, 0.16, 0.04
"""Nats per token of a memory or answer, of one with recall, and of an agent with tools, as in the quickstarts."""
SIGNAL = 0.7
"""Share of groups whose binary rewards differ (0.58 to 1 in memagent-quickstart)."""
PUBLISHED = {"docqa_rl_60k.jsonl": (56_000, 1), "wiki_train_multi_object_2_3.parquet": (0, 2.5)}
"""Tokens of a document and questions per problem of files that are not here."""
PARAGRAPH = 140  # tokens of a paragraph of HotpotQA
HOTPOT = (200 * PARAGRAPH, 1)  # the same of others: 200 paragraphs, as hotpotqa_train_32k.parquet has


@dataclass(frozen=True, slots=True)
class ProblemSizes:
    """Mean sizes of a problem, in tokens. `chunks`: sections that the policy reads; `literals`: prompts without their
    slots, of a read turn (or a tool agent's opening) and of an answer turn."""

    question: float
    document: float
    chunks: int
    questions: float
    hops: int
    literals: tuple[float, float]
    assumed: tuple[str, ...] = ()


class PlannedRow(NamedTuple):
    """Mean tokens of one row of an episode: of the prompt, `shared` in all rollouts of the group and `own`, and of the
    reply, with its entropy in nats."""

    shared: float
    own: float
    sampled: float
    nats: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens of a step over all rollouts: `prompt` counts prefixes per turn, `computed_prompt` what a sampler with a
    prefix cache computes, `logical` all of trained rows, `distinct` what the learner computes of them."""

    episodes: float
    """Played ones, those of replaced groups included."""
    prompt: float
    computed_prompt: float
    sampled: float
    rows: float
    """Number of trained rows."""
    logical: float
    distinct: float
    trained: float
    """Tokens with a gradient."""
    context: float
    """Mean tokens that a sampled token attends to."""


def different(count: float, nats: float) -> float:
    """Expected different texts among `count` samples of a distribution with perplexity exp(nats).

    >>> different(16, 0), round(different(16, 1.7), 1), different(16, 100)
    (1.0, 5.3, 16)
    """
    texts = math.exp(min(nats, 20))
    return count if nats > 20 else texts * (1 - (1 - 1 / texts) ** count) if texts > 1 else 1.0


def places(rows: Sequence[PlannedRow], group: float, micro: float = math.inf) -> tuple[float, float]:
    """Tokens of prompts and of replies that a forest of a group computes, in micro-batches of `micro` tokens.

    Two rollouts with the prompt 1 2 3 and different replies of 2; with room for one row, the prompt is computed twice:

    >>> places([PlannedRow(3, 0, 2, nats=50)], 2), places([PlannedRow(3, 0, 2, nats=50)], 2, micro=5)
    ((3.0, 4.0), (6.0, 4.0))
    """
    prompts, replies, nats = 0.0, 0.0, 0.0
    for row in rows:
        own = different(group, nats) * row.own
        reply = different(group, nats + row.nats / 2) * row.sampled
        nats += row.nats
        forests = math.ceil((own + reply) / max(micro - row.shared, row.own + row.sampled, 1))
        prompts, replies = prompts + max(1, forests) * row.shared + own, replies + reply
    return prompts, replies


def workload(config: RunConfig, sizes: ProblemSizes, shape: ModelShape | None = None) -> Workload:
    """Tokens of a step of `config` on problems of `sizes`. `shape`: the model's, None: its class shares prefixes."""
    policy, group = build_policy(config.policy), config.train.group_size
    elsewhere = any(role.url for role in config.roles.values())
    rows, turns, prompt = _episode(policy, sizes, readers=not elsewhere)
    played, learnt = _groups(config)
    trained = learnt * min(group * len(rows), config.credit.segments_per_group or math.inf) / len(rows)  # episodes
    sampled = sum(row.sampled for row in rows)
    logical = sampled + sum(row.shared + row.own for row in rows)
    apart = config.learner.layout == "segments" or (shape is not None and shape.apart)
    alone = shape is not None and shape.state > 0 and not is_served(config, "policy")  # states can't be copied
    engine: Any = config.engine
    forest = sum(places(rows, group, engine.micro_batch_tokens)) / group
    return Workload(
        episodes=played * group,
        prompt=played * group * prompt,
        computed_prompt=played * (group * prompt if alone else min(places(rows, group)[0], group * prompt)),
        sampled=played * group * sampled,
        rows=trained * len(rows),
        logical=trained * logical,
        distinct=trained * (logical if apart else forest),
        trained=trained * sampled,
        context=(prompt + sampled / 2) / turns,
    )


def _groups(config: RunConfig) -> tuple[float, float]:
    """Groups that a step plays, and those that the learner computes: all with a KL term, otherwise those whose rewards
    differ."""
    batch, reward, refill = config.train.batch_size, config.reward, config.credit.dynamic_sampling
    parts = reward.rewards_turns or (reward.final_answer is not None and reward.final_answer.objectives == "each")
    binary = reward.name in ("boxed", "boxed_strict", "final_answer") and not parts
    silent, rounds = 1 - SIGNAL if binary else 0.0, 1 + (refill.max_refills if refill else 0)
    learnt = batch if config.loss.kl_loss_coef > 0 and not refill else batch * (1 - silent**rounds)
    return batch * sum(silent**round for round in range(rounds)), learnt


def _episode(policy: MemoryPolicy, sizes: ProblemSizes, readers: bool = True) -> tuple[list[PlannedRow], float, float]:
    """Rows of an episode, its turns, and the sum of its prompts. `readers`: include those of a lead."""
    literal, answer = sizes.literals
    if isinstance(policy, ToolAgentPolicy):  # a segment ends with a prune; prompts grow from the opening to PEAK
        turns = min(policy.max_turns, max(1.0, sizes.hops * sizes.questions))
        segments = 1 + int(PRUNES * turns) if isinstance(policy, PrunePolicy) and policy.prune else 1
        reply = turns * min(CALL, CALL_SHARE * policy.turn_tokens) / segments
        opening, limit = literal + sizes.question, policy.context_tokens
        segment = PlannedRow(opening, max(0.0, PEAK * limit - opening - reply), reply, TOOL_ENTROPY * reply)
        times = policy.readings if readers and isinstance(policy, LeadPolicy) else 0
        prompts = turns * FILLED * limit + times * sizes.document
        return [segment] * segments, turns + times * sizes.chunks, prompts
    rows = [PlannedRow(literal + sizes.question + sizes.document, 0, ANSWER, ENTROPY * ANSWER)]
    if isinstance(policy, OverwritePolicy):  # a row per section and question; in the first prompt the memory is empty
        reply, memory = REPLY * policy.written_tokens, REPLY * min(policy.memory_tokens, policy.written_tokens)
        recalls = isinstance(policy, RecallPolicy)
        entropy = RECALL_ENTROPY if recalls else ENTROPY
        answered, nats = min(ANSWER, REPLY * policy.answer_tokens), entropy * memory
        memory *= 1.5 if recalls else 1  # half of the turns recall another memory
        section = min(sizes.document / sizes.chunks, policy.chunk_size)
        first, opening = policy.layout == "section_first", literal - CHAT + sizes.question
        later = PlannedRow(opening + first * section, memory + CHAT + (not first) * section, reply, nats)
        last = PlannedRow(answer - CHAT + sizes.question, memory + CHAT, answered, entropy * answered)
        rows = [PlannedRow(opening + CHAT + section, 0, reply, nats), *[later] * (sizes.chunks - 1)]
        if isinstance(policy, ParallelPolicy):  # most episodes end with the second pass, which merges nothing
            again = sizes.chunks * (policy.readings - 1)
            rows = [*[rows[0]] * sizes.chunks, *[later] * (again + 1)]
        rows += [last] * max(1, round(sizes.questions))
    return rows, len(rows), sum(row.shared + row.own for row in rows)


# ---- Sizes of problems -------------------------------------------------------------------------------------------


def problem_sizes(config: RunConfig, chunks: int | None = None) -> ProblemSizes:
    """Sizes of the problems of `config`. `chunks`: length of synthetic documents; None: the curriculum's last.

    Raises DataError, ConfigError.
    """
    policy, assumed, folder = build_policy(config.policy), list[str](), Path(named(config.model.path))
    codec = Codec.for_reading(folder) if (folder / "tokenizer.json").is_file() else None
    if codec is None:
        assumed.append(f"{CHARACTERS} characters per token, because the tokenizer of {config.model.path} is not here")
    assumed += [f"roles.{name} has other GPUs, not counted" for name, role in config.roles.items() if role.url]

    def size(text: str) -> int:
        return len(codec.encode(text)) if codec else math.ceil(len(text) / CHARACTERS)

    problems: Sequence[Problem] = ()
    files = [Path(name) for name in listed(config.data.train_files) if name not in GENERATED]
    if missing := [file.name for file in files if not file.exists()]:
        document, questions = PUBLISHED.get(missing[0], HOTPOT)
        document = config.data.documents * PARAGRAPH if config.data.documents else document
        question = QUESTION * questions
        assumed.append(f"{document:,} tokens per document, {questions:g} questions: {missing[0]} is not here")
    else:
        problems = _sample(config, chunks)
        document = round(fmean(size(problem.context or "") for problem in problems))
        questions = fmean(map(_questions, problems))
        question = fmean(size(problem.question) for problem in problems)
    pieces, texts = 1, ["", ""]
    if isinstance(policy, LeadPolicy):
        pieces = max(1, math.ceil(document / policy.chunk_size))
    if isinstance(policy, OverwritePolicy):
        document = min(document, policy.chunk_size * (policy.max_chunks or 10**9))
        pieces = max(1, math.ceil(document / policy.chunk_size))
        if codec and problems:
            pieces = max(1, round(fmean(len(policy.chunks(codec.encode(p.context or ""), codec)) for p in problems)))
        texts = [getattr(policy.texts, name) for name in policy.shown_texts()[:2]]
    elif isinstance(policy, ToolAgentPolicy):
        schemas = [str(spec.function()) for spec in policy.specs] if policy.texts.schemas else []
        texts[0] = "".join([*policy.messages(), *schemas])
    first, last = (size(re.sub(r"\{\w+\}", "", text)) + CHAT for text in texts)
    return ProblemSizes(question, document, pieces, questions, HOPS if files else 1, (first, last), tuple(assumed))


def _sample(config: RunConfig, chunks: int | None) -> Sequence[Problem]:
    data, generated = config.data, config.data.train_files in GENERATED
    if not generated:
        data, chunks = data.model_copy(update={"limit": min(data.limit or SAMPLE, SAMPLE), "val_files": None}), None
    elif data.curriculum:
        chunks = chunks or data.curriculum.chunks[-1]
    source = build_source(data, config.seed, split="train" if generated else "eval")
    return source.problems(step=0, count=SAMPLE, size=chunks)


def _questions(problem: Problem) -> int:
    """Questions of a problem; those of a search problem are the keys of its gold."""
    with suppress(ValueError, IndexError):
        if isinstance(golds := orjson.loads(problem.answers[0]), dict):
            return len(golds)
    return len(problem.by_question)
