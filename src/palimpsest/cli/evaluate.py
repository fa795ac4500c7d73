"""`palimpsest eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.going_on import RERUN, going_on
from palimpsest.cli.options import ApiKeyEnv, BaseUrl, Columns, Force, Tokenizer, named_columns, numbers
from palimpsest.progress.terminal import Terminal

if TYPE_CHECKING:
    from palimpsest.evaluation.summary import EvalSummary
    from palimpsest.jobs.evaluation import Evaluation


def evaluate(
    policy: Annotated[
        str | None,
        typer.Option(
            help="A shipped policy, or my_module:MyPolicy; default: the recipe's or the run's, else overwrite."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="`embedded`, a Hugging Face folder, a run, which brings its configuration, or a hub id.")
    ] = "embedded",
    data: Annotated[
        str | None,
        typer.Option(
            help="A data file (HotpotQA, MemAgent, RULER, MemAct...), synthetic, synthetic_search; default: the "
            "recipe's or the run's, else synthetic."
        ),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(min=1, help="Documents per context, gold ones among distractors; default: as they are."),
    ] = None,
    chunks: Annotated[
        str | None, typer.Option(help="Paragraphs per synthetic document; several lengths as 4,64,256.")
    ] = None,
    objectives: Annotated[
        str | None, typer.Option(help="Questions per search problem, of synthetic_search or a file; several as 1,2,4.")
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="File whose paragraphs serve as distractors, or that document indices refer to."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    columns: Columns = None,
    out: Annotated[Path | None, typer.Option(help="Folder for samples.jsonl and summary.json.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe that gives policy, budgets, reward and sampling; default: the run's, else what fits the model."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A policy option (chunk_size=2048) or a dotted recipe key."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws and of the assembly of contexts.")] = 0,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    tokenizer: Tokenizer = None,
    force: Force = False,
) -> None:
    """Play every problem once with a memory policy, grade the answers, print a table.

    With --out, one line a problem goes to samples.jsonl as it finishes, and the figures to summary.json; run again,
    it plays only what has no grade yet.

    \b
    Examples:
      palimpsest eval --data hotpot_dev.json --documents 20 --out evals/hotpot-20
      palimpsest eval --model runs/first/checkpoints/step-000100 --data synthetic --chunks 4,64,256
      palimpsest eval --policy prune --model runs/first --data synthetic_search --objectives 1,2,4,8
      palimpsest eval --model Qwen/Qwen3-4B --data eval_200.json --limit 32 --set chunk_size=2048
      palimpsest eval --policy my_module:MyPolicy --data dev.jsonl --set notebook_lines=8
      palimpsest eval --policy full_context --data hotpot_dev.json --set reward.name=f1
      palimpsest eval --base-url http://127.0.0.1:8000/v1 --model Qwen/Qwen3-4B --data eval_200.json --out evals/qwen
      palimpsest eval --base-url https://api.openai.com/v1 --model gpt-4.1-mini --api-key-env OPENAI_API_KEY --limit 8
    """
    from palimpsest.jobs.settings import Agent, Remote, evaluation_config

    lengths = None if chunks is None else numbers("--chunks", "lengths", chunks)
    sizes = None if objectives is None else numbers("--objectives", "numbers", objectives)
    agent = Agent(model, policy, recipe, settings or (), seed, Remote.named(base_url, api_key_env, tokenizer))
    config = evaluation_config(
        agent,
        data=data,
        documents=documents,
        objectives=sizes,
        corpus=corpus,
        limit=limit,
        columns=None if columns is None else named_columns(columns),
    )
    from palimpsest.jobs.evaluation import evaluate_config  # after the configuration is known to be right

    terminal = Terminal()
    for line in agent.told(config):
        terminal.message(line)
    with going_on(
        lambda: "nothing is kept without --out" if out is None else RERUN + (", without --force" if force else "")
    ):
        evaluation = evaluate_config(config, chunks=lengths, out=out, force=force, progress=terminal)
    _show(evaluation)


_COLUMNS = ["", "problems", "cut", "accuracy", "95%", "em", "f1", "sub-em", "evidence kept", "turns", "tokens/document"]


def _show(evaluation: Evaluation) -> None:
    from palimpsest.cli.show import stdout, table
    from palimpsest.evaluation.samples import SAMPLES
    from palimpsest.evaluation.transcripts import TRANSCRIPTS
    from palimpsest.jobs.evaluation_folder import SUMMARY

    console = stdout()
    console.print(table(evaluation.title, _COLUMNS, [_row(summary) for summary in evaluation.summaries]))
    if evaluation.out is not None:
        written = [evaluation.out / name for name in (SAMPLES, SUMMARY, TRANSCRIPTS)]
        Terminal().message(", ".join(str(path) for path in written if path.exists()))
    for line in evaluation.beside.told:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    without_gold = sum(sample.without_gold for sample in evaluation.samples)
    if without_gold:
        console.print(f"{without_gold} questions have no gold in the data: played, not graded, not in the accuracy")
    lost = sum(not sample.is_final for sample in evaluation.samples)
    if lost and evaluation.ungraded == len(evaluation):
        typer.echo(f"error: nothing could be graded, most often because: {evaluation.commonest_reason}", err=True)
        raise typer.Exit(1)
    if lost:
        console.print(
            f"{lost} episodes have no grade and are not in the accuracy, most often because: "
            f"{evaluation.commonest_reason}; run again to play them again"
        )


def _row(summary: EvalSummary) -> list[str]:
    from palimpsest.cli.show import interval, percent

    metric, kept = summary.metrics, summary.measures.get("evidence_retention")
    return [
        summary.name,
        str(summary.problems),
        str(summary.documents_cut),
        percent(summary.accuracy.mean),
        interval(summary.accuracy),
        *(percent(metric.get(name)) for name in ("em", "f1", "sub_em")),
        percent(kept),
        f"{summary.turns_per_document:.1f}",
        f"{summary.tokens_per_document:,.0f}",
    ]
