"""Comparison of evaluations: figures by task and length, differences per problem, changed configuration keys.

Cells of one set at one length pair their problems. Two problems are the same if set, id, number of the draw, and a
hash over question and golds are equal. A problem with the same id but another question or other golds is never paired;
`other_question` counts it. `palimpsest compare` and its page show the results.

Guaranteed: a difference covers exactly the problems that both sides graded; every sample of either side is in exactly
one count: paired, ungraded, only on that side, or of another question; `notes` reports sides with different problems.
Not covered: a correction of p for many comparisons; a test between more than two sides; a problem that has a document
on only one side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from palimpsest.config.keys import default_settings
from palimpsest.config.reward import LAYERS
from palimpsest.config.section import leaves
from palimpsest.evaluation.sample_log import Cell, Sample
from palimpsest.evaluation.statistics import Difference, paired
from palimpsest.evaluation.summary import EvalSummary, clusters_of, question_hash, summarise
from palimpsest.notes import Note
from palimpsest.text.display_text import counted

# ---- Two evaluations of the same problems, problem by problem, in cells of one set at one length -------------


@dataclass(frozen=True, slots=True)
class Flip:
    """A problem on which the values of the two sides differ."""

    cell: Cell
    id: str
    question: str
    golds: tuple[str, ...]
    first: str | None
    second: str | None
    first_value: float
    second_value: float


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two sides compared problem by problem."""

    problems: int
    """Paired problems, counted once for any number of draws: both sides graded at least one of the episodes."""
    episodes: int
    """Paired draws, graded on both sides."""
    independent: int
    """Clusters of the problems; a shared question (at several lengths) or document makes one cluster."""
    difference: Difference | None
    """Second less first; None without pairs."""
    flips: tuple[Flip, ...]
    """Problems whose values differ: losses of the second side, then gains, each in the order of the first side."""
    ungraded: int
    """Episodes (as below) of the same problem on both sides, with at least one grade missing."""
    only_first: int
    only_second: int
    other_question: int
    """Same id on both sides, but another question or other golds: not paired."""
    other_document: int
    """Paired, with different documents."""

    @property
    def counted(self) -> str:
        """Text: the problems that the difference covers."""
        details = [f"{self.episodes} episodes"] if self.episodes != self.problems else []
        details += [f"{self.independent} independent"] if self.independent != self.problems else []
        return counted(self.problems, "problem") + (f" ({', '.join(details)})" if details else "")

    @property
    def warning(self) -> str | None:
        """Warning about the difference; None if both sides graded the same episodes."""
        counts = {
            "unpaired episodes of problems with another question or other golds": self.other_question,
            "episodes only on the first side": self.only_first,
            "episodes only on the second side": self.only_second,
            "episodes without a grade on one side": self.ungraded,
            "paired episodes with different documents": self.other_document,
        }
        warnings = [f"{count} {what}" for what, count in counts.items() if count]
        return "; ".join(warnings) or None

    def to_json(self, flips: int | None = None) -> dict[str, Any]:
        """All fields, with the first `flips` flips (None: all)."""
        values = asdict(self)
        return {**values, "flips": values["flips"][:flips], "flipped": len(self.flips), "warning": self.warning}


def pair(first: Sequence[Sample], second: Sequence[Sample]) -> Pairing:
    ours, theirs = ({sample.key: sample for sample in samples} for samples in (first, second))
    both = [key for key in ours if key in theirs]
    same = [key for key in both if question_hash(ours[key]) == question_hash(theirs[key])]
    graded = [key for key in same if ours[key].value is not None and theirs[key].value is not None]
    pairs = [(ours[key], theirs[key]) for key in graded]
    return Pairing(
        problems=len({(one.cell, one.id) for one, _ in pairs}),
        episodes=len(pairs),
        independent=len(set(clusters_of([one for one, _ in pairs]))),
        difference=difference_of(pairs) if pairs else None,
        flips=_flips(pairs),
        ungraded=len(same) - len(graded),
        only_first=len(ours) - len(both),
        only_second=len(theirs) - len(both),
        other_question=len(both) - len(same),
        other_document=sum(one.document != two.document for one, two in pairs if one.document and two.document),
    )


