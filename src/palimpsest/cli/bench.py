"""`palimpsest bench`: the measurements behind the figures in the documentation."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]

Model = Annotated[str, typer.Option(help="`embedded`, a Hugging Face folder or a hub id.")]


@app.command("rollout")
def rollout(json: Json = False, model: Model = "embedded") -> None:
    """Episodes and tokens per second of the embedded sampler beside transformers and vLLM, where installed.

    \b
    Examples:
      palimpsest bench rollout
      palimpsest bench rollout --json
      PALIMPSEST_VLLM_PYTHON=/opt/vllm/bin/python palimpsest bench rollout
    """
    from palimpsest.cli.jobs.measuring import run_bench

    run_bench("rollout", model=model, json=json)


@app.command("train-step")
def train_step(json: Json = False, model: Model = "embedded") -> None:
    """The embedded learner beside padded training of every segment by itself, with peak memory.

    \b
    Examples:
      palimpsest bench train-step
      palimpsest bench train-step --json
    """
    from palimpsest.cli.jobs.measuring import run_bench

    run_bench("train-step", model=model, json=json)
