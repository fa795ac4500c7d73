"""`palimpsest prompts`: the wording of a policy as a file to change."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Print a policy's prompts as a file.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Print a policy's prompts as a file."""


@app.command("show")
def show(
    policy: Annotated[str, typer.Argument(help="A shipped policy, or my_module:MyPolicy.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the policy.")
    ] = None,
) -> None:
    """Print the texts a policy shows the model, as YAML; change them and give the file as the option `prompts`.

    \b
    Examples:
      palimpsest prompts show overwrite > my.yaml
      palimpsest check overwrite --set prompts=my.yaml
      palimpsest train memagent-7b policy.options.prompts=my.yaml
    """
    from palimpsest.jobs.prompts import prompt_file

    typer.echo(prompt_file(policy, tuple(settings or ())), nl=False)
