"""Lessons for the cold start of an agent with tools: whole episodes that a script plays, mistakes and all.

The script knows where the answers stand (data/search_synthetic.plan), not what is worth keeping or when:

    search    the objectives one after the other, each under the name it asks about
    prune     in one reply with the next search, from a fill of the context drawn for each episode, and now and then
              before; deletes the last memory and most results in sight, writes down each needed fact in sight with
              probability `KEEPS`, under the name of its question, now and then another, and what is searched next
    answer    notes of what still stands in sight, and from them the answers; "unknown" for what was lost

An episode is played by the policy itself, so that the prompts are those of training, or by one that it is compared
with: without its memory action and within the model's whole window, or with summaries. What comes of an episode is
not looked at: half-good ones show the form as well.

Guaranteed: a pure function of (seed, index).
Not covered: problems without a plan.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any

from palimpsest.config.data import SearchDataConfig
from palimpsest.data.search_synthetic import Step, SyntheticSearchSource, plan
from palimpsest.events import Event, What, told
from palimpsest.imitate.skills import UNKNOWN
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.summary import SummaryPolicy
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec
from palimpsest.text.tool_writing import calls_text
from palimpsest.types import Completion, Problem, StopReason, Trajectory, Turn, spans_of

KEEPS = 0.8  # probability that a needed fact in sight is written down
KEEPS_OTHER = 0.2  # probability that one other fact is written down too
DELETES = 0.9  # probability that a result in sight is deleted
FILL = (0.45, 0.6)  # share of the context from which on a lesson prunes, drawn for each
EARLY = 0.08  # probability of a prune in a turn that had no need of one
PLAIN = 0.2  # share of episodes without the memory action
SUMMARY = 0.1  # share of episodes that sum up instead

_SENTENCE = re.compile(r"[^.:\n]+\.")


class ToolLessons:
    """Draws lessons for one policy, one codec and a model of `window` tokens."""

    def __init__(self, policy: ToolAgentPolicy, codec: Codec, data: SearchDataConfig, seed: int, window: int) -> None:
        self.policy, self.codec, self.seed, self.window = policy, codec, seed, window
        self.source = SyntheticSearchSource(data, seed, "lessons")

    def draw(self, index: int) -> Trajectory:
        """Lesson number `index`."""
        rng = keyed_random(self.seed, "tool lesson", index)
        (problem,) = self.source.problems(step=index, count=1)
        policy = self._variant(rng)
        teacher = Teacher(self.codec, policy, problem, rng)
        with ThreadPoolExecutor(1) as thread:  # for callers in an event loop of their own
            ended = thread.submit(asyncio.run, policy.run(problem, teacher)).result()
        return Trajectory(
            problem.id, f"lesson-{index}", 0, tuple(teacher.turns), ended.outcome, ended.text, tuple(teacher.events)
        )

    def _variant(self, rng: random.Random) -> ToolAgentPolicy:
        """The policy itself, or one of those it is compared with."""
        draw = rng.random()
        if not isinstance(self.policy, PrunePolicy) or draw >= PLAIN + SUMMARY:
            return self.policy
        if draw < PLAIN:
            return replace(self.policy, prune=False, context_tokens=max(self.policy.context_tokens, self.window))
        if not isinstance(self.policy.prompts, str):
            return self.policy  # a user's own texts for pruning say nothing of summaries
        shared = {one.name: getattr(self.policy, one.name) for one in fields(ToolAgentPolicy) if one.init}
        return SummaryPolicy(**shared, summary_tokens=self.policy.turn_tokens)


@dataclass
class Teacher:
    """The `memory.policy.Model` of one scripted episode."""

    codec: Codec
    policy: ToolAgentPolicy
    problem: Problem
    rng: random.Random
    prepared: Any = None
    turns: list[Turn] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.max_context = self.policy.context_tokens
        self.fill = self.rng.uniform(*FILL) * self.policy.context_tokens
        self.steps = list(plan(self.problem).steps)
        self.searched = 0
        self.kinds: list[str] = []

    async def generate(self, prompt_ids: Sequence[int], *, name: str, max_tokens: int, **notes: Any) -> Completion:
        """What the script says next."""
        text = self.codec.decode(prompt_ids)
        said = self._summary(text) if name == "summarise" else self._act(text, len(prompt_ids))
        ids = [*self.codec.encode(said), self.codec.tokenizer.eos_token_id]
        reason = StopReason.STOP if len(ids) <= max_tokens else StopReason.LENGTH
        ids = ids[:max_tokens]
        completion = Completion(tuple(ids), (0.0,) * len(ids), reason)
        self.turns.append(Turn(tuple(prompt_ids), completion, len(self.turns), name, notes, spans_of(prompt_ids)))
        return completion

    def event(self, what: What | str, /, **detail: Any) -> None:
        """Record what the policy tells."""
        self.events.append(Event(told(what, detail), len(self.turns)))

    def _act(self, text: str, length: int) -> str:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        if self.searched < len(self.steps):
            found = self._in_sight(text, "search")
            if found and getattr(self.policy, "prune", False) and (length > self.fill or self.rng.random() < EARLY):
                deleted = [one for one in found if self.rng.random() < DELETES] or found[:1]
                superseded = self._in_sight(text, "prune_context")
                arguments = {"memory": self._memory(text), "delete_ids": [*superseded, *deleted]}
                calls.append(("prune_context", arguments))
            calls.append(("search", {"query": f" {self.steps[self.searched].query}"}))
            self.searched += 1
            self.kinds += [name for name, _ in calls]
            return calls_text(calls, self.policy.style(self.codec))
        return self._answer(text)

    def _in_sight(self, text: str, kind: str) -> list[str]:
        """Ids of the results of one tool."""
        made = (self.policy.result_id(self.problem, number) for number, one in enumerate(self.kinds) if one == kind)
        return [one for one in made if self.policy.shown(one, "") in text]

    def _summary(self, text: str) -> str:
        """Its memory. What the last search brought up had no room: it is searched for again."""
        self.searched = max((self.steps.index(step) + 1 for step in self._found(text)), default=0)
        return self._memory(text)

    def _memory(self, text: str) -> str:
        """Notes of facts in sight: most of the needed ones, now and then another; last, what is to be searched next."""
        kept = [step for step in self._found(text) if self.rng.random() < KEEPS]
        notes = [self._note(step) for step in kept]
        if self.rng.random() < KEEPS_OTHER or not kept:
            told = (
                fact for passage in self.problem.metadata["passages"] for fact in _SENTENCE.findall(passage["text"])
            )
            others = sorted({one.strip() for one in told if one.strip() in text} - {step.fact for step in self.steps})
            notes += [f" {fact}" for fact in self.rng.sample(others, min(1, len(others)))]
        if self.searched < len(self.steps):
            notes.append(f"{self._name(self.steps[self.searched])} {self.steps[self.searched].query}?")
        return "".join(notes) or f" {UNKNOWN}."

    def _answer(self, text: str) -> str:
        """Notes of what is in sight, and the answers that stand in them."""
        found = self._found(text)
        last = {step.objective: step for step in self.steps}
        values = {name: self._value(name) if step in found else UNKNOWN for name, step in last.items()}
        said = "".join(self._note(step) for step in found)
        if len(values) == 1:
            return f"{said} FINAL_ANSWER: {next(iter(values.values()))}"
        inner = ", ".join(f'"{name}": " {value}"' for name, value in values.items())
        return f"{said} FINAL_ANSWER: {{{inner}}}"

    def _found(self, text: str) -> list[Step]:
        """The steps so far whose fact is in sight."""
        return [step for step in self.steps[: self.searched] if step.fact in text]

    def _note(self, step: Step) -> str:
        """A fact under the name of its question, if it has one."""
        return f"{self._name(step)} {step.fact}"

    def _name(self, step: Step) -> str:
        return f" {step.objective}" if self.problem.metadata.get("objectives") else ""

    def _value(self, name: str) -> str:
        golds: dict[str, tuple[str, ...]] = {
            objective["name"]: objective["answers"] for objective in self.problem.metadata.get("objectives", ())
        }
        return golds.get(name, self.problem.answers)[0]
