"""`palimpsest judge`: a model that grades answers."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Models that grade answers.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Models that grade answers."""


@app.command("check")
def check(
    url: Annotated[str, typer.Option(help="What stands before /chat/completions, e.g. http://127.0.0.1:9527/v1.")],
    model: Annotated[str, typer.Option(help="The model's name at the endpoint.")],
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the key.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of a verdict, thinking included.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one attempt.")] = 60.0,
    attempts: Annotated[int, typer.Option(min=1, help="Requests for one verdict.")] = 2,
) -> None:
    """Try a judge on worked cases: right, in other words, partly right, wrong, and answers that try to pass by force.

    Ends with 1 if such an answer passes or a verdict can't be had; a verdict that another judge would not have given is
    shown and is no failure.

    \b
    Examples:
      palimpsest judge check --url http://127.0.0.1:9527/v1 --model gpt-oss
      palimpsest judge check --url https://api.openai.com/v1 --model gpt-4.1-mini --api-key-env OPENAI_API_KEY
    """
    from palimpsest.cli.show import stdout, table
    from palimpsest.jobs.judging import try_judge

    trial = try_judge(url, model, api_key_env, max_tokens, timeout, attempts)
    rows = [
        [
            each.case.name,
            each.case.expected,
            f"{each.verdict or 'none'}{'' if each.agreed else ' !'}",
            f"{each.seconds:.2f}",
        ]
        for each in trial.tried
    ]
    console = stdout()
    console.print(table(f"{model} at {url}", ["case", "expected", "verdict", "seconds"], rows), markup=False)
    for line in trial.conclusions:
        console.print(line, markup=False, highlight=False)
    raise typer.Exit(int(not trial.passed))
