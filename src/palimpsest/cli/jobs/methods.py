"""What a quickstart compares, method by method: names, figures, words. The jobs themselves know no method.

A method's recipe `NAME-quickstart` says what is trained (`policy`, `evaluation.rivals`) and what is played on trained
weights (`evaluation.baselines`); here stand the names the report gives the agent, what grows along its axis, and which
figures the summary holds besides.

Not covered: a method whose agents need another engine or data than the recipe can name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from palimpsest.config.schema import RunConfig
from palimpsest.data.source import build_source
from palimpsest.evaluate.summary import EvalSummary
from palimpsest.types import Problem

Summaries = Mapping[str, Mapping[int, EvalSummary]]
"""Policy name, then point of the axis."""


class Axis(Protocol):
    """What an evaluation is plotted against; a point is a whole number, which names it in summary.json."""

    def points(self, config: RunConfig) -> tuple[int, ...]:
        """In any order."""
        ...

    def problems(self, config: RunConfig, point: int) -> list[Problem]:
        """The held-out problems of a point, `evaluation.problems` of them."""
        ...

    def heading(self, config: RunConfig, point: int) -> str:
        """Of a table's column."""
        ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """Documents of multiples of the training length."""

    def points(self, config: RunConfig) -> tuple[int, ...]:
        return config.evaluation.multiples

    def problems(self, config: RunConfig, point: int) -> list[Problem]:
        source = build_source(config.data, split="eval")
        return source.problems(step=0, count=config.evaluation.problems, chunks=point * training_chunks(config))

    def heading(self, config: RunConfig, point: int) -> str:
        return f"{point * training_chunks(config):,} chunks ({point}x)"


def training_chunks(config: RunConfig) -> int:
    """Longest document of training."""
    curriculum = config.data.curriculum
    return curriculum.chunks[-1] if curriculum else config.data.synthetic.chunks


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
    figures: Callable[[str, Summaries], dict[str, Any]] = lambda agent, summaries: {}
    """Further keys of summary.json, from the agent's name and all summaries."""

    @property
    def before(self) -> str:
        """The agent before training with rewards."""
        return f"{self.agent}_before"

    def names(self, config: RunConfig) -> tuple[str, ...]:
        """All that is evaluated, in the order of tables."""
        return (self.agent, self.before, *config.evaluation.rivals, *config.evaluation.baselines)


def _recall_figures(agent: str, summaries: Summaries) -> dict[str, Any]:
    """Share of the agent's queries that brought up evidence: at the first point, and at each."""
    rates = {point: row.measures.get("recall_hit_rate") for point, row in sorted(summaries[agent].items())}
    return {
        "recall_hit_rate": next(iter(rates.values())),
        "recall_hit_rates": {str(point): rate for point, rate in rates.items()},
    }


METHODS = {
    method.name: method
    for method in (
        Method(
            "memagent",
            labels={
                "agent": "agent after RL",
                "agent_before": "same model before RL",
                "full_window": "whole document in the window",
                "last_window": "last window only",
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
        ),
    )
}
