"""Supervised cold start: imitate recorded or scripted episodes, in the segments and masks of training with rewards.

    records or conversations -> trajectories (of records all, or the best graded) -> epochs in a keyed order
    -> batches of `train.batch_size` trajectories -> segments, weighed by `credit.agg_mode` -> nll -> update

Run folder, checkpoints and resume are those of training with rewards (runs/driver.py). `train.max_steps` is the number
of optimizer steps. The engine must use objective="nll".

Guaranteed: every sampled token of a chosen episode is imitated once per epoch, in its original context.
Not covered: checking the tokenizer of the records (app/train/supervised_training.py), beyond `check_fit`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import orjson
import psutil

from palimpsest.config.schema import RunConfig
from palimpsest.credit.aggregate import CreditedSegment, weigh
from palimpsest.engines.protocol import Learner, StepBatch
from palimpsest.errors import DataError, RunError
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.trajectory_file import read_groups, record_files
from palimpsest.runs.driver import Driver, Finished, StepReport
from palimpsest.runs.loggers import LoggerSet
from palimpsest.runs.run_folder import RunFolder
from palimpsest.runs.signals import GracefulStop
from palimpsest.seeding import keyed_random
from palimpsest.text.display_text import ordinal
from palimpsest.training.optimizer_steps import SkipWatch
from palimpsest.training.step_metrics import learner_metrics
from palimpsest.types import Trajectory


class Trajectories(Protocol):
    """Trajectories to imitate: a list, or SFT examples drawn on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Trajectory: ...


