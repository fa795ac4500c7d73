"""Lessons for the cold start of an agent with tools: whole episodes that a script plays, mistakes and all.

The script knows where the answers stand (data/search_synthetic.plan), not what is worth keeping or when:

    search    the objectives one after the other, each under the name it asks about
    prune     at a fill of the context drawn for each episode, and now and then before; deletes most results in sight
              and writes down each needed fact in sight with probability `KEEPS`, and now and then another
    answer    what still stands in sight; "unknown" for what was lost

An episode is played by the policy itself, or by a variant of it without its memory action, so that the prompts are
those of training. What comes of an episode is not looked at: half-good ones show the form as well.

Guaranteed: a pure function of (seed, index); a reply calls one tool at the most.
Not covered: problems without a plan.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from palimpsest.config.schema import SearchDataConfig
from palimpsest.data.search_synthetic import SyntheticSearchSource, plan
from palimpsest.memory.policy import Answered
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.summary import SummaryPolicy
from palimpsest.memory.tool_agent import ToolAgentPolicy
from palimpsest.memory.tool_prompts import call_text
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec
from palimpsest.train.skills import UNKNOWN
from palimpsest.types import Completion, Event, Problem, StopReason, Trajectory, Turn

KEEPS = 0.9  # probability that a needed fact in sight is written down
KEEPS_OTHER = 0.1  # the same of any other fact
DELETES = 0.9  # probability that a result in sight is deleted
EARLY = 0.08  # probability of a prune in a turn that had no need of one
PLAIN = 0.25  # share of episodes without the memory action
SUMMARY = 0.15  # share of episodes that sum up instead

_SENTENCE = re.compile(r"[^.:\n]+\.")


class ToolLessons:
    """Draws lessons for one policy and one codec."""

    def __init__(self, policy: ToolAgentPolicy, codec: Codec, data: SearchDataConfig, seed: int) -> None:
        self.policy, self.codec, self.seed = policy, codec, seed
        self.source = SyntheticSearchSource(data, seed, "lessons")

    def trajectories(self, count: int) -> list[Trajectory]:
        """The first `count` lessons."""
        return [self.draw(index) for index in range(count)]

    def draw(self, index: int) -> Trajectory:
        """Lesson number `index`."""
        rng = keyed_random(self.seed, "tool lesson", index)
        (problem,) = self.source.problems(step=index, count=1)
        policy = self._variant(rng)
        teacher = Teacher(self.codec, policy, problem, rng)
        ended = asyncio.run(_play(policy, problem, teacher))
        return Trajectory(
            problem.id, f"lesson-{index}", 0, tuple(teacher.turns), ended.outcome, ended.text, tuple(teacher.events)
        )

    def _variant(self, rng: random.Random) -> ToolAgentPolicy:
        """The policy itself, or one of those it is compared with."""
        draw = rng.random()
        if not isinstance(self.policy, PrunePolicy) or draw >= PLAIN + SUMMARY:
            return self.policy
        if draw < PLAIN:
            return replace(self.policy, prune=False)
        shared = {one.name: getattr(self.policy, one.name) for one in fields(ToolAgentPolicy) if one.init}
        return SummaryPolicy(**shared, summary_tokens=self.policy.turn_tokens)


async def _play(policy: ToolAgentPolicy, problem: Problem, teacher: Teacher) -> Answered:
    return await policy.run(problem, teacher)


@dataclass
class Teacher:
    """The `memory.policy.Model` of one scripted episode."""

    codec: Codec
    policy: ToolAgentPolicy
    problem: Problem
    rng: random.Random
    turns: list[Turn] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.max_context = self.policy.context_tokens
        self.fill = self.rng.uniform(0.45, 0.75) * self.max_context
        self.steps = list(plan(self.problem).steps)
        self.searched = self.results = 0

    async def generate(self, prompt_ids: Sequence[int], *, name: str, max_tokens: int, **notes: Any) -> Completion:
        """What the script says next."""
        text = self.codec.decode(prompt_ids)
        said = self._memory(text) if name == "summarise" else self._act(text, len(prompt_ids))
        ids = [*self.codec.encode(said), self.codec.tokenizer.eos_token_id]
        reason = StopReason.STOP if len(ids) <= max_tokens else StopReason.LENGTH
        ids = ids[:max_tokens]
        completion = Completion(tuple(ids), (0.0,) * len(ids), reason)
        self.turns.append(Turn(tuple(prompt_ids), completion, len(self.turns), name, notes))
        return completion

    def event(self, kind: str, /, **detail: Any) -> None:
        """Record what the policy tells."""
        self.events.append(Event(kind, len(self.turns), detail))

    def _act(self, text: str, length: int) -> str:
        style = self.policy.style(self.codec)
        ids = self._ids_in_sight(text)
        full = length > self.fill
        if ids and getattr(self.policy, "prune", False) and (full or self.rng.random() < EARLY):
            self.results += 1
            deleted = [one for one in ids if self.rng.random() < DELETES] or ids[:1]
            return call_text("prune_context", {"memory": self._memory(text), "delete_ids": deleted}, style)
        if self.searched < len(self.steps):
            step = self.steps[self.searched]
            self.searched += 1
            self.results += 1
            return call_text("search", {"query": f" {step.query}"}, style)
        return self._answer(text)

    def _ids_in_sight(self, text: str) -> list[str]:
        made = (self.policy.result_id(self.problem, number) for number in range(self.results))
        return [one for one in made if self.policy.shown(one, "") in text]

    def _memory(self, text: str) -> str:
        """Facts in sight: most of the needed ones, a few others."""
        needed = [step.fact for step in self.steps if step.fact in text]
        kept = [fact for fact in needed if self.rng.random() < KEEPS]
        told = (
            one.strip() for passage in self.problem.metadata["passages"] for one in _SENTENCE.findall(passage["text"])
        )
        others = [fact for fact in told if fact in text and fact not in needed and self.rng.random() < KEEPS_OTHER]
        kept += others[:1]
        return "".join(f" {fact}" for fact in kept or needed[:1] or [f"{UNKNOWN}."])

    def _answer(self, text: str) -> str:
        """The answers whose facts are in sight."""
        last = {step.objective: step for step in self.steps}
        values = {name: self._value(name) if step.fact in text else UNKNOWN for name, step in last.items()}
        if len(values) == 1:
            return f"FINAL_ANSWER: {next(iter(values.values()))}"
        inner = ", ".join(f'"{name}": " {value}"' for name, value in values.items())
        return f"FINAL_ANSWER: {{{inner}}}"

    def _value(self, name: str) -> str:
        golds = {one["name"]: one["answers"] for one in self.problem.metadata.get("objectives", ())}
        return golds.get(name, self.problem.answers)[0]
