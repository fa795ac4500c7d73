"""One episode, to look at: a question and a document, memory by memory, to the answer."""

from __future__ import annotations

import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palimpsest.app.composition import OpenAgent, with_agent
from palimpsest.app.config_resolution import Agent, Recipe, Remote
from palimpsest.app.evaluate.evaluation_data import as_problems
from palimpsest.app.python_calls import Table, blocking
from palimpsest.app.python_objects import CallObjects, as_folder, check_problem, problems_of
from palimpsest.config.load import Overrides
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.file_source import build_source
from palimpsest.errors import ConfigError
from palimpsest.events import DocumentTruncated
from palimpsest.metrics.reading_trace import GroupTexts, memories
from palimpsest.reward.grading import build_reward, closing, graded
from palimpsest.rollout.episode import failure
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Outcome, Problem, Trajectory

_SHOWN = 40  # memories in the repr, at most
_WIDE = 200  # characters of each


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A decoded turn."""

    name: str
    """Purpose of the call: read, answer, act."""
    prompt: str = field(repr=False)
    """Includes control tokens."""
    reply: str


@dataclass(frozen=True)
class Episode:
    """A decoded trajectory."""

    problem: Problem
    trajectory: Trajectory
    """The recorded tokens."""
    turns: tuple[PlayedTurn, ...]
    memories: tuple[str, ...]
    """After each reading turn, or each memory that an agent with tools wrote."""
    grade: Grade | None
    """None for a problem without gold answers."""

    @property
    def answer(self) -> str | None:
        """Text of the answer turn; None if the episode ended before it."""
        return self.trajectory.answer

    @property
    def answers(self) -> tuple[str | None, ...]:
        """One answer per question, in order; for one question, only `answer`."""
        if not self.problem.questions:
            return (self.answer,)
        return self.trajectory.answers or (None,) * len(self.problem.questions)

    @property
    def outcome(self) -> Outcome:
        """Outcome of the episode."""
        return self.trajectory.outcome

    @property
    def table(self) -> Table:
        """One row per turn."""
        turns = zip(self.turns, self.trajectory.turns, strict=True)
        return Table.of(
            [{"": word.name, "prompt tokens": len(turn.prompt_ids), "reply": word.reply} for word, turn in turns]
        )

    def __repr__(self) -> str:
        lines = [text if number is None else f"{number:>3} {text}" for number, text in self._shown()]
        value = "" if self.grade is None else f", reward {self.grade.value}"
        cut = "".join(f", {read:,} of {tokens:,} tokens of the document read" for tokens, read in self._cuts())
        error = failure(self.trajectory) if self.answer is None else None
        ended = f"{self.outcome}{f' ({_one_line(error)})' if error else ''}"
        head = f"Episode of {self.problem.id}: {len(self.turns)} turns, {ended}{value}{cut}"
        return "\n".join([head, *lines, *(f"  > {_short(answer or '')}" for answer in self.answers)])

    def _shown(self) -> list[tuple[int | None, str]]:
        """Memories with their numbers, shortened; of many, the first and the last."""
        numbered = list(enumerate(self.memories, 1))
        ends = [numbered] if len(numbered) <= _SHOWN else [numbered[: _SHOWN // 2], numbered[-_SHOWN // 2 :]]
        shown: list[list[tuple[int | None, str]]] = [[(number, _short(text)) for number, text in part] for part in ends]
        return shown[0] if len(shown) == 1 else [*shown[0], (None, "..."), *shown[1]]

    def _cuts(self) -> list[tuple[int, int]]:
        """(tokens of the document, tokens read), for a truncated document."""
        cuts = [event for event in self.trajectory.events if event.kind == DocumentTruncated.kind]
        return [(event.detail["tokens"], event.detail["kept"]) for event in cuts]

    def _repr_html_(self) -> str:
        shown = [("" if number is None else f" value='{number}'", text) for number, text in self._shown()]
        rows = "".join(f"<li{value}>{html.escape(text)}</li>" for value, text in shown)
        head = html.escape(repr(self).partition("\n")[0])
        answers = "".join(f"<p>{html.escape(_short(answer or ''))}</p>" for answer in self.answers)
        return f"<p>{head}</p><ol>{rows}</ol>{answers}"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _short(text: str) -> str:
    line = _one_line(text)
    return line if len(line) <= _WIDE else f"{line[:_WIDE]}..."


async def play_async(
    problem: Problem | Mapping[str, Any] | str | None = None,
    context: str | None = None,
    *,
    answers: str | Sequence[str] = (),
    model: Any = "embedded",
    policy: Any = None,
    reward: Any = None,
    recipe: Recipe | None = None,
    overrides: Overrides = (),
    chunks: int | None = None,
    seed: int = 0,
    base_url: str | None = None,
    api_key_env: str | None = None,
    tokenizer: Any = None,
    quiet: bool = False,
) -> Episode:
    """Run one episode, greedily by default (recipe key `eval_sampling`).

    `play` is an ordinary call and works in a notebook; `play_async` is a coroutine.

    - `problem`: a `Problem` or a dict; or a question, with its text as `context` and, for a grade, `answers`; the
      default is the first held-out problem of the recipe's data, generated with `chunks` paragraphs or questions
    - `policy`: a shipped policy, `my_module:MyPolicy`, a class or an object; the default is the recipe's
    - `quiet`: no warning of damaged checkpoints; `play` shows nothing else
    - `model`, `reward`, `recipe`, `overrides`, `seed`, `base_url`, `api_key_env`, `tokenizer`: as for `evaluate`

    Raises ConfigError, DataError or ModelError with a message that names key, value and fix.
    """
    objects = CallObjects("palimpsest.play", model)
    with objects.in_scope(), as_folder(model, tokenizer, None, objects.called) as (model, tokenizer):
        policy, overrides = objects.agent(policy, overrides, reward)
        remote = Remote.named(base_url, api_key_env, tokenizer)
        agent = Agent(model, policy, recipe, overrides, seed, remote)
        config = agent.config({})
        agent.model_name((lambda line: None) if quiet else (lambda line: warnings.warn(line, stacklevel=3)))
        prepared = _problem(problem, context, answers, chunks, config)
        return await with_agent(config, lambda agent: _played(agent, prepared))


play = blocking(play_async)


async def _played(agent: OpenAgent, problem: Problem) -> Episode:
    trajectory = await agent.play(problem, agent.policy_for(problem), "play")
    grade = None
    if problem.answers:
        reward = build_reward(agent.config.reward, agent.engine.codec)
        grade = await closing(reward, graded(reward.answer, problem, trajectory))
    return in_words(problem, trajectory, agent.engine.codec, grade)


def _problem(
    problem: Problem | Mapping[str, Any] | str | None,
    context: str | None,
    answers: str | Sequence[str],
    chunks: int | None,
    config: RunConfig,
) -> Problem:
    _check_types(problem, context, answers)
    if problem is None:
        if context is not None or answers:
            raise ConfigError("play: context and answers need a question; pass the question first")
        return build_source(config.data, config.seed, split="eval").problems(step=0, count=1, size=chunks)[0]
    if chunks is not None:
        raise ConfigError(f"chunks={chunks}: the size of a generated problem; omit it with your own problem")
    if isinstance(problem, Mapping):
        (problem,) = as_problems(problems_of([problem], "palimpsest.play(problem=...)"))
    if isinstance(problem, Problem):
        if context is not None or answers:
            raise ConfigError(f"play: problem {problem.id} already has context and answers; omit the arguments")
        check_problem(problem, "palimpsest.play(problem=...)")
        return problem
    if not problem.strip():
        raise ConfigError("play: the question is blank; omit it to run the first problem of the recipe's data")
    golds = (answers,) if isinstance(answers, str) else tuple(answers)
    return Problem("question", problem, golds, context)


def _check_types(problem: Any, context: Any, answers: Any) -> None:
    """Raise ConfigError that names an argument of a wrong type."""
    texts = [answers] if isinstance(answers, str) else answers
    listed = isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)
    for name, value, right, wanted in (
        ("problem", problem, isinstance(problem, Problem | Mapping | str | None), "a question, a Problem or a dict"),
        ("context", context, isinstance(context, str | None), "one text, several of them joined: '\\n'.join(texts)"),
        ("answers", answers, listed, "a text or a list of texts"),
    ):
        if not right:
            raise ConfigError(f"palimpsest.play({name}=...) is of type {type(value).__name__}: pass {wanted}")


def in_words(problem: Problem, trajectory: Trajectory, codec: Codec, grade: Grade | None = None) -> Episode:
    """The decoded episode of a trajectory."""
    turns = tuple(
        PlayedTurn(turn.name, codec.decode(turn.prompt_ids), codec.decode(turn.completion.token_ids, control=False))
        for turn in trajectory.turns
    )
    written = tuple(memory.text for memory in memories(trajectory, GroupTexts(codec)))
    return Episode(problem, trajectory, turns, written, grade)
