"""Scripted episodes as SFT examples: reading of problems that name their evidence, and an agent with tools.

Examples of files are episodes on problems that name their evidence (`metadata.supporting_sentences` of HotpotQA's
layout, otherwise `metadata.evidence`). A scripted reader adds each piece of evidence that its section contains to the
memory. If there is none, the memory stays: an empty reply, if the policy then keeps it, otherwise a copy. It answers
with the gold if the memory contains all evidence, or a gold (not for lists, counts, contradictions), else "unknown".

Tool examples are episodes. The script knows the positions of the answers (`plan` in
data/synthetic/search_problems.py), but not which facts to retain or when:

    search    the objectives in order, each under the name in its question
    prune     in one reply with the next search, from a fill of the context drawn per episode, and occasionally before;
              deletes the last memory and most results in the prompt, writes each needed fact in the prompt with
              probability `KEEPS`, under the name of its question, occasionally another fact, and the next search
    answer    notes of facts in the prompt, and the answers from them; "unknown" for lost ones

An agent that edits (memory/edit.py) uses any of its verbs instead of the prune, on random blocks, from a fill of
`EDIT_FILL`:

    merge, compact   a memory as above; merge names the earlier notes and most results
    keep             one fact of each chosen result, a needed one with probability `KEEPS`
    note             one fact of a result
    drop             random results

The policy or a baseline runs the episode, so that the prompts are those of training. The baselines use no memory
action and the model's whole window, or summaries. Outcomes are not checked.

Examples of a lead and its readers are episodes on synthetic documents. The script knows neither the right name
nor when to stop:

    query     any name of the question, or a sentence of a result and the name that it ends with, mostly a new one;
              another with probability `ASKS_ON`; without the sentence in formats that admit no text before a call
    reader    all sentences of its section about that name, in order; "NAME none" without any (a copy after the name
              is easier to learn than a decision before it)
    answer    the evidence in the prompt, in its order, and the answer, if all of it is there; otherwise "unknown"

Guaranteed: an example is a pure function of (seed, index), the policy and the problem.
Not covered: queries of a recalling policy; tool examples on problems without a plan.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any

from palimpsest.config.data import SearchDataConfig, Task
from palimpsest.data.synthetic.documents import make_problem
from palimpsest.data.synthetic.search_problems import SearchStep, SyntheticSearchSource, plan
from palimpsest.data.synthetic.world import PEOPLE
from palimpsest.errors import DataError
from palimpsest.events import Event, What, as_event
from palimpsest.memory.edit import EditPolicy
from palimpsest.memory.lead import LeadPolicy
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.policy import Answered, MemoryPolicy, Model, Teachable
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.tool_baselines import SummaryPolicy
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec
from palimpsest.text.sentences import sentences
from palimpsest.text.tool_calls import calls_text, find_calls
from palimpsest.training.supervised.lessons import UNKNOWN, taught_by
from palimpsest.types import Completion, Problem, StopReason, Trajectory, Turn, spans_of


@dataclass
class Script(Model):
    """The `memory.policy.Model` of one scripted episode of `policy`."""

    codec: Codec
    problem: Problem
    policy: MemoryPolicy
    turns: list[Turn] = field(default_factory=list, init=False)
    events: list[Event] = field(default_factory=list, init=False)
    max_context: int = field(default=1 << 30, init=False)
    prepared: Any = field(default=None, init=False)

    def played(self, index: int) -> Trajectory:
        self.prepared = self.policy.prepare(self.problem, self.codec)
        with ThreadPoolExecutor(1) as thread:  # for callers inside an event loop
            ended = thread.submit(asyncio.run, self._run()).result()
        turns, events = tuple(self.turns), tuple(self.events)
        return Trajectory(self.problem.id, f"lesson-{index}", 0, turns, ended.outcome, ended.text, events)

    async def _run(self) -> Answered:
        try:
            return await self.policy.run(self.problem, self)
        finally:
            if self.environment is not None:
                await self.environment.close()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        name: str,
        max_tokens: int,
        role: str | None = None,
        ahead: Any = None,
        **notes: Any,
    ) -> Completion:
        """Record and return the script's reply, cut at `max_tokens`."""
        ids = [*self.reply(prompt_ids, name, notes), self.codec.tokenizer.eos_token_id]
        reason = StopReason.STOP if len(ids) <= max_tokens else StopReason.LENGTH
        ids = ids[:max_tokens]
        completion = Completion(tuple(ids), (0.0,) * len(ids), reason, turn=len(self.turns))
        self.turns.append(Turn(tuple(prompt_ids), completion, len(self.turns), name, notes, spans_of(prompt_ids)))
        return completion

    def reply(self, prompt_ids: Sequence[int], name: str, notes: Mapping[str, Any]) -> list[int]:
        """The ids of a reply, without the stop token."""
        raise NotImplementedError

    def event(self, what: What | str, /, *, turn: int | None = None, **detail: Any) -> None:
        self.events.append(Event(as_event(what, detail), len(self.turns) if turn is None else turn + 1))


