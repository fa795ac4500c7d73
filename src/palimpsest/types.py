"""The vocabulary of palimpsest, except events (events.py). Standard library only; this module defines every noun once.

An episode is a list of turns; a turn is the exact record of one model call. Axis letters in docstrings: P prompt
tokens, T tokens of a completion or a segment.

Guaranteed: every value here is immutable. Not covered: validation of user input, which happens where it enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from palimpsest.events import Event, What
from palimpsest.seeding import Key, derive_seed


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """A stop token was sampled; it is the last of `token_ids` and is trained."""
    LENGTH = "length"
    """Sampling reached `max_tokens`."""
    ABORTED = "aborted"
    """A cancelled request; contains the tokens so far."""
    GIVEN = "given"
    """No sampling: `palimpsest replay --memory` set the tokens, which are the memory unchanged."""


class Outcome(StrEnum):
    """The named end of an episode. Every episode has exactly one."""

    ANSWERED = "answered"
    """The policy finished with an answer text (which may be wrong, or contain no extractable answer)."""
    ANSWER_TRUNCATED = "answer_truncated"
    """The answer turn ran out of its token budget."""
    OUT_OF_TURNS = "out_of_turns"
    """The policy used up its turns before answering."""
    OUT_OF_CONTEXT = "out_of_context"
    """A prompt and its budget did not fit the model's window."""
    EMPTY_CONTEXT = "empty_context"
    """The problem has no document to read."""
    SAMPLER_FAILED = "sampler_failed"
    """The sampler gave up on a request: ungraded, never a zero."""
    TIMED_OUT = "timed_out"
    """The episode exceeded its time limit: ungraded, never a zero."""
    POLICY_FAILED = "policy_failed"
    """The policy's own code raised: ungraded; the error is an event."""
    ENVIRONMENT_FAILED = "environment_failed"
    """The environment raised, or gave no answer in time: ungraded; the error is an event."""

    @property
    def gradable(self) -> bool:
        """Return whether the agent caused this outcome, so that a grade is meaningful."""
        return self not in _UNGRADABLE


_UNGRADABLE = frozenset({Outcome.SAMPLER_FAILED, Outcome.TIMED_OUT, Outcome.POLICY_FAILED, Outcome.ENVIRONMENT_FAILED})


@dataclass(frozen=True, slots=True)
class Question:
    """One of several questions about one document."""

    text: str
    answers: tuple[str, ...]
    """One or more golds."""


GRADING: Mapping[str, type] = {"choice_letters": str, "abstention": bool, "every_gold": bool}
"""Grading rules of a problem's metadata. `choice_letters`: an answer may be the letter with its choice, "(B) Byron".
`abstention`: the right answer is that the document doesn't say it; a judge has criteria for such questions.
`every_gold`: the answer is a list of all golds, in any order."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answers, or several (`Problem.asking`) that one reading has to serve."""

    id: str = ""
    """Empty: made of question, golds and document, so that the same problem has the same id everywhere."""
    question: str = ""
    """With several questions: all of them, numbered, one per line; the agent reads with this text."""
    answers: tuple[str, ...] = ()
    """Golds; any of them is right unless the reward requires more. With several questions: the golds of all."""
    context: str | None = field(default=None, repr=False)
    """The long document; None for search problems."""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Other facts about the problem, e.g. `evidence` (texts an answer needs), `num_docs`, `hops`."""
    questions: tuple[Question, ...] = field(default=(), repr=False)
    """Two or more, each answered from the same memory; empty where `question` is the only one."""
    memory: str = field(default="", repr=False)
    """Initial memory, in the form of a reply; empty: none."""

    def __post_init__(self) -> None:
        golds = (self.answers,) if isinstance(self.answers, str) else tuple(self.answers)
        object.__setattr__(self, "answers", golds)
        if not self.id:
            object.__setattr__(self, "id", f"problem-{derive_seed(self.question, *golds, self.context or ''):016x}")
        if self.questions and (self.question, self.answers) != _together(self.questions):
            raise ValueError(f"problem {self.id}: make a problem of several questions with Problem.asking")

    @classmethod
    def asking(
        cls,
        id: str,
        questions: Sequence[Question],
        context: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Problem:
        """A problem of these questions; a plain problem for one question. Raises ValueError for an empty sequence.

        >>> problem = Problem.asking("p", [Question("Who ran?", ("Anna",)), Question("Where?", ("Rome", "Roma"))])
        >>> problem.question, problem.answers
        ('1. Who ran?\\n2. Where?', ('Anna', 'Rome', 'Roma'))
        """
        if not questions:
            raise ValueError(f"problem {id}: needs at least one question")
        if len(questions) == 1:
            return cls(id, questions[0].text, questions[0].answers, context, metadata or {})
        return cls(id, *_together(questions), context, metadata or {}, tuple(questions))

    @property
    def grading(self) -> dict[str, Any]:
        """The rules of `GRADING` that its data set declares in `metadata`."""
        values = {key: self.metadata.get(key) for key in GRADING}
        return {key: value for key, value in values.items() if value and isinstance(value, GRADING[key])}

    @property
    def gold_text(self) -> str:
        """Golds to show: alternatives with "or", those of a list or of several questions with commas.

        >>> listed = Problem(answers=("a", "b"), metadata={"every_gold": True})
        >>> Problem(answers=("tea", "chai")).gold_text, listed.gold_text
        ('tea or chai', 'a, b')
        """
        if not self.questions:
            return (", " if "every_gold" in self.grading else " or ").join(self.answers)
        return ", ".join(one.gold_text for one in self.by_question)

    @property
    def by_question(self) -> tuple[Problem, ...]:
        """One problem per question, with the same id; itself for a single question."""
        if not self.questions:
            return (self,)
        return tuple(replace(self, question=one.text, answers=one.answers, questions=()) for one in self.questions)


def numbered(texts: Iterable[str]) -> str:
    """One a line, numbered from 1, line breaks within a text taken out."""
    return "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(texts, 1))


def _together(questions: Sequence[Question]) -> tuple[str, tuple[str, ...]]:
    golds = dict.fromkeys(gold for one in questions for gold in one.answers)
    return numbered(one.text for one in questions), tuple(golds)


Span = tuple[int, int]
"""[start, end) of a piece: its first token, and the one behind its last."""

RESULT = "result:"
"""Prefix of a tool result's piece, followed by its id."""


