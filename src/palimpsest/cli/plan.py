"""`palimpsest plan`, and what `train --gpus` prints."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palimpsest.cli.options import Json, Overrides, stdout, table
from palimpsest.errors import ConfigError
from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.planning.hardware import Hardware

UNFIT = 3  # exit status
PRICE = 2.5  # dollars per hour: about an H100 of a cloud provider

Gpus = Annotated[int | None, typer.Option(min=1, max=64, help="GPUs per machine; chooses the layout.")]
Nodes = Annotated[int, typer.Option(min=1, max=128, help="Machines, each with --gpus GPUs.")]


def plan(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A shipped recipe or a YAML file; not with --check.")
    ] = None,
    overrides: Overrides = None,
    gpus: Gpus = None,
    nodes: Nodes = 1,
    gpu: Annotated[
        str | None,
        typer.Option(help="Kind: h100, h200, h20, b200, a100-80, a100-40, l40s, 4090; default: h100."),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="Plan for this machine's GPUs or CPU cores.")] = False,
    check: Annotated[Path | None, typer.Option(metavar="RUN", help="Compare a run's metrics with its plan.")] = None,
    price: Annotated[float, typer.Option(min=0, max=1e6, help="Dollars per GPU hour.")] = PRICE,
    json: Json = False,
) -> None:
    """Predict tokens, memory, time and cost of a training run, and choose its layout.

    Quickstart recipes are planned for this machine, as with --here. With --gpus, or --here on a machine with GPUs, the
    plan has the overrides of the fastest layout that fits; they are those of `palimpsest train RECIPE --gpus N`.
    Otherwise it describes the configuration unchanged. It loads no model.
    Exits with 3 if the run doesn't fit. All figures are computed from assumed efficiencies.

    \b
    Examples:
      palimpsest plan memagent-7b --gpus 8
      palimpsest plan memagent-7b --gpus 8 --nodes 2 --gpu h200 policy.options.layout=section_first
      palimpsest plan memagent-0.6b --gpus 1 --gpu 4090 --json
      palimpsest plan memagent-quickstart --here
      palimpsest plan --check runs/first
    """
    from palimpsest.app.train.training_plan import compare_run, plan_training
    from palimpsest.config.load import quickstarts

    if (recipe is None) == (check is None):
        raise ConfigError("plan: pass a recipe, or --check RUN")
    named = gpus is not None or gpu is not None or nodes > 1
    here = here or (not named and recipe in quickstarts().values())
    hardware, words = _hardware(gpus, nodes, gpu, here=here), overrides or []
    if recipe is None:
        assert check is not None
        _print(compare_run(check, hardware), lambda figures: _show_figures(str(check), figures), json=json)
        return
    made = plan_training(recipe, words, hardware, choose=hardware is not None and not hardware.device.is_cpu)
    options = [] if gpus is None else ["--gpus", str(gpus), *(["--nodes", str(nodes)] if nodes > 1 else [])]
    command = shlex.join(["palimpsest", "train", recipe, *words, *options])
    _print(made.to_json(price, command if made.fits else ""), show_plan, json=json)
    raise typer.Exit(0 if made.fits else UNFIT)


def _print(shown: dict[str, Any], show: Callable[[dict[str, Any]], None], *, json: bool) -> None:
    if not json:
        show(shown)
        return

    typer.echo(dumps(shown))


def _hardware(gpus: int | None, nodes: int, gpu: str | None, *, here: bool) -> Hardware | None:
    """The devices that the options name; None: none do."""
    from palimpsest.planning.hardware import Hardware, named_device, this_machine

    if here and (gpus is not None or gpu):
        raise ConfigError("plan: --here takes this machine's GPUs; omit --gpus and --gpu")
    if here:
        return replace(this_machine(), machines=nodes)
    if gpus is None:
        if gpu or nodes > 1:
            raise ConfigError("plan: --gpu and --nodes describe machines of --gpus N; add it")
        return None
    return Hardware(named_device(gpu or "h100"), gpus, nodes)


_LABELS = {"per_machine": "devices per machine"}


def show_plan(shown: dict[str, Any]) -> None:
    """Print a plan's JSON as text: a key per line, an override per line."""
    billed = {"gpu_hours", "dollars_per_gpu_hour", "cost"} if shown.get("device") == "cpu" else set[str]()
    for name, value in shown.items():
        if name in billed:
            continue
        if name == "days" and value < 1:
            name, value = "minutes", value * 24 * 60
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict) and "key" in entry:
                after = f" ({entry['seconds_per_step']:,.0f} s per step)" if "seconds_per_step" in entry else ""
                entry = f"{entry['key']}={entry['value']}{after}: {entry['reason']}"
            if name == "cost":
                entry = f"{_text(entry)} US dollars"
            if entry != "":
                typer.echo(f"{_LABELS.get(name, name.replace('_', ' ')):16s} {printable(_text(entry))}")


def _text(value: Any) -> str:
    """
    >>> _text({"learner": {"learning": 37.48, "rows": 14336.0}}), _text(True), _text(2048)
    ('learner (learning 37.5, rows 14,336)', 'yes', '2,048')
    """
    if isinstance(value, dict):
        pairs = ((name.replace("_", " "), _text(inner), isinstance(inner, dict)) for name, inner in value.items())
        return ", ".join(f"{name} ({text})" if nested else f"{name} {text}" for name, text, nested in pairs)
    if isinstance(value, float):
        return f"{value:,.{0 if value >= 1000 else 1}f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _show_figures(run: str, figures: dict[str, Any]) -> None:
    rows = [[name, *(f"{value:,.4g}" for value in row.values())] for name, row in figures.items()]
    stdout().print(table(run, ["mean per step", "predicted", "measured", "ratio"], rows))