class EvidenceLessons:
    """Scripted episodes on problems that name their evidence."""

    def __init__(self, policy: MemoryPolicy, codec: Codec, problem: Callable[[int], Problem]) -> None:
        """`problem`: the problem of an example's number. Raises ConfigError for a policy without `teachable()`."""
        self.policy, self.codec, self.problem = policy, codec, problem
        self.taught = taught_by(policy)

    def draw(self, index: int) -> Trajectory:
        """Raises DataError for a problem without evidence."""
        return Reader(self.codec, self.problem(index), self.policy, self.taught).played(index)


@dataclass
class Reader(Script):
    """Saves the evidence it reads, and answers from it."""

    taught: Teachable

    def __post_init__(self) -> None:
        metadata = self.problem.metadata
        named = metadata.get("supporting_sentences") or metadata.get("evidence")
        if not named:
            raise DataError(
                f"problem {self.problem.id}: names no evidence, so no example can be made of it; add texts of its "
                "context as metadata.evidence, or use a set with supporting facts, such as HotpotQA"
            )
        self.pieces = [self._short(text) for text in named]
        self.keeps = self.taught.may_keep or getattr(self.policy, "grounded", "off") != "off"

    def reply(self, prompt_ids: Sequence[int], name: str, notes: Mapping[str, Any]) -> list[int]:
        spans = spans_of(prompt_ids)
        memory = self.codec.decode(prompt_ids[slice(*spans["memory"])])
        if name != "read":
            return self.codec.encode(self._answer(memory, notes))
        section = self.codec.decode(prompt_ids[slice(*spans["section"])])
        found = [piece for piece in self.pieces if piece in section and piece not in memory]
        kept = [piece for piece in self.pieces if piece in memory]
        written = self._fitting([*kept, *found]) if found else [] if self.keeps else self.codec.encode(memory)
        return self.taught.reply(self.codec, written)

    def _answer(self, memory: str, notes: Mapping[str, Any]) -> str:
        golds = self.problem.by_question[notes.get("question", 0)].answers
        whole = self.problem.metadata.get("task") in ("list", "count", "contradiction")  # in no single piece
        known = all(piece in memory for piece in self.pieces) or (not whole and any(gold in memory for gold in golds))
        answer = (", ".join(golds) if "every_gold" in self.problem.grading else golds[0]) if known else UNKNOWN
        marked = "FINAL_ANSWER:" in getattr(self.taught.texts, "answer", "")
        return f"FINAL_ANSWER: {answer}" if marked else f"\\boxed{{{answer}}}"

    def _short(self, text: str) -> str:
        """`text`, or its sentence that contains a gold, or its first one, if the memory has no room for all of it."""
        if len(self.codec.encode(text)) < self.taught.memory_tokens:
            return text
        parts = sentences(text)
        return next((part for part in parts if any(gold in part for gold in self.problem.answers)), parts[0])

    def _fitting(self, pieces: Sequence[str]) -> list[int]:
        ids = list[int]()
        for end in range(1, len(pieces) + 1):
            joined = self.codec.encode(" ".join(pieces[:end]))
            if len(joined) >= self.taught.memory_tokens:
                break
            ids = joined
        return ids