@dataclass
class SupervisedTrainer:
    """Imitation of `trajectories`, each with a sampled token (`audible`). `await trainer.run()` trains or resumes."""

    records: ClassVar[bool] = False
    config: RunConfig
    folder: RunFolder
    learner: Learner
    trajectories: Trajectories
    loggers: LoggerSet
    fingerprint: str | None = None
    """Fingerprint of trajectories outside the configuration; a resume with others is rejected."""
    stop: GracefulStop = field(default_factory=GracefulStop)
    _order: tuple[int, list[int]] = field(default=(-1, []), init=False)
    _skips: SkipWatch = field(init=False)

    def __post_init__(self) -> None:
        self._skips = SkipWatch(self.folder.warn)

    async def run(self) -> Finished:
        driver = Driver(self, self.learner, self.folder, self.config.train, self.loggers, stop=self.stop)
        return await driver.run()

    @property
    def done(self) -> bool:
        """False: only `train.max_steps` ends it."""
        return False

    async def step(self, step: int) -> StepReport:
        start = time.perf_counter()
        batch = StepBatch(self._segments(step))
        updates = await self.learner.update([batch])
        self._skips.see(step, updates)
        metrics, timings = learner_metrics(updates)
        await self.learner.publish()
        seconds = time.perf_counter() - start
        metrics["data/epoch"] = step * self.config.train.batch_size / len(self.trajectories)
        tokens = sum(len(row.segment.token_ids) for row in batch.segments)
        timings |= {
            "learn_s": seconds,
            "learn_tokens_per_s": tokens / seconds,
            "rss_mb": psutil.Process().memory_info().rss / 2**20,
        }
        return StepReport(metrics, timings)

    def state(self) -> Mapping[str, Any]:
        """Fingerprint of the trajectories; their order is a function of seed and step."""
        source = {} if self.fingerprint is None else {"trajectories": self.fingerprint}
        return {**source, "skipped": self._skips.in_a_row}

    def files(self) -> Mapping[str, bytes]:
        return {}

    def restore(self, state: Mapping[str, Any], folder: Path) -> None:
        """Restore the state. Raises RunError for a checkpoint with other trajectories."""
        self._skips.in_a_row = state.get("skipped", 0)
        recorded = state.get("trajectories", self.fingerprint)
        if recorded != self.fingerprint:
            raise RunError(
                f"{self.folder.path}: started with other trajectories (fingerprint {recorded}, now {self.fingerprint})"
                ": resume with the same --from, --min-grade, --best, --data, --memory-first and --drop-too-long, or "
                "start over with --force"
            )

    def chosen(self, step: int) -> list[int]:
        """Indices of the trajectories of a step; each occurs once per epoch, and a batch may span epochs."""
        size = self.config.train.batch_size
        places = range((step - 1) * size, step * size)
        return [self._epoch(slot // len(self.trajectories))[slot % len(self.trajectories)] for slot in places]

    def _epoch(self, epoch: int) -> list[int]:
        if self._order[0] != epoch:
            order = list(range(len(self.trajectories)))
            keyed_random(self.config.seed, "sft", epoch).shuffle(order)
            self._order = (epoch, order)
        return self._order[1]

    def _segments(self, step: int) -> tuple[Any, ...]:
        rows = [
            CreditedSegment(segment, (1.0,) * len(segment.logprobs), row, row)
            for row, index in enumerate(self.chosen(step))
            for segment in segments_of(self.trajectories[index])
        ]
        return weigh(rows, self.config.credit.agg_mode)


def audible(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Trajectories with a sampled token. Raises DataError if there are none."""
    selected = [one for one in trajectories if any(turn.trained_ids for turn in one.turns)]
    if not selected:
        raise DataError("supervised training: no trajectory with a sampled token; check the records and the filter")
    return selected


def fingerprint(trajectories: Iterable[Trajectory]) -> str:
    """16 hex digits over the ids of every turn, in order."""
    digest = hashlib.sha256()
    for trajectory in trajectories:
        digest.update(orjson.dumps([(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns]))
    return digest.hexdigest()[:16]


def check_fit(trajectories: Sequence[Trajectory], *, vocab: int, max_context: int) -> None:
    """Raise DataError for a turn outside the model's vocabulary or context."""
    for trajectory in trajectories:
        for number, turn in enumerate(trajectory.turns):
            ids = (*turn.prompt_ids, *turn.completion.token_ids)
            where = f"problem {trajectory.problem_id}, rollout {trajectory.rollout}, turn {ordinal(number)}"
            if ids and not 0 <= min(ids) <= max(ids) < vocab:
                raise DataError(
                    f"{where}: token id {max(ids) if min(ids) >= 0 else min(ids)} is outside the model's vocabulary of "
                    f"{vocab}; the records come from another tokenizer"
                )
            if len(ids) > max_context:
                raise DataError(
                    f"{where}: {len(ids)} tokens, the model's context is {max_context}; record with smaller budgets"
                )


@dataclass(frozen=True, slots=True)
class Selection:
    """Recorded episodes to imitate, and the number of the others."""

    trajectories: tuple[Trajectory, ...]
    """In the order of the records."""
    below: int = 0
    ungraded: int = 0
    """Ungraded episodes: skipped, never counted as wrong."""
    surplus: int = 0
    """Episodes skipped because their problem has enough better ones."""
    tokenizers: frozenset[str] = frozenset()
    """`Codec.digest` of the tokenizers in the records; `NO_TOKENIZER` for lines without one."""

    def __str__(self) -> str:
        return (
            f"kept {len(self.trajectories)} episodes; skipped {self.below} below the grade, {self.ungraded} ungraded, "
            f"{self.surplus} beyond --best"
        )


def read_trajectories(
    path: str | Path,
    *,
    min_grade: float | None = None,
    per_problem: int | None = None,
    warn: Callable[[str], None] = print,
) -> Selection:
    """Trajectories of a run, an evaluation, a folder of record files, or one file, in order of names.

    `min_grade` selects graded episodes of at least that value; None selects all, ungraded ones included. `per_problem`
    selects that many per problem: the best graded, and among equals the latest. Raises DataError if none remains.
    """
    path = Path(path)
    episodes: list[tuple[Trajectory, float | None]] = []
    tokenizers = set[str]()
    for file in record_files(path):
        recording = read_groups(file)
        if recording.torn:
            warn(recording.torn)
        tokenizers |= recording.tokenizers
        for group in recording.groups:
            episodes += zip(group.trajectories, (grade.value for grade in group.grades), strict=True)
    selection = select(episodes, min_grade=min_grade, per_problem=per_problem)
    if not selection.trajectories:
        kind = "" if min_grade is None else f" with a grade of at least {min_grade}"
        raise DataError(f"{path}: no trajectory{kind} among {len(episodes)}; lower --min-grade or record more")
    return replace(selection, tokenizers=frozenset(tokenizers))


def select(
    episodes: Sequence[tuple[Trajectory, float | None]], *, min_grade: float | None, per_problem: int | None
) -> Selection:
    """Episodes to imitate, from (episode, grade or None) in the order of the records.

    >>> from palimpsest.types import Outcome
    >>> played = [(Trajectory("p", "g", i, (), Outcome.ANSWERED), grade) for i, grade in enumerate((1, 0, 1, None))]
    >>> chosen = select(played, min_grade=1, per_problem=1)
    >>> [one.rollout for one in chosen.trajectories], chosen.below, chosen.ungraded, chosen.surplus
    ([2], 1, 1, 1)
    """
    graded = [(index, grade) for index, (_, grade) in enumerate(episodes) if min_grade is None or grade is not None]
    fit = [(index, grade) for index, grade in graded if min_grade is None or (grade or 0.0) >= min_grade]
    taken: Counter[str] = Counter()
    selected = []
    for index, _ in sorted(fit, key=lambda one: (-math.inf if one[1] is None else one[1], one[0]), reverse=True):
        problem = episodes[index][0].problem_id
        taken[problem] += 1
        if per_problem is None or taken[problem] <= per_problem:
            selected.append(index)
    return Selection(
        tuple(episodes[index][0] for index in sorted(selected)),
        below=len(graded) - len(fit),
        ungraded=len(episodes) - len(graded),
        surplus=len(fit) - len(selected),
    )
