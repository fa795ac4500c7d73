"""What an evaluation measured: the agent's figures, the baselines' beside them, every sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.app.evaluate.baselines import READING
from palimpsest.app.evaluate.evaluation_data import editions_of
from palimpsest.app.python_calls import Table
from palimpsest.config.data import listed
from palimpsest.config.load import dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import Endpoint
from palimpsest.evaluation.episode_files import EPISODES, first_episodes
from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.summary import EvalSummary, Score, accuracy_of, interval_notes
from palimpsest.plugins import plain
from palimpsest.provenance import MADE_WITH, facts, provenance
from palimpsest.report.page import ToldStory, told_beside, view_command
from palimpsest.report.run_reports import EvaluationResults, write_evaluation_report
from palimpsest.text.codec import Codec


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The figures of one policy on one set of problems, and what they are figures of."""

    summary: EvalSummary
    policy: str
    data: str
    """Name of the set of problems; several policies share it."""
    baseline: str | None = None
    set_problems: int = 0
    """Problems of the set; a baseline may have played fewer."""
    fits_window: int | None = None
    """Problems whose document fits the model's window whole; None where that wasn't looked at."""

    @property
    def measures_reading(self) -> bool:
        """Whether every document fits the window, so that no memory is needed."""
        return self.baseline is None and self.fits_window == self.summary.problems

    def to_json(self) -> dict[str, Any]:
        """The summary's keys and these."""
        own = {key: value for key, value in asdict(self).items() if key != "summary"}
        note = {"note": READING} if self.measures_reading else {}
        return {**self.summary.to_json(), **own, **note}

    def cells(self) -> dict[str, Any]:
        """By column of a table; shares, not percent. `low` and `high` are the ends of the 95% interval."""
        summary, measures = self.summary, self.summary.measures
        copied, drawn = measures.get("copy_fidelity"), summary.samples
        figures = {
            "": summary.name,
            "problems": summary.problems,
            "ungraded": summary.ungraded or None,
            "documents cut": summary.documents_cut or None,
            "fit the window": self.fits_window or None,
            "accuracy": summary.accuracy.mean,
            "low": summary.accuracy.low,
            "high": summary.accuracy.high,
            f"pass@{drawn}": summary.pass_at.get(str(drawn)),
            "disagree": summary.disagreement,
            **{name: summary.metrics.get(name) for name in ("em", "f1", "sub_em")},
            "evidence kept": measures.get("evidence_retention"),
            "invented": None if copied is None else 1.0 - copied,
            "kept out": measures.get("dropped_share"),
            "overwritten": measures.get("overwrite_rate"),
            "recall hits": measures.get("recall_hit_rate"),
            "turns": summary.turns_per_document,
            "tokens": round(summary.tokens_per_document),
            "tokens/correct": None if summary.tokens_per_correct is None else round(summary.tokens_per_correct),
        }
        return {name: value for name, value in figures.items() if value is not None}


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation measured. Samples hold question, answers, the answer given, the last memory, the grade."""

    config: RunConfig
    """With the budgets that were chosen for the model's window; of several policies the first's."""
    rows: tuple[EvaluationRow, ...]
    """The agent's: one a policy, set of problems and size; shortest first."""
    samples: tuple[Sample, ...]
    """The agent's."""
    out: Path | None = None
    """Where samples.jsonl and summary.json are."""
    endpoint: Endpoint | None = None
    """Where the model was asked, and how far that is exact; None: it was opened here."""
    rows_left_out: int = 0
    """Rows of the data whose gold paragraph isn't there (`data.on_missing_gold=skip`)."""
    baseline_rows: tuple[EvaluationRow, ...] = ()
    baseline_samples: tuple[Sample, ...] = ()
    documents: tuple[int, ...] = ()
    """Per context, where several numbers were asked for."""
    seconds: float = 0.0
    """That this call played."""
    played: int = 0
    """Episodes of this call; the others were in the log."""
    preset: Mapping[str, Any] | None = None
    """The published protocol it follows, and what differs."""

    @property
    def summaries(self) -> tuple[EvalSummary, ...]:
        """The agent's figures, row by row."""
        return tuple(row.summary for row in self.rows)

    @property
    def baselines(self) -> tuple[EvalSummary, ...]:
        """Figures of what was played with the agent: the question alone, the whole document, retrieval."""
        return tuple(row.summary for row in self.baseline_rows)

    @cached_property
    def table(self) -> Table:
        """A row a summary, the baselines' last; shares, not percent. `low` and `high` end the 95% interval."""
        return Table.of([row.cells() for row in (*self.rows, *self.baseline_rows)])

    @property
    def accuracy(self) -> Score:
        """Over everything of the agent's that is graded, with its 95% interval."""
        return accuracy_of(self.samples)

    @property
    def told(self) -> list[str]:
        """Footnotes of the table."""
        return interval_notes((*self.summaries, *self.baselines))

    @property
    def ungraded(self) -> int:
        """Episodes without a grade, which are not in the accuracy."""
        return sum(summary.ungraded for summary in self.summaries)

    @property
    def commonest_reason(self) -> str | None:
        """Why most of the episodes without a grade have none, the baselines' included."""
        reasons: Counter[str] = Counter()
        for summary in (*self.summaries, *self.baselines):
            reasons.update(summary.ungraded_reasons)
        return reasons.most_common(1)[0][0] if reasons else None

    @property
    def measures_reading(self) -> tuple[str, ...]:
        """The sets of problems whose every document fits the model's window."""
        return tuple(dict.fromkeys(row.data for row in self.rows if row.measures_reading))

    def __getitem__(self, name: str) -> EvalSummary:
        """The figures of one row, by the name it has in the table. Raises KeyError for an unknown one."""
        summaries = {summary.name: summary for summary in (*self.summaries, *self.baselines)}
        if name not in summaries:
            raise KeyError(f"no {name}; there are {', '.join(summaries)}")
        return summaries[name]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        ungraded = f", {self.ungraded} ungraded" if self.ungraded else ""
        return f"Evaluation of {self.title}, {len(self)} episodes{ungraded}\n{self.table}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.table._repr_html_()

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of those that were evaluated."""
        return tuple(dict.fromkeys(row.policy for row in self.rows))

    @property
    def title(self) -> str:
        """Who was evaluated on what."""
        data = ", ".join(map(plain, listed(self.config.data.eval_source or self.config.data.source)))
        names = ", ".join(map(plain, self.policies)) or plain(self.config.policy.name)
        return f"{names} on {data if self.preset is None else self.preset['name']}, model {self.config.model.path}"

    def to_json(self) -> Mapping[str, Any]:
        """What summary.json holds."""
        config = self.config
        return {
            "policy": config.policy.model_dump(mode="json"),
            "model": config.model.path,
            **({} if self.endpoint is None else {"model_endpoint": asdict(self.endpoint)}),
            "data": config.data.eval_source or config.data.source,
            "editions": editions_of(config.data),
            "rows_left_out": self.rows_left_out,
            "documents": self.documents or config.data.documents,
            "reward": config.reward.name,
            "seed": config.seed,
            **({} if self.preset is None else {"preset": dict(self.preset)}),
            "seconds": round(self.seconds, 3),
            "episodes_played": self.played,
            "evaluations": [row.to_json() for row in self.rows],
            "baselines": [row.to_json() for row in self.baseline_rows],
            MADE_WITH: provenance(),
        }


# ---- The report of an evaluation, beside its figures ---------------------------------------------------------


def report_evaluation(evaluation: Evaluation, codec: Codec) -> None:
    """Write report.html beside the evaluation's samples; without a folder nothing."""
    out, config = evaluation.out, evaluation.config
    if out is None:
        return
    reading = [f"{READING}: {', '.join(evaluation.measures_reading)}"] if evaluation.measures_reading else []
    results = EvaluationResults(
        title=evaluation.title,
        accuracy=evaluation.accuracy,
        facts=[
            ("model", config.model.path),
            ("policy", ", ".join(evaluation.policies)),
            ("data", ", ".join(listed(config.data.eval_source or config.data.source))),
            ("reward", config.reward.name),
            ("seed", str(config.seed)),
            *facts(provenance()),
        ],
        summaries=evaluation.summaries,
        baselines=evaluation.baselines,
        config=dump_config(config),
        notes=[*reading, *evaluation.told],
        stories=_told(out, [summary.name for summary in evaluation.summaries], codec),
        look=view_command(out),
    )
    write_evaluation_report(out, results)


def _told(out: Path, names: list[str], codec: Codec) -> list[ToldStory]:
    """An episode of the agent's that went wrong, of those recorded first."""
    groups = [
        group
        for group in first_episodes(out / EPISODES)
        if any(group.trajectories[0].group_id.startswith(f"{name}/") for name in names)
    ]
    return told_beside(sorted(groups, key=lambda group: group.trajectories[0].group_id), codec)
