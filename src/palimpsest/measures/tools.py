"""What an episode of a tool-using agent is measured by, in training and in evaluation.

| key | what |
|---|---|
| prunes, prune_refused | deletions of history that were carried out; that were refused |
| tool_calls | calls of tools that were carried out |
| tool_errors, tool_errors_malformed, ..._timeout... | errors told to the model; by kind |
| context_tokens, context_tokens_max | prompt tokens of a turn: mean and largest |
| input_tokens, sampled_tokens | of all turns together; prefixes counted each time they are read |
| segments | rows to train that the episode fractured into |

From events (`ToolCalled`, `ToolFailed` with its kind, `Pruned`, `PruneRefused`) and turns alone; an episode in which no
turn notes its `context_tokens` is not a tool agent's and has no measures.
Not covered: kinds of errors beyond `KINDS` have no key of their own; they count in `tool_errors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean

from palimpsest.events import Pruned, PruneRefused, ToolCalled, ToolFailed, of_type
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.variant import is_variant
from palimpsest.types import Trajectory

KINDS = ("malformed", "unknown_tool", "bad_arguments", "timeout", "exception", "too_many")


def tool_measures(trajectory: Trajectory) -> dict[str, float]:
    """The table above for one episode; empty for agents without tools.

    >>> from palimpsest.events import Event
    >>> from palimpsest.types import Completion, Outcome, StopReason, Turn
    >>> def turn(prompt):
    ...     reply = Completion((7, 0), (-0.5, -0.5), StopReason.STOP)
    ...     return Turn((1,) * prompt, reply, 0, "act", {"context_tokens": prompt})
    >>> failed = ToolFailed("timeout", id="b", tool="search", tokens=3, message="no answer")
    >>> happened = (ToolCalled("a", "search", 9), Pruned("c", ("a",), "tea", 10), failed)
    >>> events = tuple(Event(what, 1) for what in happened)
    >>> found = tool_measures(Trajectory("p", "g", 0, (turn(30), turn(10)), Outcome.ANSWERED, events=events))
    >>> {name: value for name, value in found.items() if value}  # doctest: +NORMALIZE_WHITESPACE
    {'prunes': 1.0, 'tool_calls': 1.0, 'tool_errors': 1.0, 'tool_errors_timeout': 1.0, 'context_tokens': 20.0,
     'context_tokens_max': 30.0, 'input_tokens': 40.0, 'sampled_tokens': 4.0, 'segments': 2.0}
    """
    contexts = [float(turn.notes["context_tokens"]) for turn in trajectory.turns if "context_tokens" in turn.notes]
    if not contexts:
        return {}
    happened = Counter(type(event.what) for event in trajectory.events)
    errors = Counter(failed.error for failed in of_type(trajectory.events, ToolFailed))
    return {
        "prunes": float(happened[Pruned]),
        "prune_refused": float(happened[PruneRefused]),
        "tool_calls": float(happened[ToolCalled]),
        "tool_errors": float(errors.total()),
        **{f"tool_errors_{kind}": float(errors[kind]) for kind in KINDS},
        "context_tokens": fmean(contexts),
        "context_tokens_max": max(contexts),
        "input_tokens": float(sum(len(turn.prompt_ids) for turn in trajectory.turns)),
        "sampled_tokens": float(sum(len(turn.completion.token_ids) for turn in trajectory.turns)),
        "segments": float(len(segments_of(trajectory))),
    }


def tool_metrics(episodes: Iterable[Trajectory]) -> dict[str, float]:
    """Means over episodes under `tool/`, but the largest of `context_tokens_max`.

    Episodes of a training variant are left out: without a tool they would say nothing of how it's used.
    """
    found = [measures for one in episodes if not is_variant(one) and (measures := tool_measures(one))]
    if not found:
        return {}
    metrics = {f"tool/{name}": fmean(measures[name] for measures in found) for name in found[0]}
    return metrics | {"tool/context_tokens_max": max(measures["context_tokens_max"] for measures in found)}