class Prompt(tuple[int, ...]):
    """[P] token ids, and the spans of named pieces. Its tuple contains only the ids.

    Names the library knows: question, memory, section, recalled, document, summary, `result:ID` of a tool result.
    Pieces may nest. Tuple operations return a plain tuple, without names.

    >>> memory = Prompt.named("memory", [7, 8])
    >>> prompt = Prompt.joined([(1, 2), memory, (3,), Prompt.named("section", [9])])
    >>> prompt, prompt.spans
    ((1, 2, 7, 8, 3, 9), {'memory': (2, 4), 'section': (5, 6)})
    """

    spans: Mapping[str, Span]

    def __new__(cls, ids: Iterable[int], spans: Mapping[str, Span] | None = None) -> Prompt:
        """Raises ValueError for a piece outside the prompt."""
        prompt = super().__new__(cls, ids)
        prompt.spans = spans_within(spans or {}, len(prompt))
        return prompt

    @classmethod
    def named(cls, name: str, ids: Sequence[int]) -> Prompt:
        """`ids` as one piece called `name`; inner pieces keep their names; a piece that already has this name is
        returned unchanged.

        >>> Prompt.named("memory", Prompt.joined([Prompt.named("memory", [7]), Prompt.named("recalled", [8])])).spans
        {'memory': (0, 1), 'recalled': (1, 2)}
        """
        return cls(ids, _spans_named(name, ids))

    @classmethod
    def joined(cls, parts: Iterable[Sequence[int]], names: Mapping[int, str] | None = None) -> Prompt:
        """Concatenated parts; `names`: of some of them, by position, as by `named`. Raises ValueError if two of them
        contain pieces of the same name."""
        ids: list[int] = []
        spans: dict[str, Span] = {}
        for position, part in enumerate(parts):
            named = (names or {}).get(position)
            for name, (start, end) in (spans_of(part) if named is None else _spans_named(named, part)).items():
                if name in spans:
                    raise ValueError(f"two pieces of a prompt have the name {name!r}: use different names")
                spans[name] = (len(ids) + start, len(ids) + end)
            ids += part
        return cls(ids, spans)


def spans_within(spans: Mapping[str, Span], length: int) -> dict[str, Span]:
    """`spans`, if all of them lie in a prompt of `length` tokens. Raises ValueError."""
    for name, (start, end) in spans.items():
        if not 0 <= start <= end <= length:
            raise ValueError(f"the piece {name!r} at {(start, end)} is outside a prompt of {length} tokens")
    return dict(spans)


def _spans_named(name: str, ids: Sequence[int]) -> Mapping[str, Span]:
    inner = spans_of(ids)
    return inner if name in inner else {name: (0, len(ids)), **inner}


