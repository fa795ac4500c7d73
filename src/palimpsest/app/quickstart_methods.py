"""What a quickstart compares, method by method: names, figures, words.

A method's recipe `NAME-quickstart` says what is trained (`policy`, `evaluation.trained_baselines`) and what is played
on trained weights (`evaluation.baselines`); here stand the names the report gives the agent, what grows along its
axis, and which figures the summary holds besides.

Not covered: a method whose agents need another engine or data than the recipe can name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, Protocol

from palimpsest.config.data import LONGEST, SearchDataConfig
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.sources.problem_source import build_source
from palimpsest.data.synthetic.search_problems import SOURCE
from palimpsest.errors import ConfigError
from palimpsest.evaluation.sample_log import Cell
from palimpsest.evaluation.summary import EvalSummary
from palimpsest.report.axis_labels import DOCUMENTS, QUESTIONS, AxisWords, times
from palimpsest.runs.jsonl_rows import whole
from palimpsest.text.display_text import counted
from palimpsest.types import Problem

Summaries = Mapping[str, Mapping[int, EvalSummary]]
"""Policy name, then point of the axis."""


class Axis(Protocol):
    """What an evaluation is plotted against; a point is a whole number, which names it in summary.json."""

    source: ClassVar[str]
    """The `data.train_files` whose problems grow along it."""
    growth: ClassVar[str]
    """What a quickstart does with them, for whoever gives another source."""
    trained_key: ClassVar[str]
    """Key of summary.json for the largest size trained on, of the steps that were done."""
    planned_key: ClassVar[str]
    """Key of summary.json for the largest size that training was to come to."""
    words: ClassVar[AxisWords]
    unit: ClassVar[str]
    """Of the sizes of its problems, as in `Cell.unit`."""

    def size(self, config: RunConfig, point: int) -> int:
        """Of a point's problems, in `unit`."""
        ...

    def points(self, config: RunConfig) -> tuple[int, ...]:
        """In any order."""
        ...

    def count(self, config: RunConfig, point: int) -> int:
        """How many problems are played at a point."""
        ...

    def problems(self, config: RunConfig, point: int) -> list[Problem]:
        """The held-out problems of a point, `count` of them."""
        ...

    def heading(self, config: RunConfig, point: int, trained: int) -> str:
        """Of a table's column; `trained` is the largest size trained on."""
        ...

    def planned(self, config: RunConfig) -> int:
        """The largest size that training is to come to."""
        ...

    def telling(self, config: RunConfig) -> int:
        """The point whose problems show whether a policy's budgets suffice."""
        ...

    def sizes(self, config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """[steps] size of the problems trained on, from lines of metrics.jsonl."""
        ...

    def turns(self, config: RunConfig, policy: PolicyConfig, point: int) -> int:
        """About how many an episode takes."""
        ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """Documents of multiples of the training length."""

    source: ClassVar[str] = "synthetic"
    growth: ClassVar[str] = "grows its documents"
    trained_key: ClassVar[str] = "training_chunks"
    planned_key: ClassVar[str] = "planned_chunks"
    words: ClassVar[AxisWords] = DOCUMENTS
    unit: ClassVar[str] = "chunks"

    def size(self, config: RunConfig, point: int) -> int:
        return point * self.planned(config)

    def points(self, config: RunConfig) -> tuple[int, ...]:
        asked, most = config.evaluation.sizes or (1, 16, 64, 256), LONGEST // self.planned(config)
        if min(asked) < 1 or max(asked) > most:
            raise ConfigError(
                f"evaluation.sizes={list(asked)}: give numbers from 1 to {most:,}, e.g. [1, 16]; a document has "
                f"{LONGEST:,} chunks at the most, and training comes to {counted(self.planned(config), 'chunk')}"
            )
        return _each_once(asked)

    def count(self, config: RunConfig, point: int) -> int:
        asked, budget = config.evaluation.problems, config.evaluation.chunk_budget
        return asked if budget is None else max(1, min(asked, budget // self.size(config, point)))

    def problems(self, config: RunConfig, point: int) -> list[Problem]:
        source = build_source(config.data, split="eval")
        return source.problems(step=0, count=self.count(config, point), size=self.size(config, point))

    def heading(self, config: RunConfig, point: int, trained: int) -> str:
        size = self.size(config, point)
        return f"{counted(size, 'chunk')} ({times(size, trained)}x)"

    def planned(self, config: RunConfig) -> int:
        curriculum = config.data.curriculum
        return curriculum.chunks[-1] if curriculum else config.data.synthetic.chunks

    def telling(self, config: RunConfig) -> int:
        return min(self.points(config))  # a longer document takes more turns, not larger ones

    def sizes(self, config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        return [whole(row, "curriculum/chunks", config.data.synthetic.chunks) for row in rows]

    def turns(self, config: RunConfig, policy: PolicyConfig, point: int) -> int:
        return point * self.planned(config) + 1 if "chunk_size" in policy.options else 1


@dataclass(frozen=True, slots=True)
class Objectives:
    """Search problems of more and more questions."""

    source: ClassVar[str] = SOURCE
    growth: ClassVar[str] = "asks more and more questions"
    trained_key: ClassVar[str] = "training_objectives"
    planned_key: ClassVar[str] = "planned_objectives"
    words: ClassVar[AxisWords] = QUESTIONS
    unit: ClassVar[str] = "objectives"

    def size(self, config: RunConfig, point: int) -> int:
        return point

    def points(self, config: RunConfig) -> tuple[int, ...]:
        asked, search = config.evaluation.sizes or (2, 4, 6, 8), config.data.search or SearchDataConfig()
        if min(asked) < 1 or max(asked) > search.people:
            raise ConfigError(
                f"evaluation.sizes={list(asked)}: give numbers of questions from 1 to "
                f"data.search.people={search.people}"
            )
        return _each_once(asked)

    def count(self, config: RunConfig, point: int) -> int:
        return config.evaluation.problems

    def problems(self, config: RunConfig, point: int) -> list[Problem]:
        source = build_source(config.data, split="eval")
        return source.problems(step=0, count=self.count(config, point), size=point)

    def heading(self, config: RunConfig, point: int, trained: int) -> str:
        return self.words.sized(point)

    def planned(self, config: RunConfig) -> int:
        return max((config.data.search or SearchDataConfig()).objectives)

    def telling(self, config: RunConfig) -> int:
        return max(self.points(config))  # all questions stand in the first prompt

    def sizes(self, config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        return [self.planned(config) for _ in rows]

    def turns(self, config: RunConfig, policy: PolicyConfig, point: int) -> int:
        return point + 1  # a search a question, and the answer


def _each_once(points: tuple[int, ...]) -> tuple[int, ...]:
    """`points`. Raises ConfigError where one is asked for twice: its problems would be played under one name."""
    if len(set(points)) < len(points):
        raise ConfigError(f"evaluation.sizes={list(points)}: give each number once")
    return points


def _reading_figures(agent: str, summaries: Summaries) -> dict[str, Any]:
    """How true the agent's copies are at the first point, and what a document costs it."""
    row = summaries[agent]

    def compared(measure: str) -> dict[str, float | None]:
        names = {"before": f"{agent}_before", "after": agent}
        return {when: summaries[name][min(row)].measures.get(measure) for when, name in names.items()}

    dropped = compared("dropped_share")
    return {
        "copy_fidelity": compared("copy_fidelity"),
        **({} if dropped["after"] is None else {"dropped_share": dropped}),
        "tokens_per_document": {str(point): summary.tokens_per_document for point, summary in sorted(row.items())},
    }


def _recall_figures(agent: str, summaries: Summaries) -> dict[str, Any]:
    """Those of reading, and the share of the agent's queries that brought up evidence: at the first point, at each."""
    rates = {point: row.measures.get("recall_hit_rate") for point, row in sorted(summaries[agent].items())}
    return _reading_figures(agent, summaries) | {
        "recall_hit_rate": next(iter(rates.values())),
        "recall_hit_rates": {str(point): rate for point, rate in rates.items()},
    }


def _tool_figures(agent: str, summaries: Summaries) -> dict[str, Any]:
    """What episodes cost each policy, how much it answered right, how the agent used its context."""

    def of(name: str, measure: str) -> dict[str, float | None]:
        return {str(point): row.measures.get(measure) for point, row in sorted(summaries[name].items())}

    figures: dict[str, Any] = {
        key: {
            name: {str(point): summary.metrics.get(metric) for point, summary in sorted(row.items())}
            for name, row in summaries.items()
        }
        for key, metric in (("all_right", "all"), ("answers_right", "each"))
    }
    figures["input_tokens_per_episode"] = {name: of(name, "input_tokens") for name in summaries}
    for key, measure in (("prunes_per_episode", "prunes"), ("segments_per_trajectory", "segments")):
        figures[key] = of(agent, measure)
        known = [value for value in figures[key].values() if value is not None]
        figures[f"mean_{key}"] = fmean(known) if known else None
    return figures


@dataclass(frozen=True, slots=True)
class Pace:
    """What the parts of a quickstart take on two cores, in seconds: together what a run was measured to take, each
    roughly. An ETA is scaled by the pace of the machine it runs on."""

    lesson: float
    """A step of the cold start."""
    step: float
    """A step of training with rewards."""
    turn: float
    """A turn of the evaluation, all processes together."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method's quickstart."""

    name: str
    agent: str = "agent"
    """What tables call the trained agent; before training with rewards it is `{agent}_before`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Words for the names in tables and figures."""
    others: str = "on the same weights, without a memory"
    """What the report says of the other policies in general."""
    note: str = "The baselines use the trained weights, but answer in one call from what fits the window."
    axis: Axis = Lengths()
    figures: Callable[[str, Summaries], dict[str, Any]] = _reading_figures
    """Further keys of summary.json, from the agent's name and all summaries."""
    pace: Pace = Pace(lesson=0.3, step=1.0, turn=0.0006)

    @property
    def before(self) -> str:
        """The agent before training with rewards."""
        return f"{self.agent}_before"

    def names(self, config: RunConfig) -> tuple[str, ...]:
        """All that is evaluated, in the order of tables."""
        return (self.agent, self.before, *config.evaluation.trained_baselines, *config.evaluation.baselines)

    def cell(self, config: RunConfig, player: str, point: int) -> Cell:
        """The cell of a player at a point of the axis."""
        axis = self.axis
        return Cell(axis.source, axis.size(config, point), axis.unit, player, baseline=player != self.agent)


METHODS = {
    method.name: method
    for method in (
        Method(
            "memagent",
            labels={
                "agent": "agent after RL",
                "agent_before": "same model before RL",
                "agent_ungrounded": "agent without the rule",
                "full_window": "whole document in the window",
                "last_window": "last window only",
                "retrieval": "retrieval by the question",
            },
        ),
        Method(
            "rememr1",
            agent="recall",
            labels={
                "recall": "recall, after RL",
                "recall_before": "recall, before RL",
                "overwrite": "overwrite, after RL",
                "rule_recall": "question as the query",
            },
            others="in comparison",
            note="The overwriting agent was trained beside it on the same data, with the same memory, rewards and "
            "steps; the recall by rule uses the recalling agent's weights.",
            figures=_recall_figures,
            pace=Pace(lesson=0.4, step=2.5, turn=0.004),
        ),
        Method(
            "memact",
            agent="prune",
            labels={
                "prune": "prunes, after RL",
                "prune_before": "prunes, before RL",
                "no_prune": "keeps everything",
                "full_history": "keeps everything, with room for it",
                "sliding_window": "keeps the latest",
                "summary": "sums up when full",
            },
            others="on the same weights, without pruning",
            note="The others use the trained weights, the same tools and, but for the one with room for everything, "
            "the same limit of the context.",
            axis=Objectives(),
            figures=_tool_figures,
            pace=Pace(lesson=0.3, step=6.5, turn=0.03),
        ),
    )
}

TITLES: Mapping[str, str] = {name: title for method in METHODS.values() for name, title in method.labels.items()}
"""What tables call the players of a quickstart."""
