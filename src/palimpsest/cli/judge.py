"""`palimpsest judge` and `palimpsest rescore`: models and metrics that grade answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.app.evaluate.judge_calibration import JudgeCard, Trial
    from palimpsest.app.evaluate.rescoring import Rescoring


Url = Annotated[str, typer.Option(help="What stands before /chat/completions, e.g. http://127.0.0.1:9527/v1.")]
Model = Annotated[str, typer.Option(help="The model's name at the endpoint.")]
Prompt = Annotated[str, typer.Option(help="default, lenient, strict, rubric, or a .txt or .md file of your own.")]
KeyEnv = Annotated[str | None, typer.Option(help="Environment variable that holds the key.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Of a verdict, thinking included.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds for one attempt.")]
Attempts = Annotated[int, typer.Option(min=1, help="Requests for one verdict.")]

app = typer.Typer(help="Models that grade answers.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Models that grade answers."""


@app.command("check")
def check(
    url: Url,
    model: Model,
    prompt: Prompt = "default",
    api_key_env: KeyEnv = None,
    max_tokens: MaxTokens = 1024,
    timeout: Timeout = 60.0,
    attempts: Attempts = 2,
) -> None:
    """Try a judge on worked cases: right, in other words, partly right, wrong, and answers that try to pass by force.

    Ends with 1 if such an answer passes or a verdict can't be had; a verdict that another judge would not have given is
    shown and is no failure.

    \b
    Examples:
      palimpsest judge check --url http://127.0.0.1:9527/v1 --model gpt-oss
      palimpsest judge check --url https://api.openai.com/v1 --model gpt-4.1-mini --api-key-env OPENAI_API_KEY
    """
    from palimpsest.app.evaluate.judge_calibration import judge_config, try_judge

    options: dict[str, Any] = {
        "api_key_env": api_key_env,
        "max_tokens": max_tokens,
        "timeout_s": timeout,
        "attempts": attempts,
    }
    trial = try_judge(judge_config(url, model, prompt, **options))
    _show_trial(trial, f"{model} at {url}")
    raise typer.Exit(int(not trial.passed))


def _show_trial(trial: Trial, title: str) -> None:
    from palimpsest.cli.output import stdout, table

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
    console.print(table(title, ["case", "expected", "verdict", "seconds"], rows), markup=False)
    for line in trial.conclusions:
        console.print(line, markup=False, highlight=False)


@app.command("card")
def card(
    url: Url,
    model: Model,
    prompt: Prompt = "default",
    api_key_env: KeyEnv = None,
    max_tokens: MaxTokens = 1024,
    timeout: Timeout = 60.0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    out: Annotated[Path | None, typer.Option(help="File to write the card to, e.g. judge-card.json.")] = None,
) -> None:
    """Measure a judge on shipped answers: wrong ones that it accepts, right ones in other words that it rejects.

    Under its prompt, a lenient and a strict one; some 330 requests. An evaluation that is graded by a judge makes such
    a card by itself, unless reward.judge.card=false, or takes the judge-card.json in its folder. Ends with 1 if a
    verdict can't be had.

    \b
    Examples:
      palimpsest judge card --url http://127.0.0.1:9527/v1 --model gpt-oss
      palimpsest judge card --url http://127.0.0.1:9527/v1 --model gpt-oss --prompt my.txt --out judge-card.json
    """
    from palimpsest.app.evaluate.judge_calibration import judge_config, measure_judge

    config = judge_config(url, model, prompt, api_key_env=api_key_env, max_tokens=max_tokens, timeout_s=timeout)
    measured = measure_judge(config, out)
    if json:
        import json as json_module

        print(json_module.dumps(measured.to_json()))
    else:
        _show_card(measured)
    raise typer.Exit(int(not measured.whole))


def _show_card(card: JudgeCard) -> None:
    from palimpsest.cli.output import stdout

    console = stdout()
    for line in card.told:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for each in card.prompts[:1]:  # of the others, --json and --out tell
        for kind, answers in each.accepted.items():
            console.print(f"  {each.prompt} accepted ({kind}): {' | '.join(answers)}", markup=False, highlight=False)
        if each.rejected:
            console.print(f"  {each.prompt} rejected: {' | '.join(each.rejected)}", markup=False, highlight=False)


# ---- palimpsest rescore --------------------------------------------------------------------------------------


def rescore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What palimpsest eval --out wrote.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A dotted key of reward: reward.name=f1.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the folder under DIR/rescored; default: the reward's.")] = None,
) -> None:
    """Grade an evaluation's answers anew, without its model; the new grades stand beside the old ones.

    What is there stays as it is: DIR/rescored/NAME is an evaluation of its own, which palimpsest compare takes.

    \b
    Examples:
      palimpsest rescore evals/first --set reward.name=f1
      palimpsest rescore evals/first --set reward.name=boxed --set reward.strict=true --name published
    """
    from palimpsest.app.evaluate.rescoring import rescore as rescore_folder
    from palimpsest.cli.output import stdout, table

    done = rescore_folder(folder, settings or (), name=name)
    columns = ["", "problems", "ungraded", "logged", done.reward.name, "95%"]
    console = stdout()
    console.print(table(str(folder), columns, _rows(done)))
    for line in done.told:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    typer.echo(str(done.out), err=True)


def _rows(done: Rescoring) -> list[list[str]]:
    from palimpsest.cli.output import interval, percent

    rows = []
    for old, new in zip(done.before, done.summaries, strict=True):
        row = [new.name, str(new.problems), str(new.ungraded), percent(old.accuracy.mean)]
        rows.append([*row, percent(new.accuracy.mean), interval(new.accuracy)])
    return rows