# ---- SFT examples for an agent with tools --------------------------------------------------------------------


KEEPS = 0.8  # probability of writing a needed fact
KEEPS_OTHER = 0.2  # probability of writing one other fact too
DELETES = 0.9  # probability of deleting a result
FILL = (0.45, 0.6)  # range of the filled share of the context at which an example prunes
EDIT_FILL = (0.3, 0.6)  # the same for edits
EARLY = 0.08  # probability of an unnecessary prune per turn
PLAIN = 0.2  # share of episodes without the memory action
MOST_KEPT = 3
_NOTES = ("prune_context", "note", "merge", "compact")
SUMMARY = 0.1  # share of episodes that sum up instead

_SENTENCE = re.compile(r"[^.:\n]+\.")
_PEOPLE = frozenset(PEOPLE)


class ToolLessons:
    """Draws SFT examples for one policy, one codec and a model of `window` tokens."""

    def __init__(self, policy: ToolAgentPolicy, codec: Codec, data: SearchDataConfig, seed: int, window: int) -> None:
        self.policy, self.codec, self.seed, self.window = policy, codec, seed, window
        self.source = SyntheticSearchSource(data, seed, "lessons")

    def draw(self, index: int) -> Trajectory:
        rng = keyed_random(self.seed, "tool lesson", index)
        (problem,) = self.source.problems(step=index, count=1)
        policy = self._variant(rng)
        return Teacher(self.codec, problem, policy, rng).played(index)

    def _variant(self, rng: random.Random) -> ToolAgentPolicy:
        draw = rng.random()
        if not isinstance(self.policy, PrunePolicy) or draw >= PLAIN + SUMMARY:
            return self.policy
        if draw < PLAIN:
            return replace(self.policy, prune=False, context_tokens=max(self.policy.context_tokens, self.window))
        if not isinstance(self.policy.prompts, str):
            return self.policy  # custom prompts for pruning do not cover summaries
        shared = {one.name: getattr(self.policy, one.name) for one in fields(ToolAgentPolicy) if one.init}
        return SummaryPolicy(**shared, summary_tokens=self.policy.turn_tokens)


