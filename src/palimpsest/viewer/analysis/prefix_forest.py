"""Prefix forest of a group's segments, and the advantages of its rollouts, turns and tokens.

    segments    1 2 3 4     1 2 5     1 2 3 6        nodes    1 2 (3 segments)
                                                                ├ 3 (2)
                                                                │ ├ 4 (1)   └ 6 (1)
                                                                └ 5 (1)

Advantages equal those of training (credit/assign.py) if the run's `credit` section is known and names a shipped rule.
Otherwise (a custom rule, an unknown run, a group with too many tokens) they are the reward minus the group's mean.
`what` names the kind.

Guaranteed: every token of every segment is in exactly one node on its path from the root; a node precedes its children.
Not covered: the nodes that training computes (`computed`); how the micro-batches of a step cut a forest
(engines/embedded/forest/layout.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import credit_group, has_signal
from palimpsest.errors import PalimpsestError
from palimpsest.plugin_kinds import KINDS
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.token_costs import common_length, distinct_tokens
from palimpsest.types import Group, Segment, Trajectory
from palimpsest.viewer.analysis.token_words import Tokens


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens without a branch."""

    parent: int | None
    start: int
    """Tokens before it, from the root."""
    end: int
    rows: tuple[int, int]
    """[first, last) of `Forest.rows` that share the node."""
    trained: int
    """Its tokens that at least one row trains on."""


@dataclass(frozen=True, slots=True)
class GroupForestRow:
    rollout: int
    segment: int
    turns: tuple[int, int]
    """The first and the last turn it trains on."""
    tokens: Tokens
    trained: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GroupForest:
    """Prefix forest of one group."""

    rows: tuple[GroupForestRow, ...]
    """Segments in lexicographic order: neighbours share a prefix."""
    nodes: tuple[Node, ...]

    @property
    def logical_tokens(self) -> int:
        """Tokens of all segments, counted separately."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def physical_tokens(self) -> int:
        """Distinct tokens, those of the nodes."""
        return sum(node.end - node.start for node in self.nodes)

    def tokens(self, node: Node) -> Tokens:
        return self.rows[node.rows[0]].tokens[node.start : node.end]


@dataclass(frozen=True, slots=True)
class Computed:
    """The tokens of a group that training computes."""

    segments: int
    """Segments with a nonzero advantage; the others have gradient 0 and are skipped."""
    logical_tokens: int
    """Tokens of these segments, counted separately; each omits its last trained token, which is never read."""
    physical_tokens: int


def computed(segments: Sequence[tuple[Segment, Sequence[float]]]) -> Computed:
    """Cost of segments with per-token advantages, after the filter of engines/embedded/forest/layout.py.

    >>> from palimpsest.types import SampledSpan
    >>> long = Segment((1, 2, 3, 4), (SampledSpan(2, 4, 0),), (0.0, 0.0))
    >>> other = Segment((1, 2, 5), (SampledSpan(2, 3, 0),), (0.0,))
    >>> computed([(long, (0.5, 0.5)), (other, (-0.5,)), (other, (0.0,))])
    Computed(segments=2, logical_tokens=5, physical_tokens=3)
    """
    rows: list[Tokens] = []
    for segment, advantages in segments:
        if any(advantages):
            rows.append(segment.token_ids[: segment.positions[-1]])
    return Computed(len(rows), sum(map(len, rows)), distinct_tokens(rows))


def prefix_forest(trajectories: Sequence[Trajectory]) -> GroupForest:
    rows = [
        _row(rollout, number, segment)
        for rollout, trajectory in enumerate(trajectories)
        for number, segment in enumerate(segments_of(trajectory))
    ]
    rows.sort(key=lambda row: (row.tokens, row.rollout, row.segment))
    shared = [0, *(common_length(a.tokens, b.tokens) for a, b in pairwise(rows)), 0]
    nodes: list[Node] = []
    _grow(nodes, rows, shared, (0, len(rows)), 0, None)
    return GroupForest(tuple(rows), tuple(nodes))


def _row(rollout: int, number: int, segment: Segment) -> GroupForestRow:
    turns = [run.turn for run in segment.sampled]
    return GroupForestRow(rollout, number, (min(turns), max(turns)), segment.token_ids, segment.loss_mask)


def _grow(
    nodes: list[Node],
    rows: Sequence[GroupForestRow],
    shared: Sequence[int],
    part: tuple[int, int],
    depth: int,
    parent: int | None,
) -> None:
    """Add the nodes of rows [first, last), which share `depth` tokens. Uses a stack: a forest may be very deep."""
    stack = [(part, depth, parent)]
    while stack:
        (first, last), depth, parent = stack.pop()
        begins = [first, *(at for at in range(first + 1, last) if shared[at] <= depth), last]
        below = []
        for start, end in pairwise(begins):
            if start == end or len(rows[end - 1].tokens) <= depth:
                continue
            until = min((shared[at] for at in range(start + 1, end)), default=len(rows[start].tokens))
            until = min(until, len(rows[start].tokens))
            trained = sum(
                any(mask) for mask in zip(*(row.trained[depth:until] for row in rows[start:end]), strict=True)
            )
            below.append(Node(parent, depth, until, (start, end), trained))
        for node in below:
            nodes.append(node)
            if node.rows[1] - node.rows[0] > 1:
                stack.append((node.rows, node.end, len(nodes) - 1))


# ---- The advantages of a group's rollouts, turns and tokens --------------------------------------------------


_MOST = 5_000_000  # tokens of prompts and completions; takes some seconds
_DIFFERENCE = "reward minus the group's mean"


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of one group."""

    what: str
    """How they were computed, for display."""
    of_rollouts: tuple[float | None, ...]
    """[G] None if ungraded."""
    of_tokens: dict[tuple[int, int], tuple[float, ...]]
    """(rollout, turn) to [T], one per sampled token; missing where all equal the rollout's."""

    def of_turn(self, rollout: int, turn: int, size: int) -> list[float | None]:
        """[T] one per sampled token of a turn."""
        recorded = self.of_tokens.get((rollout, turn))
        return list(recorded) if recorded is not None else [self.of_rollouts[rollout]] * size


