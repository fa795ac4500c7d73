"""Questions about your files, answered by a memory agent that reads them from beginning to end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from palimpsest.app.agent.play import Episode, in_words
from palimpsest.app.composition import OpenAgent, options_line, with_agent
from palimpsest.app.config_resolution import Agent, Recipe, Remote, model_folder
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.python_objects import CallObjects, as_folder
from palimpsest.config.load import Overrides
from palimpsest.config.schema import RunConfig
from palimpsest.data.files.text_files import TextDocument, read_files
from palimpsest.data.synthetic.world import unknown_to_bundled
from palimpsest.errors import ConfigError
from palimpsest.events import Event, MemoryUngrounded, OnlyReasoned, PromptCut, of_type
from palimpsest.metrics.reading_trace import GroupTexts, MemoryChange, MemoryChanges, last_memory, origins, readings
from palimpsest.notes import Note
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.rollout.episode import ANSWER, failure
from palimpsest.text.answers import extract, final_answer
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import spoken
from palimpsest.types import Outcome, Problem, Question, Trajectory, Turn

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Quote:
    """A verbatim piece of a file that supports a sentence of the last memory."""

    text: str
    file: str
    start: int
    """Character offset in the file's text."""
    end: int
    kept: str
    """The sentence in the memory."""


OnMemory = Callable[[MemoryChange], None]


@dataclass(frozen=True, repr=False)
class Asked:
    """A question, its answer, and the sources of the answer."""

    question: str
    answer: str | None
    """The reply's boxed or final answer, otherwise the whole reply; None without a reply."""
    answers: tuple[str | None, ...]
    """One answer per question; for one question, only `answer`."""
    document: TextDocument
    trajectory: Trajectory
    quotes: tuple[Quote, ...]
    """Sources of the last memory's sentences, in its order."""
    unsupported: tuple[str, ...]
    """Sentences of the last memory without four consecutive words of any file: hallucinated or paraphrased."""
    _problem: Problem = field(repr=False)
    _codec: Codec = field(repr=False)

    @property
    def kept_out(self) -> int:
        """Units of replies that `policy.options.grounded` dropped from the memory."""
        events = of_type(self.trajectory.events, MemoryUngrounded)
        return sum(len(event.dropped) for event in events)

    @property
    def outcome(self) -> Outcome:
        """Outcome of the episode."""
        return self.trajectory.outcome

    @property
    def failure(self) -> str | None:
        """Reason for a missing answer; None with an answer or for an unknown reason."""
        return None if self.answer is not None else failure(self.trajectory)

    @property
    def questions(self) -> tuple[str, ...]:
        """One per answer."""
        return tuple(each.question for each in self._problem.by_question)

    @property
    def tokens_in(self) -> int:
        """Prompt tokens over all turns."""
        return sum(len(turn.prompt_ids) for turn in self.trajectory.turns)

    @property
    def tokens_sampled(self) -> int:
        return sum(len(turn.completion.token_ids) for turn in self.trajectory.turns)

    def __repr__(self) -> str:
        reply = self.answer if self.answer is not None else f"no answer: {self.failure or self.outcome}"
        count = len(self.unsupported)
        made_up = f", {count} sentence{'s' if count > 1 else ''} of the memory in no file" if count else ""
        head = f"Asked {_short(self.question)!r}: {_short(reply)!r}, {len(self.trajectory.turns)} turns{made_up}"
        return "\n".join([head, *(f"  {q.file}:{q.start}-{q.end}  {_short(q.text)}" for q in self.quotes)])

    @cached_property
    def episode(self) -> Episode:
        """The decoded episode, turn by turn."""
        return in_words(self._problem, self.trajectory, self._codec)

    def to_json(self) -> dict[str, Any]:
        """Output of `palimpsest ask --json`."""
        several = {"answers": list(self.answers)} if len(self.answers) > 1 else {}
        return {
            "question": self.question,
            "answer": self.answer,
            **several,
            "outcome": str(self.outcome),
            "turns": len(self.trajectory.turns),
            "tokens_in": self.tokens_in,
            "tokens_sampled": self.tokens_sampled,
            "quotes": [asdict(quote) for quote in self.quotes],
            "unsupported": list(self.unsupported),
            "kept_out": self.kept_out,
        }


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."


