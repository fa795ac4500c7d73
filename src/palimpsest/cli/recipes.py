"""`palimpsest recipes` and `new`: what is shipped, and files to start from."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Overrides

app = typer.Typer(help="Recipes and their keys: list, show, keys.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_recipes() -> None:
    """List the shipped recipes: those that train, then the published protocols, eval/NAME.

    \b
    Example:
      palimpsest recipes list
    """
    from palimpsest.config.load import EVALUATIONS, recipe_names, recipe_text

    for name in (*recipe_names(), *recipe_names(EVALUATIONS)):
        typer.echo(f"{name:28s} {_purpose(recipe_text(name))}")


def _purpose(text: str) -> str:
    """The first sentence of the comment that a recipe begins with.

    >>> _purpose("# Trains Qwen2.5 on\\n# long documents. The rest is\\n# the paper's.\\nseed: 0\\n")
    'Trains Qwen2.5 on long documents.'
    """
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = "\n".join(line.lstrip("# ") for line in lines)
    return re.split(r"(?<=\.)\s|\nProtocol:", comment, maxsplit=1)[0].replace("\n", " ")


@app.command("show")
def show(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")],
    overrides: Overrides = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Every key, defaults included.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="A table: each key with value, default, meaning.")] = False,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="The texts of its policy, as the file that policy.options.prompts takes.")
    ] = False,
) -> None:
    """Show a recipe with its comments, resolved with overrides, or explained key by key; or its policy's prompts.

    \b
    Examples:
      palimpsest recipes show memagent-7b
      palimpsest recipes show memagent-7b train.max_steps=10 --resolved
      palimpsest recipes show memagent-quickstart --explain
      palimpsest recipes show memagent-7b --prompts > my.yaml
      palimpsest train memagent-7b policy.options.prompts=my.yaml
    """
    from palimpsest.config.load import dump_config, load_recipe, recipe_text

    if explain:
        _explain(recipe, overrides or [])
        return
    if not (resolved or overrides or prompts):
        typer.echo(recipe_text(recipe), nl=False)
        return
    config = load_recipe(recipe, overrides or [])
    if prompts:
        from palimpsest.app.starter_files import prompt_file

        typer.echo(prompt_file(config.policy), nl=False)
        return
    typer.echo(dump_config(config), nl=False)


@app.command("keys")
def keys(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="A section or a key, e.g. train or data.synthetic.")
    ] = "",
) -> None:
    """Print the keys of a recipe: what each takes, its default, its meaning.

    `policy.options.NAME` has the options of a policy.

    \b
    Examples:
      palimpsest recipes keys
      palimpsest recipes keys train
      palimpsest recipes keys policy.options.overwrite
    """
    from palimpsest.app.starter_files import keys_under

    _print(
        ["key", "takes", "default", "meaning"], [[k.name, k.values, k.default, k.meaning] for k in keys_under(prefix)]
    )


def _explain(recipe: str, overrides: list[str]) -> None:
    from palimpsest.app.starter_files import explained

    rows = [
        [setting.key.name, setting.value, setting.key.default if setting.changed else "", setting.key.meaning]
        for setting in explained(recipe, overrides)
    ]
    _print(["key", "value", "default, if another", "meaning"], rows)


def _print(columns: list[str], rows: list[list[str]]) -> None:
    """A table whose last columns wrap; code is not quoted on a terminal."""
    from rich.table import Table
    from rich.text import Text

    from palimpsest.cli.options import stdout

    made = Table(header_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        made.add_column(column, no_wrap=number == 0, overflow="fold", ratio=None if number == 0 else min(number, 2))
    for row in rows:
        made.add_row(*(Text(cell.replace("`", "").replace("None:", "null:")) for cell in row))
    stdout().print(made)


# ---- palimpsest new ------------------------------------------------------------------------------------------


def new(
    kind: Annotated[str, typer.Argument(help="policy, tool or reward.")],
    name: Annotated[str, typer.Argument(help="Of the module, e.g. my_policy.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path(),
) -> None:
    """Write a policy, tool or reward to begin with: the file, a recipe that trains it, a test.

    It learns with the model inside the package, in minutes on a CPU, before you change anything.

    \b
    Examples:
      palimpsest new policy my_policy
      palimpsest new tool my_tool --out tools
      palimpsest new reward my_reward
    """
    from palimpsest.app.starter_files import class_name, write_scaffold

    module, recipe, test = write_scaffold(kind, name, out)
    typer.echo("\n".join(map(str, (module, recipe, test))))
    steps = [] if out == Path() else [f"cd {out}"]
    if kind != "tool":
        steps.append(f"palimpsest check {name}:{name if kind == 'reward' else class_name(name)}")
    steps += [f"python -m pytest {test.name}", f"palimpsest train {recipe.name} --out runs/{name}"]
    typer.echo("next:\n" + "\n".join(f"  {step}" for step in steps))