@dataclass
class Teacher(Script):
    """The `memory.policy.Model` of one scripted episode with tools."""

    policy: ToolAgentPolicy
    rng: random.Random

    def __post_init__(self) -> None:
        self.max_context = self.policy.context_tokens
        edits = isinstance(self.policy, EditPolicy)
        self.fill = self.rng.uniform(*(EDIT_FILL if edits else FILL)) * self.policy.context_tokens
        self.searched = 0
        self.kinds: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Read the problem."""
        self.steps = list(plan(self.problem).steps)

    def reply(self, prompt_ids: Sequence[int], name: str, notes: Mapping[str, Any]) -> list[int]:
        text = self.codec.decode(prompt_ids)
        if name == "summarise":
            return self.codec.encode(self._summary(text))
        return self.codec.encode_trusted(self._act(text, len(prompt_ids)))  # calls may consist of control tokens

    def _act(self, text: str, length: int) -> str:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        self.searched -= self._taken_back(text)
        if self.searched < len(self.steps):
            in_sight = self._in_sight(text, "search")
            verbs = self._verbs()
            if in_sight and verbs and (length > self.fill or self.rng.random() < EARLY):
                calls += self._edit(self.rng.choice(verbs), in_sight, text)
            calls.append(("search", {"query": f" {self.steps[self.searched].query}"}))
            self.searched += 1
            self.kinds += [name for name, _ in calls]
            return calls_text(calls, self.policy.style(self.codec))
        return self._answer(text)

    def _taken_back(self, text: str) -> bool:
        """Whether the latest search found no room, so that it has to be made again."""
        if not (isinstance(self.policy, EditPolicy) and self.kinds):
            return False
        latest = self.policy.result_id(self.problem, len(self.kinds) - 1)
        return self.policy.shown(latest, self.policy.texts.rolled_back) in text

    def _verbs(self) -> Sequence[str]:
        if isinstance(self.policy, EditPolicy):
            return self.policy.verbs
        return ("prune_context",) if getattr(self.policy, "prune", False) else ()

    def _edit(self, verb: str, results: list[str], text: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The calls of one change of the context; `results`: those of searches in the prompt."""
        if verb == "compact":
            return [(verb, {"text": self._memory(text)})]
        chosen = [one for one in results if self.rng.random() < DELETES] or results[:1]
        if verb == "keep":
            facts = {one: fact for one in chosen[:MOST_KEPT] if (fact := self._fact(one, text))}
            return [(verb, {"block": one, "text": fact}) for one, fact in facts.items()]
        if verb == "note":
            return [(verb, {"text": fact})] if (fact := self._fact(self.rng.choice(results), text)) else []
        if verb == "drop":
            return [(verb, {"blocks": [self.rng.choice(results)]})]
        named = [*self._in_sight(text, *_NOTES), *chosen]
        memory = self._memory(text)
        return [
            (verb, {"blocks": named, "text": memory} if verb == "merge" else {"memory": memory, "delete_ids": named})
        ]

    def _fact(self, result: str, text: str) -> str | None:
        """A fact of a result, a needed one with probability `KEEPS`; None if it has none."""
        shown = text.split(self.policy.shown(result, ""), 1)[1].split("[", 1)[0]
        needed = [f" {step.fact}" for step in self.steps if step.fact in shown]
        if needed and self.rng.random() < KEEPS:
            return needed[0]
        facts = _SENTENCE.findall(shown)
        return f" {self.rng.choice(facts).strip()}" if facts else None

    def _in_sight(self, text: str, *kinds: str) -> list[str]:
        made = (self.policy.result_id(self.problem, number) for number, one in enumerate(self.kinds) if one in kinds)
        return [one for one in made if self.policy.shown(one, "") in text]

    def _summary(self, text: str) -> str:
        """A memory. Results of the last search did not fit: the script searches again."""
        self.searched = max((self.steps.index(step) + 1 for step in self._visible_steps(text)), default=0)
        return self._memory(text)

    def _memory(self, text: str) -> str:
        """Notes of facts in the prompt: most needed ones, sometimes another; last, the next search."""
        noted = [step for step in self._visible_steps(text) if self.rng.random() < KEEPS]
        notes = [self._note(step) for step in noted]
        if self.rng.random() < KEEPS_OTHER or not noted:
            facts = (
                fact for passage in self.problem.metadata["passages"] for fact in _SENTENCE.findall(passage["text"])
            )
            rest = sorted({one.strip() for one in facts if one.strip() in text} - {s.fact for s in self.steps})
            notes += [f" {fact}" for fact in self.rng.sample(rest, min(1, len(rest)))]
        if self.searched < len(self.steps):
            notes.append(f"{self._name(self.steps[self.searched])} {self.steps[self.searched].query}?")
        return "".join(notes) or f" {UNKNOWN}."

    def _answer(self, text: str) -> str:
        steps = self._visible_steps(text)
        last = {step.objective: step for step in self.steps}
        values = {name: self._value(name) if step in steps else UNKNOWN for name, step in last.items()}
        notes = "".join(self._note(step) for step in steps)
        if len(values) == 1:
            return f"{notes} FINAL_ANSWER: {next(iter(values.values()))}"
        inner = ", ".join(f'"{name}": " {value}"' for name, value in values.items())
        return f"{notes} FINAL_ANSWER: {{{inner}}}"

    def _visible_steps(self, text: str) -> list[SearchStep]:
        return [step for step in self.steps[: self.searched] if step.fact in text]

    def _note(self, step: SearchStep) -> str:
        return f"{self._name(step)} {step.fact}"

    def _name(self, step: SearchStep) -> str:
        return f" {step.objective}" if self.problem.metadata.get("objectives") else ""

    def _value(self, name: str) -> str:
        golds: dict[str, tuple[str, ...]] = {
            objective["name"]: objective["answers"] for objective in self.problem.metadata.get("objectives", ())
        }
        return golds.get(name, self.problem.answers)[0]


