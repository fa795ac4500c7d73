"""`palimpsest data babilong` and `palimpsest data updates`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force, Out, numbers, tell_made

Tokenizer = Annotated[str, typer.Option(help="Folder or hub id of the model whose tokens are counted.")]
Lengths = Annotated[str, typer.Option(help="Tokens of a context, e.g. 4096,8192.")]
Number = Annotated[int, typer.Option("--n", min=1, help="Problems of each kind and length.")]
Seed = Annotated[int, typer.Option(help="Of every draw.")]


def babilong(
    tokenizer: Tokenizer,
    lengths: Lengths,
    out: Out,
    tasks: Annotated[str, typer.Option(help="Of qa1 to qa5, e.g. qa1,qa2; or all.")] = "all",
    n: Number = 100,
    haystack: Annotated[Path | None, typer.Option(help="Text file to hide the facts in; noise without it.")] = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Generate questions about people, places and things (bAbI's qa1 to qa5) whose facts are hidden in a long text.

    \b
    Examples:
      palimpsest data babilong --tokenizer Qwen/Qwen3-4B --lengths 4096,131072 --out sets/babilong
      palimpsest data babilong --tasks qa2 --haystack books.txt --tokenizer models/mine --lengths 8192 \\
        --n 16 --out sets/qa2
    """
    from palimpsest.jobs.stories import Amount, make_babilong
    from palimpsest.progress.terminal import Terminal

    amount = Amount(numbers("--lengths", "numbers of tokens", lengths), n, seed)
    chosen = tasks.split(",")
    tell_made(
        make_babilong(chosen, amount, tokenizer=tokenizer, out=out, haystack=haystack, force=force, progress=Terminal())
    )


def updates(
    tokenizer: Tokenizer,
    lengths: Lengths,
    out: Out,
    kinds: Annotated[str, typer.Option(help="What is asked: now, then, count; or all.")] = "all",
    changes: Annotated[str, typer.Option(help="How often a fact changes, by turns.")] = "1,2,4",
    n: Number = 100,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Generate questions about facts that change: what is so at the end, what was so on a day, how often it changed.

    \b
    Examples:
      palimpsest data updates --tokenizer Qwen/Qwen3-4B --lengths 4096,32768 --out sets/updates
      palimpsest data updates --kinds now --changes 1,8 --tokenizer models/mine --lengths 8192 --out sets/now
    """
    from palimpsest.jobs.stories import Amount, make_updates
    from palimpsest.progress.terminal import Terminal

    amount = Amount(numbers("--lengths", "numbers of tokens", lengths), n, seed)
    often = numbers("--changes", "numbers of changes", changes)
    chosen = kinds.split(",")
    tell_made(
        make_updates(chosen, amount, tokenizer=tokenizer, out=out, changes=often, force=force, progress=Terminal())
    )