def difference_of(pairs: Sequence[tuple[Sample, Sample]]) -> Difference:
    """Second less first, of one or more pairs of graded samples."""
    values = [(one.value or 0.0, two.value or 0.0) for one, two in pairs]
    return paired([one for one, _ in values], [two for _, two in values], clusters_of([one for one, _ in pairs]))


def _flips(pairs: Sequence[tuple[Sample, Sample]]) -> tuple[Flip, ...]:
    flips = [
        Flip(one.cell, one.id, one.question, one.answers, one.answer, two.answer, one.value or 0.0, two.value or 0.0)
        for one, two in pairs
        if one.value != two.value
    ]
    return tuple(sorted(flips, key=lambda flip: flip.second_value > flip.first_value))


# ---- Evaluations side by side --------------------------------------------------------------------------------


REGRADED = "regraded"
"""Key of an identity, and subfolder of an evaluation, for later grades."""
RUN = "run."
"""Prefix of a run's configuration keys."""
_DRAWN = {"data.synthetic": "synthetic", "data.search": "synthetic_search"}
"""Section of the settings of each generated source."""
_FOLLOW = ("weights", "model")
"""Keys that follow from the seed of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison."""

    name: str
    samples: tuple[Sample, ...]
    """Samples of the agents."""
    baselines: tuple[Sample, ...] = ()
    """Samples of its baselines, with separate figures; the overall difference excludes them."""
    unreadable: int = 0
    """Unreadable lines of its logs."""
    not_asked: int = 0
    """Episodes of earlier calls outside the last request."""
    settings: Mapping[str, Any]
    """Dotted key to value."""
    folder: Path = Path()

    @property
    def seeds(self) -> dict[str, Any]:
        return {key: value for key, value in self.settings.items() if _is_seed(key)}

    @property
    def but_for_seeds(self) -> str:
        """Configuration without seeds, as text: equal configurations have equal texts."""
        trained = any(key.startswith(RUN) for key in self.settings)
        left_out = _FOLLOW if trained else ()
        remaining = {key: value for key, value in self.settings.items() if key not in left_out and not _is_seed(key)}
        return json.dumps(remaining, sort_keys=True, default=str)

    def counts(self) -> dict[str, int]:
        """Counts of problems and episodes, without baselines."""
        ungraded = [sample for sample in self.samples if sample.value is None]
        without_gold = sum(sample.without_gold for sample in ungraded)
        return {
            "problems": len({(sample.cell, sample.id) for sample in self.samples}),
            "episodes": len(self.samples),
            "graded": len(self.samples) - len(ungraded),
            "ungraded": len(ungraded) - without_gold,
            "without_gold": without_gold,
            "unreadable_lines": self.unreadable,
            "not_asked": self.not_asked,
        }


@dataclass(frozen=True, slots=True)
class Band:
    """A cell over sides that differ only by their seed."""

    cell: Cell
    sides: tuple[str, ...]
    mean: float
    low: float
    high: float
    """Lowest and highest side."""
    deviation: float
    """Standard deviation between sides, with n-1."""