# ---- SFT examples for a lead and its readers -----------------------------------------------------------------


ASKS_ON = 0.75  # probability of another query
ASKS_OTHER = 0.8  # probability that it is a name that was not asked for
MOST_SECTIONS = 6
MOST_NEAR_MISSES = 32

_NAME = re.compile(r"\b[A-Z][a-z]+\b")


class LeadLessons:
    """Draws SFT examples for one policy and one codec. `tasks`: families; two hops count twice."""

    def __init__(
        self, policy: LeadPolicy, codec: Codec, seed: int, tasks: Sequence[Task] = ("needle", "two_hops")
    ) -> None:
        self.policy, self.codec, self.seed = policy, codec, seed
        self.tasks = (*tasks, *(task for task in tasks if task == "two_hops"))

    def draw(self, index: int) -> Trajectory:
        rng = keyed_random(self.seed, "lead lesson", index)
        chunks, near_misses = rng.randint(1, MOST_SECTIONS), rng.randint(0, MOST_NEAR_MISSES)
        task = rng.choice(self.tasks)
        problem = make_problem(self.seed, "lessons", index, chunks=chunks, task=task, distractor_facts=near_misses)
        return LeadAndReaders(self.codec, problem, self.policy, rng).played(index)


@dataclass
class LeadAndReaders(Script):
    """The `memory.policy.Model` of one scripted episode of a lead and its readers."""

    policy: LeadPolicy
    rng: random.Random
    queries: list[str] = field(default_factory=list, init=False)

    def reply(self, prompt_ids: Sequence[int], name: str, notes: Mapping[str, Any]) -> list[int]:
        if name == "note":
            spans = spans_of(prompt_ids)
            section, query = (self.codec.decode(prompt_ids[slice(*spans[piece])]) for piece in ("section", "query"))
            said = [one for one in _SENTENCE.findall(section.removeprefix("-")) if one.split()[0] == query.strip()]
            return self.codec.encode("".join(said) or f"{query} none")
        prompt = self.codec.decode(prompt_ids)
        if len(self.queries) < self.policy.max_turns - 1 and (not self.queries or self.rng.random() < ASKS_ON):
            named = {one: "" for one in _NAME.findall(self.problem.question) if one in _PEOPLE}
            for fact in _SENTENCE.findall(prompt) if self.queries else ():
                if (name := fact.rstrip(".").split()[-1]) in _PEOPLE:
                    named.setdefault(name, fact)
            other = [one for one in named if one not in self.queries]
            query = self.rng.choice(other if other and self.rng.random() < ASKS_OTHER else list(named))
            self.queries.append(query)
            style = self.policy.style(self.codec)
            call = calls_text([(self.policy.texts.tool, {"query": f" {query}"})], style)
            reasoned = f"{named[query]}{call}"
            return self.codec.encode_trusted(reasoned if find_calls(reasoned, style) else call)
        held = sorted((fact for fact in self.problem.metadata["evidence"] if fact in prompt), key=prompt.index)
        known = len(held) == len(self.problem.metadata["evidence"])
        notes_text = "".join(f" {fact}" for fact in held) or f" {UNKNOWN}."
        answer = self.problem.gold_text if known else UNKNOWN
        if known and "every_gold" in self.problem.grading:
            answer = ", ".join(sorted(self.problem.answers, key=notes_text.find))
        return self.codec.encode(f"{notes_text} FINAL_ANSWER: {answer}")
