"""Evaluation results: the agent's figures, the baselines' figures, every sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.app.evaluate.evaluation_data import editions_of
from palimpsest.config.data import listed
from palimpsest.config.load import dump_config
from palimpsest.config.reward import REWARDS
from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import Endpoint
from palimpsest.evaluation.episode_files import EPISODES, first_episodes
from palimpsest.evaluation.sample_log import Cell, Sample, group_id
from palimpsest.evaluation.summary import EvalSummary, Score, accuracy_of, cluster_notes, interval_notes
from palimpsest.events import OnlyReasoned, PromptCut
from palimpsest.notes import Note
from palimpsest.plugins import plain
from palimpsest.provenance import MADE_WITH, facts, provenance
from palimpsest.report.page import ToldStory, contrasting_stories, view_command
from palimpsest.report.run_reports import EvaluationResults, interval, percent, write_evaluation_report
from palimpsest.reward.answer_match import grading_rules
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import Table


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation. Samples contain question, golds, the answer, the last memory and the grade."""

    config: RunConfig
    """Contains the budgets chosen for the model's window; with several policies, the first one's."""
    summaries: tuple[EvalSummary, ...]
    """The agent's figures: one per policy, set and size, shortest first."""
    samples: tuple[Sample, ...]
    """The agent's samples."""
    out: Path | None = None
    """Folder of samples.jsonl and summary.json."""
    endpoint: Endpoint | None = None
    """Endpoint that served the model, and how exactly; None: this process loaded it."""
    rows_left_out: int = 0
    """Skipped rows without a gold paragraph (`data.on_missing_gold=skip`)."""
    baselines: tuple[EvalSummary, ...] = ()
    """Figures of the baselines: the question only, the whole document, retrieval."""
    baseline_samples: tuple[Sample, ...] = ()
    documents: tuple[int, ...] = ()
    """Documents per context, if several numbers were requested."""
    seconds: float = 0.0
    """Duration of this call's episodes."""
    played: int = 0
    """Episodes that this call ran; the others were in the log."""
    folder: Path | None = None
    """Folder with the files of an evaluation recipe, a published protocol."""
    blank: Mapping[str, str] = field(default_factory=dict)
    """Why a policy has no row for a part: it does not admit its problems."""
    regraded: Path | None = None
    """Evaluation whose recorded answers were graded again; None: this call ran episodes."""

    @property
    def rows(self) -> dict[str, EvalSummary]:
        """The agent's figures, then the baselines', by row name in tables."""
        several = len(self.policies) > 1
        names = {summary.cell.title if several else summary.cell.part: summary for summary in self.summaries}
        return names | {summary.cell.title: summary for summary in self.baselines}

    @cached_property
    def table(self) -> Table:
        """One row per summary, baselines last; fractions, not percent. `low` and `high` bound the 95% interval."""
        return Table.of([_columns(name, summary) for name, summary in self.rows.items()])

    @property
    def accuracy(self) -> Score:
        """Accuracy over all graded episodes of the agent, with its 95% interval."""
        return accuracy_of(self.samples)

    @property
    def notes(self) -> list[Note]:
        """Footnotes of the table."""
        reading = [name for name, summary in self.rows.items() if summary.measures_reading]
        notes = [Note("left_blank", name=name, reason=reason) for name, reason in self.blank.items()]
        notes += [Note("measures_reading", names=", ".join(reading))] if reading else []
        samples = (*self.samples, *self.baseline_samples)
        for kind in (OnlyReasoned.kind, PromptCut.kind):
            if count := sum(sample.events.get(kind, 0) for sample in samples):
                notes.append(Note(kind, count=count, turns=sum(sample.turns for sample in samples)))
        return notes + interval_notes(self.rows) + cluster_notes(self.rows)

    @property
    def all_lost(self) -> bool:
        """True if no episode has a grade, and some could get one in a further call."""
        return self.ungraded == len(self) and any(not sample.is_final for sample in self.samples)

    @property
    def ungraded(self) -> int:
        """Episodes without a grade, which the accuracy excludes."""
        return sum(summary.ungraded for summary in self.summaries)

    @property
    def commonest_reason(self) -> str | None:
        """Most frequent reason for a missing grade, baselines included."""
        reasons: Counter[str] = Counter()
        for summary in self.rows.values():
            reasons.update(summary.ungraded_reasons)
        return reasons.most_common(1)[0][0] if reasons else None

    def __getitem__(self, name: str) -> EvalSummary:
        """Figures of the table row `name`. Raises KeyError for an unknown name."""
        if name not in self.rows:
            raise KeyError(f"no {name}; choose from {', '.join(self.rows)}")
        return self.rows[name]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        ungraded = f", {self.ungraded} ungraded" if self.ungraded else ""
        return f"Evaluation of {self.title}, {len(self)} episodes{ungraded}\n{self.table}"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the evaluated policies."""
        return tuple(dict.fromkeys(summary.cell.player for summary in self.summaries))

    @property
    def title(self) -> str:
        """Policies, data and model, as a title."""
        data = ", ".join(map(plain, listed(self.config.data.val_files or self.config.data.train_files)))
        names = ", ".join(map(plain, self.policies)) or plain(self.config.policy.name)
        return f"{names} on {data if self.folder is None else self.config.recipe}, model {self.config.model.path}"

    def to_json(self) -> Mapping[str, Any]:
        """Contents of summary.json."""
        config = self.config
        return {
            "policy": config.policy.model_dump(mode="json"),
            "model": config.model.path,
            **({} if self.endpoint is None else {"model_endpoint": asdict(self.endpoint)}),
            "data": config.data.val_files or config.data.train_files,
            "editions": editions_of(config.data),
            "rows_left_out": self.rows_left_out,
            "documents": self.documents or config.data.documents,
            "reward": config.reward.name,
            "seed": config.seed,
            **({} if self.folder is None else {"recipe": config.recipe}),
            **({} if self.regraded is None else {"regraded_from": str(self.regraded)}),
            "seconds": round(self.seconds, 3),
            "episodes_played": self.played,
            "evaluations": [summary.to_json() for summary in self.summaries],
            "baselines": [summary.to_json() for summary in self.baselines],
            "notes": [note.to_json() for note in self.notes],
            MADE_WITH: provenance(),
        }


ACTED = ("won", "steps", "invalid")
"""Metrics of episodes in an environment."""


def _columns(name: str, summary: EvalSummary) -> dict[str, Any]:
    measures, drawn = summary.measures, summary.samples
    copied = measures.get("copy_fidelity")
    figures = {
        "": name,
        "problems": summary.problems,
        "ungraded": summary.ungraded or None,
        "documents cut": summary.documents_cut or None,
        "fit the window": summary.fits_window or None,
        "accuracy": summary.accuracy.mean,
        "low": summary.accuracy.low,
        "high": summary.accuracy.high,
        f"pass@{drawn}": summary.pass_at.get(str(drawn)),
        "disagree": summary.disagreement,
        "abstention": summary.abstention and summary.abstention.accuracy.mean,
        **{name: summary.metrics.get(name) for name in ("em", "f1", "sub_em", *ACTED)},
        "evidence kept": measures.get("evidence_retention"),
        "hallucinated": None if copied is None else 1.0 - copied,
        "dropped": measures.get("dropped_share"),
        "overwritten": measures.get("overwrite_rate"),
        "recall hits": measures.get("recall_hit_rate"),
        "turns": summary.turns_per_document,
        "tokens": round(summary.tokens_per_document),
        **summary.costs,
        "tokens/correct": None if summary.tokens_per_correct is None else round(summary.tokens_per_correct),
    }
    return {name: value for name, value in figures.items() if value is not None}


# ---- The report of an evaluation -----------------------------------------------------------------------------


def report_evaluation(evaluation: Evaluation, codec: Codec) -> None:
    """Write report.html next to the evaluation's samples; do nothing without a folder."""
    out, config = evaluation.out, evaluation.config
    if out is None:
        return
    players = dict[str, dict[str, EvalSummary]]()
    for summary in (*evaluation.summaries, *evaluation.baselines):
        players.setdefault(plain(summary.cell.player), {})[summary.cell.part] = summary
    results = EvaluationResults(
        title=evaluation.title,
        accuracy=evaluation.accuracy,
        facts=[
            ("model", config.model.path),
            ("policy", ", ".join(evaluation.policies)),
            ("data", ", ".join(listed(config.data.val_files or config.data.train_files))),
            *_grading(evaluation),
            ("seed", str(config.seed)),
            *facts(provenance()),
        ],
        players=players,
        config=dump_config(config),
        notes=evaluation.notes,
        stories=_stories(out, [summary.cell for summary in evaluation.summaries], codec),
        look=view_command(out),
    )
    write_evaluation_report(out, results)


def _grading(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The grading rules of the data, and the accuracy on questions whose right answer is an abstention."""
    reward = evaluation.config.reward
    declared = {key for sample in evaluation.samples for key in sample.grading}
    rules = grading_rules(reward, declared) if reward.name in REWARDS else {"metric": reward.name}
    absent = [sample for sample in evaluation.samples if sample.grading.get("abstention")]
    score = accuracy_of(absent)
    of = f"{percent(score)} of {len({sample.id for sample in absent})} problems ({interval(score)})"
    listed_rules = "; ".join(f"{name}: {rule}" for name, rule in rules.items())
    return [("grading", listed_rules), *([("abstention", of)] if absent else [])]


def _stories(out: Path, cells: list[Cell], codec: Codec) -> list[ToldStory]:
    """A failed episode of the agent, among those recorded first."""
    groups = [
        group
        for group in first_episodes(out / EPISODES)
        if any(group.trajectories[0].group_id == group_id(cell, group.problem.id) for cell in cells)
    ]
    return contrasting_stories(sorted(groups, key=lambda group: group.trajectories[0].group_id), codec)