def advantages(group: Group, credit: CreditConfig | None) -> Advantages:
    """Advantages that training uses for each rollout of a group."""
    if credit is None:
        return _difference(group, f"{_DIFFERENCE}: the run's credit section is unknown")
    if (why := _why_not(group, credit)) is not None:
        return _difference(group, f"{_DIFFERENCE}: {why}")
    plain = credit.model_copy(update={"segments_per_group": None, "final_segment": "new_only"})  # every token once
    by = f"by credit.adv_estimator={credit.adv_estimator}"
    try:
        if credit.dynamic_sampling and not has_signal(group, credit):
            nothing = tuple(None if grade.value is None else 0.0 for grade in group.grades)
            return Advantages(f"{by}: no advantage differs from 0, so training skips the group", nothing, {})
        credited = credit_group(group, plain)
    except (PalimpsestError, ValueError) as error:
        return _difference(group, f"{_DIFFERENCE}: credit.adv_estimator={credit.adv_estimator} failed ({error})")
    of_tokens: dict[tuple[int, int], list[float]] = {}
    places = [rollout for rollout, segments in enumerate(credited.segments) for _ in range(segments)]
    for rollout, row in zip(places, credited.rows, strict=True):
        advantages = iter(row.advantages)
        for start, end, turn in row.segment.sampled:
            of_tokens.setdefault((rollout, turn), []).extend(islice(advantages, end - start))
    tokens = {key: tuple(values) for key, values in of_tokens.items()}
    return Advantages(by, credited.advantages, tokens)


def trained_rows(group: Group, credit: CreditConfig | None) -> list[tuple[Segment, tuple[float, ...]]] | None:
    """Trained segments of a group, each with the advantages of its trained tokens [N].

    None if unknown: without the run's credit section, under a custom rule, and under `credit.segments_per_group`, whose
    random draw depends on the step.
    """
    if credit is None or credit.segments_per_group is not None or _why_not(group, credit) is not None:
        return None
    try:
        if credit.dynamic_sampling and not has_signal(group, credit):
            return []
        credited = credit_group(group, credit)
    except (PalimpsestError, ValueError):
        return None
    return [(row.segment, tuple(row.advantages)) for row in credited.rows]


def _why_not(group: Group, credit: CreditConfig) -> str | None:
    if sum(map(tokens_of, group.trajectories)) > _MOST:
        return "the group has too many tokens for the viewer to assign credit"
    if not {credit.adv_estimator, str(credit.options.get("outcome", "mean"))} <= {*KINDS["rule"].shipped}:
        return f"credit.adv_estimator={credit.adv_estimator} is custom, and the viewer never runs it"
    return None


def _difference(group: Group, what: str) -> Advantages:
    rewards = [grade.value for grade in group.grades]
    present = [reward for reward in rewards if reward is not None]
    mean = fmean(present) if present else 0.0
    return Advantages(what, tuple(None if reward is None else reward - mean for reward in rewards), {})


def tokens_of(trajectory: Trajectory) -> int:
    return trajectory.prompt_tokens + trajectory.sampled_tokens