@dataclass(frozen=True)
class SideBySide:
    """One or more sides with unique names; differences are against the first side."""

    sides: tuple[Side, ...]
    titles: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Display names of players, for quickstarts."""

    def label(self, cell: Cell) -> str:
        return labelled(cell, cell.part, self.titles)

    def task(self, cell: Cell) -> str:
        """Display name of the cells on one line of a plot."""
        return labelled(cell, cell.task, self.titles)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(sorted({cell for cells in self.samples.values() for cell in cells}, key=lambda cell: cell.order))

    @cached_property
    def samples(self) -> dict[str, dict[Cell, list[Sample]]]:
        """Samples by side and cell, baselines included."""
        by_side: dict[str, dict[Cell, list[Sample]]] = {side.name: {} for side in self.sides}
        for side in self.sides:
            for sample in (*side.samples, *side.baselines):
                by_side[side.name].setdefault(cell_at_length(sample), []).append(sample)
        return by_side

    @cached_property
    def figures(self) -> dict[Cell, dict[str, EvalSummary]]:
        """Figures by cell and side, only for sides that have samples in the cell."""
        return {
            cell: {name: _summary(cell, by_cell[cell]) for name, by_cell in self.samples.items() if cell in by_cell}
            for cell in self.cells
        }

    @cached_property
    def pairings(self) -> dict[str, Pairing]:
        """Each further side less the first, over all shared problems, without baselines."""
        first, *rest = self.sides
        return {side.name: pair(first.samples, side.samples) for side in rest}

    @cached_property
    def cell_pairings(self) -> dict[Cell, dict[str, Pairing]]:
        """Pairings per cell that both sides have."""
        (_, first), *rest = self.samples.items()
        return {
            cell: {name: pair(first[cell], by_cell[cell]) for name, by_cell in rest if cell in by_cell}
            for cell in self.cells
            if cell in first
        }

    @cached_property
    def differs(self) -> dict[str, tuple[Any, ...]]:
        """Different configuration values (`differing`)."""
        return differing([side.settings for side in self.sides])

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        """Bands per cell, over two or more sides that differ only by their seeds."""
        groups: dict[str, list[Side]] = {}
        for side in self.sides:
            groups.setdefault(side.but_for_seeds, []).append(side)
        seeded = [group for group in groups.values() if len(group) == len({str(side.seeds) for side in group}) > 1]
        return tuple(band for group in seeded for band in self._bands(group))

    def _bands(self, group: Sequence[Side]) -> Iterator[Band]:
        for cell, figures in self.figures.items():
            means = {s.name: figures[s.name].accuracy.mean for s in group if s.name in figures}
            graded = {name: mean for name, mean in means.items() if mean is not None}
            if len(graded) > 1:
                values = list(graded.values())
                yield Band(cell, tuple(graded), fmean(values), min(values), max(values), stdev(values))

    def side_notes(self) -> Iterator[Note]:
        """Notes on samples outside a side's accuracy."""
        for side in self.sides:
            totals = side.counts()
            counts = {name: totals[name] for name in ("ungraded", "without_gold", "unreadable_lines") if totals[name]}
            if counts:
                words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
                yield Note("side_counts", side=side.name, counts=words, episodes=totals["episodes"])
            if side.not_asked:
                yield Note("side_episodes_not_requested", side=side.name, count=side.not_asked)

    def pairing_notes(self) -> Iterator[Note]:
        """Notes on differences that do not cover everything."""
        first = self.sides[0].name
        for name, pairing in self.pairings.items():
            if not pairing.problems:
                warning = f" ({pairing.warning})" if pairing.warning else ""
                yield Note("nothing_in_common", side=name, first=first, warning=warning)
            elif pairing.warning:
                yield Note("pairing", side=name, first=first, problems=pairing.counted, warning=pairing.warning)
        rewards = {
            side.name: side.settings.get("reward.name") or side.settings.get(f"{RUN}reward.name") for side in self.sides
        }
        for name, reward in rewards.items():
            if reward and rewards[first] not in (None, reward):
                yield Note("other_reward", side=name, reward=reward, first=first, first_reward=rewards[first])


AGENT = "agent"
"""Player of an evaluation with one policy."""


def as_one_agent(sides: Sequence[Side]) -> list[Side]:
    """The sides, with `AGENT` as the policy if each has one, so that they share cells; otherwise unchanged."""
    if any(len({sample.player for sample in side.samples}) > 1 for side in sides):
        return list(sides)
    return [replace(side, samples=tuple(replace(row, player=AGENT) for row in side.samples)) for side in sides]


def cell_at_length(sample: Sample) -> Cell:
    """The sample's cell; the document's length replaces a missing size."""
    return sample.cell if sample.size is not None else replace(sample.cell, size=sample.length)


