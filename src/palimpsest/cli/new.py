"""`palimpsest new`, `check` and `doctor`: create a policy, tool or reward, check it, check the machine and a run."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import OUTPUT, Json
from palimpsest.config.load import split_override
from palimpsest.text.display_text import printable


def new(
    kind: Annotated[str, typer.Argument(help="policy, tool, reward or environment.")],
    name: Annotated[str, typer.Argument(help="Name of the module, e.g. my_policy.")],
    out: Annotated[Path, OUTPUT("--out", help="Folder to write to.")] = Path(),
) -> None:
    """Create a policy, tool, reward or environment from a template: the module, a recipe that trains it, a test.

    The template trains with the bundled model, in minutes on a CPU.

    \b
    Examples:
      palimpsest new policy my_policy
      palimpsest new tool my_tool --out tools
      palimpsest new reward my_reward
      palimpsest new environment my_environment
    """
    from palimpsest.app.starter_files import class_name, write_scaffold

    module, recipe, test = write_scaffold(kind, name, out)
    typer.echo("\n".join(map(str, (module, recipe, test))))
    steps = [] if out == Path() else [f"cd {out}"]
    steps.append(f"palimpsest check {name}:{name if kind == 'reward' else class_name(name)}")
    steps += [] if find_spec("pytest") else ["pip install pytest"]
    steps += [f"python -m pytest {test.name}", f"palimpsest train {recipe.name} --out runs/{name}"]
    typer.echo("next:\n" + "\n".join(f"  {step}" for step in steps))


# ---- palimpsest check ----------------------------------------------------------------------------------------


def check(
    name: Annotated[
        str, typer.Argument(help="A shipped policy or credit rule, my_module:MyThing, or path/file.py:MyThing.")
    ],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE...]", help="Its options; values as YAML.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="policy, reward, layer, rule, tool, environment, format, sink or engine; default: by its methods."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model whose tokenizer and window a policy must fit; default: the bundled one and 32,768."),
    ] = None,
    episodes: Annotated[
        Path | None, typer.Option(help="Run, evaluation or record: tries a rule, reward or layer on its episodes.")
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
      palimpsest check my_module:MyRule decay=0.8 --episodes runs/first
    """
    from palimpsest.app.plugin_checks import check as check_contract

    findings = check_contract(name, dict(map(split_override, options or ())), kind, model=model, episodes=episodes)
    failed = sum(not finding.passed for finding in findings)
    if json:
        print(dumps({"passed": not failed, "checks": [asdict(finding) for finding in findings]}))
        raise typer.Exit(int(failed > 0))
    for finding in findings:
        typer.secho("ok    " if finding.passed else "FAILS ", fg="green" if finding.passed else "red", nl=False)
        typer.echo(f"{finding.name}: {finding.message}")
    typer.echo(f"{len(findings) - failed} of {len(findings)} checks passed")
    raise typer.Exit(int(failed > 0))


# ---- palimpsest doctor ----------------------------------------------------------------------------------------


def doctor(
    target: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Also check the run in this folder, or a recipe's services.")
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine, and a run: why it stopped, its health, what a resume does; judge and search servers.

    Prints one line per check: ok, warn or fail, the reason, and the command that fixes it. Exits with 1 if a check
    fails.

    \b
    Examples:
      palimpsest doctor
      palimpsest doctor runs/first --json
      palimpsest doctor memact-7b
    """
    from palimpsest.app.doctor import examine

    checks = []
    for check in examine(target):
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
