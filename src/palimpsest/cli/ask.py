"""`palimpsest ask`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from json import dumps
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import OUTPUT, ApiKeyEnv, BaseUrl, Json, ModelName, Policy, Tokenizer, models_and_overrides
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal
from palimpsest.text.display_text import counted, printable

if TYPE_CHECKING:
    from palimpsest.agents.episode_results import Asked
    from palimpsest.app.config_resolution import Agent
    from palimpsest.metrics.reading_trace import MemoryChange


def ask(
    model: ModelName,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... QUESTION [KEY=VALUE...]",
            help="Files and folders, read in this order (- is standard input), then the question (none with "
            "--chat); policy options and configuration keys as KEY=VALUE.",
        ),
    ],
    question: Annotated[
        list[str] | None, typer.Option(help="A further question about the same reading; repeatable.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Read questions from standard input, one per line, up to an empty line.")
    ] = False,
    policy: Policy = None,
    stream: Annotated[bool, OUTPUT("--stream", help="Show changes of the memory on stderr.")] = False,
    json: Json = False,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Ask a question about files of any length.

    Prints the answer and the source passages of the memory behind it. Reads text, Markdown, HTML, JSON lines, and PDF
    (extra `pdf`).

    \b
    Examples:
      palimpsest ask runs/quickstart story.txt "What does Anna drink?"
      palimpsest ask Qwen/Qwen3-4B contract.pdf annex.md "When does it end?" --question "Who may end it?"
      palimpsest ask runs/first notes/ --chat
      palimpsest ask Qwen/Qwen3-4B report.html "Who wrote it?" --base-url http://127.0.0.1:8000/v1
      git log | palimpsest ask Qwen/Qwen3-4B - "Which release broke resuming?" --json
    """
    shown = _changes if stream else None
    words, overrides = models_and_overrides(words)
    if chat:
        if question:
            raise ConfigError("ask --chat reads questions from standard input: omit --question")
        from palimpsest.app.config_resolution import Agent

        agent = Agent(model, policy, None, overrides, 0, base_url, api_key_env, tokenizer)
        _chat(agent, words, shown, json)
        return
    if len(words) < 2:
        words = [model, *words]
        fix = "palimpsest ask MODEL FILE... QUESTION, e.g. palimpsest ask runs/quickstart story.txt"
        raise ConfigError(
            f"ask {' '.join(words)}: a model, a file and a question are needed: {fix} 'What does Omar sell?'"
        )
    from palimpsest.app.agent.ask_files import ask as ask_files

    *files, asked = words
    lost = [at for at, file in enumerate(files) if at and not Path(file).suffix and not os.path.exists(file)]
    if lost and "-" not in files:
        raise ConfigError(
            f"ask: {words[lost[0]]}: no such file; quote the question: {join([' '.join(words[lost[0] :])])}"
        )
    result = ask_files(
        model,
        files,
        [asked, *(question or [])],
        policy=policy,
        overrides=overrides,
        base_url=base_url,
        api_key_env=api_key_env,
        tokenizer=tokenizer,
        on_memory=shown,
        progress=Terminal(),
    )
    _show(result, json=json)
    if result.answer is None:
        reason = printable(f": {result.failure}" if result.failure else "")
        typer.echo(f"error: no answer ({result.outcome}){reason}", err=True)
        raise typer.Exit(1)


def _chat(agent: Agent, files: list[str], shown: Callable[[MemoryChange], None] | None, json: bool) -> None:
    from palimpsest.app.agent.ask_files import chat as chat_on
    from palimpsest.data.files.text_files import STDIN, read_files

    if STDIN in files:
        raise ConfigError("--chat reads questions from standard input: give the document as a file")
    config = agent.config({})
    document, piped = read_files(files), not sys.stdin.isatty()

    def show(result: Asked) -> None:
        _show(result, json=json, asked=piped)

    chat_on(config, document, _next_question, show, on_memory=shown, progress=Terminal())


def _next_question() -> str | None:
    """A line of standard input; None at the end or for a blank line."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    return sys.stdin.readline().strip() or None


def _changes(change: MemoryChange) -> None:
    """Print the sentences that a turn removed and added."""
    lines = [f"  - {printable(sentence)}" for sentence in change.dropped]
    lines += [f"  + {printable(sentence)}" for sentence in change.added]
    if lines:
        Terminal().message("\n".join([change.where("/"), *lines]))


def _show(result: Asked, *, json: bool = False, asked: bool = False) -> None:
    """`asked`: print the question first, also of a single one."""
    from palimpsest.text.answers import unboxed

    if json:
        print(dumps(result.to_json()), flush=True)
        return
    for question, answer in zip(result.questions, result.answers, strict=True):
        if asked or len(result.answers) > 1:
            print(printable(question))
        if answer is not None:
            print("\n".join(printable(line) for line in answer.splitlines()), flush=True)
    for quote in result.quotes:
        text = " ".join(quote.text.split())
        print(f"  {printable(quote.file)}:{quote.start}-{quote.end}  {printable(text)}")
    for sentence in result.unsupported:
        print(f"  not in the files: {printable(unboxed(sentence))}")
    if result.kept_out:
        units = counted(result.kept_out, "statement")
        Terminal().message(f"{units} dropped: not in the text that the agent read (policy.options.grounded)")