def labelled(cell: Cell, words: str, titles: Mapping[str, str]) -> str:
    """`words` with the player's display name from `titles`, omitted for the only agent."""
    if cell.player == AGENT and not cell.baseline:
        return words
    return f"{titles.get(cell.player, cell.player)}, {words}"


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Values [sides] of every configuration key that differs between sides; None: not set. Skips a key that some sides
    lack (an evaluation has no `run.train.lr`) if the others have its default.

    >>> differing([{"seed": 0, "x": 1}, {"seed": 0, "x": 2, "y": 3}])
    {'x': (1, 2), 'y': (None, 3)}
    >>> differing([{"run.seed": 7, "run.train.max_steps": 9}, {}])
    {'run': ('a run', 'no run')}
    """
    runs = [any(key.startswith(RUN) for key in side) for side in settings]
    if any(runs) and not all(runs):
        rest = [{key: value for key, value in side.items() if not key.startswith(RUN)} for side in settings]
        settings = [{**side, "run": "a run" if is_run else "no run"} for side, is_run in zip(rest, runs, strict=True)]
    keys = [key for key in dict.fromkeys(key for side in settings for key in side) if _is_compared(key, settings)]
    values = {key: tuple(side.get(key) for side in settings) for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def _is_compared(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    present = [side[key] for side in settings if key in side]
    default = default_settings().get(key.removeprefix(RUN))
    return len(present) == len(settings) or any(value not in (None, default) for value in present)


RunSettings = Callable[[Path], Mapping[str, Any] | None]
"""Maps a folder to its run's configuration; None without a run."""


def settings_of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by which a run is compared.

    >>> settings_of_run({"train": {"max_steps": 7}})
    {'run.train.max_steps': 7}
    """
    return {f"{RUN}{key}": value for key, value in leaves(config)}


def settings_of_evaluation(identity: Mapping[str, Any], model: object, run: RunSettings) -> dict[str, Any]:
    """Settings by which an evaluation is compared: its identity, its model, and the configuration of the model's run.

    >>> settings_of_evaluation({"policies": {"a": {"name": "a"}}, "seed": 1}, None, lambda folder: None)
    {'seed': 1, 'policy.name': 'a'}
    >>> file = {"train_files": "a.json", "val_files": None, "synthetic": {"chunks": 2}}
    >>> settings_of_evaluation({"data": file, "reward": {"name": "em", "state": None}}, None, lambda folder: None)
    {'data.train_files': 'a.json', 'data.val_files': None, 'reward.name': 'em'}
    """
    played = _with_one_policy({key: value for key, value in identity.items() if key != REGRADED})
    unused = tuple(f"{key}." for key in _unused(identity))
    settings = {key: value for key, value in leaves(played) if not f"{key}.".startswith(unused)}
    if isinstance(model, str):
        settings["model"] = model
        configs = map(run, (Path(model), *list(Path(model).parents)[:2]))  # a run, or the run of a checkpoint
        settings |= settings_of_run(next((config for config in configs if config is not None), {}))
    return settings


def _unused(identity: Mapping[str, Any]) -> list[str]:
    """Keys that do not affect an evaluation: reward layers of training, and settings of other data sources."""
    data = identity.get("data")
    source = (data.get("val_files") or data.get("train_files")) if isinstance(data, Mapping) else None
    return [*(f"reward.{key}" for key in LAYERS), *(key for key, drawing in _DRAWN.items() if source != drawing)]


def _with_one_policy(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Moves a single policy to the key `policy`, so that its keys compare with another policy's."""
    policies = identity.get("policies")
    if not isinstance(policies, dict) or len(policies) != 1:
        return dict(identity)
    (one,) = policies.values()
    return {key: value for key, value in identity.items() if key != "policies"} | {"policy": one}


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"


def _summary(cell: Cell, samples: Sequence[Sample]) -> EvalSummary:
    return summarise(cell, samples, drawn=1 + max(sample.draw for sample in samples))
