"""`palimpsest recipes`: what is shipped, and what a recipe with overrides comes to."""

from __future__ import annotations

from typing import Annotated

import typer

from palimpsest.cli.options import Overrides

app = typer.Typer(help="List the shipped recipes, or show one.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_recipes() -> None:
    """List the shipped recipes.

    \b
    Example:
      palimpsest recipes list
    """
    from palimpsest.config.load import recipe_names, recipe_text

    for name in recipe_names():
        first = recipe_text(name).splitlines()[0]
        typer.echo(f"{name:26s} {first.lstrip('# ')}")


@app.command("show")
def show(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")],
    overrides: Overrides = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Every key, defaults included.")] = False,
) -> None:
    """Show a recipe with its comments, or resolved with overrides.

    \b
    Examples:
      palimpsest recipes show memagent-7b
      palimpsest recipes show memagent-7b train.steps=10 --resolved
    """
    from palimpsest.config.load import dump_config, load_recipe, recipe_text

    config = load_recipe(recipe, overrides or [])
    typer.echo(dump_config(config) if resolved or overrides else recipe_text(recipe), nl=False)