def spans_of(ids: Sequence[int]) -> Mapping[str, Span]:
    """Spans of the named pieces; empty for ids that are not a `Prompt`."""
    return ids.spans if isinstance(ids, Prompt) else {}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings for sampling one completion."""

    max_tokens: int
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()
    seed: int = 0
    """Key of this request's random draws: token t depends only on (seed, t), not on the batch."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The sampled tokens of one request."""

    token_ids: tuple[int, ...] = field(repr=False)
    """[T] sampled ids, including a sampled stop token."""
    logprobs: tuple[float, ...] = field(repr=False)
    """[T] nats; the sampler's log-probability of each id at the sampling temperature, before top-p."""
    stop_reason: StopReason
    policy_version: int = 0
    """Number of optimizer steps that the weights which sampled the first token had seen."""
    last_policy_version: int = -1
    """Version for the last token; default: that of the first."""
    events: tuple[What, ...] = field(default=(), repr=False, compare=False)
    """Events that the sampler found; they become events of the episode."""
    turn: int | None = field(default=None, compare=False)
    """`Turn.step` of the turn it completes, set for the policy; None: outside an episode."""

    def __post_init__(self) -> None:
        if self.last_policy_version < 0:
            object.__setattr__(self, "last_policy_version", self.policy_version)


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call as it happened."""

    prompt_ids: tuple[int, ...] = field(repr=False)
    """[P] every token the model saw."""
    completion: Completion
    step: int
    """0-based index of the call in its episode."""
    name: str
    """Purpose of the call: read, answer, act."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Small facts for metrics and the viewer, e.g. the number of the chunk."""
    spans: Mapping[str, Span] = field(default_factory=dict)
    """Spans of the named pieces of the prompt (see `Prompt`); empty without names."""
    role: str | None = None
    """Role of the model that took the turn, from the configuration; None: the agent itself."""
    trained: bool = True
    """False for a turn of a frozen role: its tokens are always context."""

    @property
    def trained_ids(self) -> tuple[int, ...]:
        """[T] trained ids: the sampled ones, or none."""
        return self.completion.token_ids if self.trained else ()

    def piece(self, name: str) -> tuple[int, ...] | None:
        """[T] ids of a named piece of the prompt, None if it has none of that name."""
        span = self.spans.get(name)
        return None if span is None else self.prompt_ids[span[0] : span[1]]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode from beginning to end."""

    problem_id: str
    group_id: str
    """The trajectories of one problem in one batch share it; group statistics are over it."""
    rollout: int
    """0-based index in the group."""
    turns: tuple[Turn, ...] = field(repr=False)
    outcome: Outcome
    answer: str | None = None
    """Decoded text of the answer turn, None without one. With several questions: all answers, numbered."""
    events: tuple[Event, ...] = field(default=(), repr=False)
    answers: tuple[str | None, ...] = ()
    """[questions] the answer to each of several; empty for a problem of one, and where the episode never got there."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, shared prefixes counted per turn."""
        return sum(len(turn.prompt_ids) for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.completion.token_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class SpanReward:
    """A reward of some of the tokens that a turn sampled."""

    turn: int
    """Index in `Trajectory.turns`."""
    start: int
    """First token, counted in the completion."""
    end: int
    """One past the last token; equal to `start` for none."""
    value: float


@dataclass(frozen=True, slots=True)
class Grade:
    """A reward, or the reason why there is none."""

    value: float | None
    """None means ungraded: excluded from group statistics and counted, never a zero."""
    reason: str | None = None
    """Reason for an ungraded episode."""
    breakdown: Mapping[str, float] = field(default_factory=dict)
    """Parts of `value`, and additional metrics (exact match, F1...)."""
    per_turn: tuple[float, ...] | None = None
    """[turns] state rewards where a method defines them."""
    turn_weights: tuple[float, ...] | None = None
    """[turns] factors of the turns' advantages where a method defines them."""
    spans: tuple[SpanReward, ...] = ()
    """Rewards of single tokens, on top of `per_turn`; where spans overlap they add up."""

    @property
    def graded(self) -> bool:
        return self.value is not None


class SampledSpan(NamedTuple):
    """Tokens [start, end) of a segment, which one turn sampled."""

    start: int
    end: int
    turn: int
    """Index in `Trajectory.turns`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A maximal run of turns in which every prompt extends the one before: one row to train.

    For turns P1 C1 and P2 = P1 C1 T1, then C2, `token_ids` [T] is P1 C1 T1 C2; training uses only the N tokens of C1
    and C2.

    >>> segment = Segment((1, 2, 3, 4, 5), (SampledSpan(2, 3, 0), SampledSpan(4, 5, 1)), (-0.5, -0.25))
    >>> segment.positions, segment.turn_index
    ((2, 4), (-1, -1, 0, -1, 1))
    """

    token_ids: tuple[int, ...]
    """[T]"""
    sampled: tuple[SampledSpan, ...]
    """The trained tokens, in order, without overlap; only this segment trains them."""
    logprobs: tuple[float, ...]
    """[N] nats of the trained tokens, the sampler's."""

    @property
    def positions(self) -> tuple[int, ...]:
        """[N] of the trained tokens in `token_ids`."""
        return tuple(chain.from_iterable(range(run.start, run.end) for run in self.sampled))

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """[T] True for trained tokens."""
        return tuple(turn >= 0 for turn in self.turn_index)

    @property
    def turn_index(self) -> tuple[int, ...]:
        """[T] index of the turn that sampled the token; -1 for others."""
        turns = [-1] * len(self.token_ids)
        for start, end, turn in self.sampled:
            turns[start:end] = [turn] * (end - start)
        return tuple(turns)


@dataclass(frozen=True, slots=True)
class Group:
    """One problem, its trajectories and their grades, in rollout order."""

    problem: Problem
    trajectories: tuple[Trajectory, ...]
    grades: tuple[Grade, ...]
    key: tuple[Key, ...] = ()
    """Key of its random draws; turn t uses (*key, problem, rollout, t): (seed, "train", step, round), or (seed, "eval",
    set); empty if unknown."""

    def __post_init__(self) -> None:
        played, graded = len(self.trajectories), len(self.grades)
        if played != graded:
            raise ValueError(f"group {self.problem.id}: {played} trajectories, {graded} grades")
