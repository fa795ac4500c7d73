"""Questions about your files, answered by a memory agent that reads them from beginning to end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from palimpsest.agents.episode_results import Asked, result_of
from palimpsest.agents.open_agent import OpenAgent, options_line, with_agent
from palimpsest.app.config_resolution import Agent, Recipe, model_folder
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.python_objects import CallObjects, as_folder
from palimpsest.config.load import Overrides
from palimpsest.config.schema import RunConfig
from palimpsest.data.files.text_files import TextDocument, read_files
from palimpsest.data.synthetic.world import unknown_to_bundled
from palimpsest.errors import ConfigError, shown_names
from palimpsest.events import Event, OnlyReasoned, PromptCut, of_type
from palimpsest.metrics.reading_trace import MemoryChange, MemoryChanges
from palimpsest.notes import Note
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.rollout.episode import ANSWER
from palimpsest.text.answers import extract, final_answer
from palimpsest.types import Outcome, Problem, Question, Turn

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


OnMemory = Callable[[MemoryChange], None]


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
        config = Agent(model, policy, recipe, overrides, seed, base_url, api_key_env, tokenizer).config({})
        model_folder(model, (lambda line: None) if quiet else (lambda line: warnings.warn(line, stacklevel=3)))
        document = read_files(_named(files))
        _note_skipped(document, shown)
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
        _note_skipped(document, progress or Silent())
        while (question := next_question()) is not None:
            on_answer(await _answer(agent, document, _questions(question), on_memory, progress or Silent()))

    await with_agent(config, work)


chat = blocking(chat_async)


def _note_skipped(document: TextDocument, progress: Progress) -> None:
    if document.skipped:
        progress.message(Note("files_skipped", names=shown_names(document.skipped, 3)))


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
    fitted = agent.fitted_to(problem)
    progress.message(options_line(fitted.name, fitted.options))
    with progress.count("sections", max(sections, 1)) as tick:
        changes, left = MemoryChanges(codec, sections), iter(range(sections))

        def on_turn(turn: Turn, events: Sequence[Event]) -> None:
            if turn.name != ANSWER and next(left, None) is not None:
                tick(1)
            if on_memory is not None and (change := changes.of(turn, events)) is not None:
                on_memory(change)

        trajectory = await agent.play(problem, policy, "ask", prepare=lambda: prepared, on_turn=on_turn)
    if trajectory.outcome is Outcome.ANSWER_TRUNCATED:
        option = "answer_tokens" if hasattr(policy, "answer_tokens") else "turn_tokens"
        tokens = len(trajectory.turns[-1].completion.token_ids)
        progress.message(Note("reply_cut", tokens=tokens, option=f"policy.options.{option}"))
    elif (reply := trajectory.answer) and not trajectory.answers and not (extract(reply) or final_answer(reply)):
        progress.message(Note("reply_unmarked"))
    for kind in (OnlyReasoned, PromptCut):
        if found := of_type(trajectory.events, kind):
            progress.message(Note(kind.kind, count=len(found), turns=len(trajectory.turns)))
    return result_of(agent.config, problem, document, trajectory, codec)


def _questions(question: str | Sequence[str]) -> tuple[str, ...]:
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
