"""`palimpsest check`, `palimpsest doctor` and `palimpsest export`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import OUTPUT, Json
from palimpsest.config.load import split_override
from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.app.model_export_job import ExportedModel


def check(
    name: Annotated[
        str, typer.Argument(help="A shipped policy or credit rule, my_module:MyThing, or path/file.py:MyThing.")
    ],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE...]", help="Its options; values as YAML.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="policy, reward, layer, rule, tool, format, sink or engine; default: by its signature."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model whose tokenizer and window a policy must fit; default: the bundled one and 32,768."),
    ] = None,
    json: Json = False,
) -> None:
    """Check a policy, reward, layer, credit rule or other plugin against its contract.

    Exits with 1 if a check fails.

    \b
    Examples:
      palimpsest check overwrite chunk_size=48
      palimpsest check my_module:MyPolicy --model Qwen/Qwen3-4B
      palimpsest check rewards/mine.py:my_reward
      palimpsest check my_module:MyRule decay=0.8
    """
    from palimpsest.app.plugin_checks import check as check_contract

    findings = check_contract(name, dict(map(split_override, options or ())), kind, model=model)
    failed = sum(not finding.passed for finding in findings)
    if json:
        print(dumps({"passed": not failed, "checks": [asdict(finding) for finding in findings]}))
        raise typer.Exit(int(failed > 0))
    for finding in findings:
        typer.secho("ok    " if finding.passed else "FAILS ", fg="green" if finding.passed else "red", nl=False)
        typer.echo(f"{finding.name}: {finding.message}")
    typer.echo(f"{len(findings) - failed} of {len(findings)} checks passed")
    raise typer.Exit(int(failed > 0))


# ---- palimpsest doctor ---------------------------------------------------------------------------------------


def doctor(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Also check the run in this folder.")] = None,
    json: Json = False,
) -> None:
    """Check this machine, and a run: why it stopped, its health, what a resume does.

    Prints one line per check: ok, warn or fail, the reason, and the command that fixes it. Exits with 1 if a check
    fails.

    \b
    Examples:
      palimpsest doctor
      palimpsest doctor runs/first --json
    """
    from palimpsest.app.doctor import examine

    checks = []
    for check in examine(run):
        checks.append(check)
        if not json:
            typer.secho(
                f"{check.status:5s}", fg={"ok": "green", "warn": "yellow", "fail": "red"}[check.status], nl=False
            )
            typer.echo(printable(f"{check.name}: {check.reason}{f'; fix: {check.fix}' * bool(check.fix)}"))
    failed = any(check.status == "fail" for check in checks)
    if json:
        print(dumps({"passed": not failed, "checks": [asdict(check) for check in checks]}))
    raise typer.Exit(int(failed))


# ---- palimpsest export ---------------------------------------------------------------------------------------


def export(
    run: Annotated[str, typer.Argument(help="A run's folder, or a model's.")],
    out: Annotated[Path, OUTPUT(help="Folder to write the Hugging Face model to.")],
    step: Annotated[int | None, typer.Option(help="Step of the checkpoint; default: the newest.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; default: unchanged.")] = None,
    untied: Annotated[bool, typer.Option("--untied", help="Write a tied output projection separately (vLLM).")] = False,
    adapter: Annotated[bool, typer.Option("--adapter", help="Write only the adapters, not merged.")] = False,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="Evaluation folder whose figures README.md gets too; repeatable.")
    ] = None,
) -> None:
    """Export a checkpoint as a Hugging Face model; adapters are merged.

    Its README.md has the accuracy of every evaluation of these weights in the run's folder. `hf upload` publishes the
    folder on the Hugging Face hub.

    \b
    Examples:
      palimpsest export runs/quickstart --out my-agent
      palimpsest export runs/quickstart --step 40 --dtype bfloat16 --out my-agent
      palimpsest export runs/first --evaluation evals/hotpot --out my-agent
      palimpsest export runs/quickstart --untied --out served
    """
    from palimpsest.app.model_export_job import export as export_model

    warn, places = partial(typer.echo, err=True), evaluation or ()
    _show(export_model(run, out, step=step, dtype=dtype, untied=untied, adapter=adapter, evaluations=places, warn=warn))


def _show(done: ExportedModel) -> None:
    """Print the files and how to load them."""
    after = "" if done.step is None else f" after step {done.step}"
    typer.echo(f"{done.path.resolve()}: the model{after}, {done.size:,} bytes")
    for name, size in done.files.items():
        typer.echo(f"  {size:>15,}  {name}")
    typer.echo("to load it:")
    for program, line in done.loading.items():
        typer.echo(f"  {program:<16}  {line}")