async def ask_async(
    model: Any,
    files: Files,
    question: str | Sequence[str],
    *,
    policy: Any = None,
    recipe: Recipe | None = None,
    overrides: Overrides = (),
    seed: int = 0,
    base_url: str | None = None,
    api_key_env: str | None = None,
    tokenizer: Any = None,
    on_memory: OnMemory | None = None,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Asked:
    """Let an agent read files and answer a question, greedily by default (recipe key `eval_sampling`).

    `ask` is an ordinary call and works in a notebook; `ask_async` is a coroutine.

    - `model`: `embedded`, a Hugging Face folder, a run or its folder (its newest checkpoint) or a hub id
    - `files`: a file, a folder, `-` for standard input, or a list of them, read in this order
      (data/files/text_files.py)
    - `question`: one question, or several for policies that answer them from one reading
    - `policy`, `recipe`, `overrides`, `seed`: as for `evaluate`
    - `base_url`: an OpenAI-compatible endpoint that serves `model`, with `api_key_env`, `tokenizer`
    - `on_memory`: called with every memory when it is written
    - `quiet`: show nothing; `progress`: where to show progress

    Raises ConfigError, DataError or ModelError with a message that names key, value and fix. A failed episode raises
    nothing; see `outcome` and `failure`.
    """
    questions = _questions(question)
    objects = CallObjects("palimpsest.ask", model)
    shown = progress or suitable_progress(quiet=quiet)
    with objects.in_scope(), as_folder(model, tokenizer, None, objects.called) as (model, tokenizer):
        policy, overrides = objects.agent(policy, overrides, None)
        remote = Remote.named(base_url, api_key_env, tokenizer)
        config = Agent(model, policy, recipe, overrides, seed, remote).config({})
        model_folder(model, (lambda line: None) if quiet else (lambda line: warnings.warn(line, stacklevel=3)))
        document = read_files(_named(files))
        return await with_agent(config, lambda agent: _answer(agent, document, questions, on_memory, shown))


ask = blocking(ask_async)


async def chat_async(
    config: RunConfig,
    document: TextDocument,
    next_question: Callable[[], str | None],
    on_answer: Callable[[Asked], None],
    *,
    on_memory: OnMemory | None = None,
    progress: Progress | None = None,
) -> None:
    """Answer questions on the same document until `next_question` returns None.

    Each question reads the document again, since a memory serves only its question.
    """

    async def work(agent: OpenAgent) -> None:
        while (question := next_question()) is not None:
            on_answer(await _answer(agent, document, _questions(question), on_memory, progress or Silent()))

    await with_agent(config, work)


chat = blocking(chat_async)


async def _answer(
    agent: OpenAgent, document: TextDocument, questions: Sequence[str], on_memory: OnMemory | None, progress: Progress
) -> Asked:
    problem = Problem.asking("question", [Question(question, ()) for question in questions], document.text)
    codec = agent.engine.codec
    policy = agent.policy_for(problem)
    prepared = policy.prepare(problem, codec)
    sections = len(getattr(prepared, "chunks", ()))
    if agent.engine.limits.endpoint is None and unknown_to_bundled(codec.vocab_size, [document.text]):
        progress.message(Note("unknown_to_bundled"))
    progress.message(options_line(agent.fitted_to(problem)))
    with progress.count("sections", max(sections, 1)) as tick:
        changes, left = MemoryChanges(codec, sections), iter(range(sections))

        def on_turn(turn: Turn, events: Sequence[Event]) -> None:
            if turn.name != ANSWER and next(left, None) is not None:
                tick(1)
            if on_memory is not None and (change := changes.of(turn, events)) is not None:
                on_memory(change)

        trajectory = await agent.play(problem, policy, "ask", prepare=lambda: prepared, on_turn=on_turn)
    if trajectory.outcome is Outcome.ANSWER_TRUNCATED:
        progress.message(Note("reply_cut", tokens=len(trajectory.turns[-1].completion.token_ids)))
    elif (reply := trajectory.answer) and not trajectory.answers and not (extract(reply) or final_answer(reply)):
        progress.message(Note("reply_unmarked"))
    for kind in (OnlyReasoned, PromptCut):
        if found := of_type(trajectory.events, kind):
            progress.message(Note(kind.kind, count=len(found), turns=len(trajectory.turns)))
    return result_of(agent.config, problem, document, trajectory, codec)


def result_of(
    config: RunConfig, problem: Problem, document: TextDocument, trajectory: Trajectory, codec: Codec
) -> Asked:
    """Result of an episode, with the document positions that support its last memory."""
    texts = GroupTexts(codec)
    read = readings(trajectory, texts)
    memory = read[-1].memory_after if read else last_memory(trajectory, texts)
    first = read[0].memory_before.ids if read else None  # the prompt's text for an empty memory
    held = dict.fromkeys(memory.sentences) if memory is not None and memory.ids != first else ()
    sentences = [sentence for sentence in held if any(letter.isalnum() for letter in sentence)]
    spans = origins(sentences, document.text, read)
    places = [None if span is None else document.locate(*span) for span in spans]
    quotes = tuple(
        Quote(document.text[span[0] : span[1]], *position, sentence)
        for sentence, span, position in zip(sentences, spans, places, strict=True)
        if span is not None and position is not None
    )
    replies = trajectory.answers or (trajectory.answer,) * len(
        problem.by_question
    )  # without answers, None per question
    answers = tuple(_answer_text(reply, config.reward.name) for reply in replies)
    return Asked(
        question=problem.question,
        answer=answers[0],
        answers=answers,
        document=document,
        trajectory=trajectory,
        quotes=quotes,
        unsupported=tuple(sentence for sentence, span in zip(sentences, spans, strict=True) if span is None),
        _problem=problem,
        _codec=codec,
    )


def _answer_text(reply: str | None, reward: str) -> str | None:
    if reply is None:
        return None
    if reward == "final_answer" and (named := final_answer(reply)) is not None:
        return named
    answer = extract(reply)
    return answer.text if answer is not None else spoken(reply).strip()


def _questions(question: str | Sequence[str]) -> tuple[str, ...]:
    """Questions as a tuple. Raises ConfigError for none, or a blank one."""
    questions = (question,) if isinstance(question, str) else tuple(question)
    if not questions or not all(isinstance(question, str) and question.strip() for question in questions):
        raise ConfigError("ask: the question is blank; pass a question about the files")
    return questions


def _named(files: Files) -> list[str]:
    listed = list(files) if isinstance(files, Sequence) and not isinstance(files, str) else [files]
    for path in listed:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"palimpsest.ask(files=...): {path!r:.60} is of type {type(path).__name__}: pass files or folders; "
                "palimpsest.play takes a text, palimpsest.evaluate a list of problems"
            )
    return [os.fspath(path) for path in listed]
