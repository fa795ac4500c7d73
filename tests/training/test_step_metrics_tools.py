"""Metrics of tool agents by hand, and their figures over training."""

from __future__ import annotations

from typing import Any

from palimpsest.app.evaluate.evaluator import measure_memory
from palimpsest.config.schema import CreditConfig
from palimpsest.events import Declared, Event, Pruned, PruneRefused, ToolCalled, ToolFailed, VariantPlayed
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.report.plots import training_figures
from palimpsest.training.step_metrics import group_metrics
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()


def act(step: int, prompt: tuple[int, ...]) -> Turn:
    reply = Completion((7, 7, 0), (-0.5,) * 3, StopReason.STOP)
    return Turn(prompt, reply, step, "act", {"context_tokens": len(prompt), "tool_calls": step, "prunes": 0})


def episode(rollout: int, *events: Declared, pruned: bool = True) -> Trajectory:
    """Prompts of 2, 6 and, after a prune, 3 tokens; without one 10."""
    first, second = (1, 2), (1, 2, 7, 7, 0, 3)
    third = (1, 2, 4) if pruned else (*second, 7, 7, 0, 4)
    turns = (act(0, first), act(1, second), act(2, third))
    happened = tuple(Event(what, before_turn=1) for what in events)
    return Trajectory("p", "g", rollout, turns, Outcome.ANSWERED, "a", happened)


CALL = ToolCalled("a", "search", 4)
PRUNE = Pruned("b", ("a",), "tea", 3)


def error(kind: str) -> ToolFailed:
    return ToolFailed(kind, id="c", tool="search", tokens=4, message="no")


FIRST = episode(0, CALL, CALL, PRUNE, error("timeout"), error("malformed"))
SECOND = episode(1, CALL, PruneRefused("b", "no such id"), error("timeout"), pruned=False)
PROBLEM = Problem("p", "?", ("a",))


def test_metrics_of_training_are_means_over_episodes() -> None:
    metrics = group_metrics([Group(PROBLEM, (FIRST, SECOND), (Grade(1.0), Grade(0.0)))], CODEC, CreditConfig())
    expected = {
        "prunes": 0.5,
        "prune_refused": 0.5,
        "tool_calls": 1.5,
        "tool_errors": 1.5,
        "tool_errors_timeout": 1.0,
        "tool_errors_malformed": 0.5,
        "tool_errors_too_many": 0.0,
        "context_tokens": (11 / 3 + 18 / 3) / 2,
        "context_tokens_max": 10.0,
        "input_tokens": (11 + 18) / 2,
        "sampled_tokens": 9.0,
        "segments": 1.5,
    }
    assert {name: metrics[f"tool/{name}"] for name in expected} == expected


def test_episodes_of_a_variant_do_not_count_for_tool_metrics() -> None:
    bare = episode(2, VariantPlayed({"prune": False}), pruned=False)
    group = Group(PROBLEM, (FIRST, bare), (Grade(1.0), Grade(0.0)))
    assert group_metrics([group], CODEC, CreditConfig())["tool/prunes"] == 1.0


def test_evaluation_has_the_same_metrics_and_memory_agents_have_none() -> None:
    measured = measure_memory(PROBLEM, FIRST, Grade(1.0), GroupTexts(CODEC))
    assert (measured["prunes"], measured["context_tokens_max"], measured["segments"]) == (1.0, 6.0, 2.0)
    plain = Trajectory("p", "g", 0, (Turn((1,), FIRST.turns[0].completion, 0, "answer"),), Outcome.ANSWERED)
    assert "prunes" not in measure_memory(PROBLEM, plain, Grade(1.0), GroupTexts(CODEC))
    metrics = group_metrics([Group(PROBLEM, (plain,), (Grade(1.0),))], CODEC, CreditConfig())
    assert not [name for name in metrics if name.startswith("tool/")]


def test_figures_over_training_show_the_metrics_of_their_rows() -> None:
    rows = [{"step": step, "tool/prunes": step / 4, "tool/context_tokens": 100.0 - step} for step in range(1, 9)]
    figures = training_figures(rows)
    assert [figure["name"] for figure in figures] == ["prunes", "context"]
    assert all(figure["png"].startswith(b"\x89PNG") for figure in figures)
    assert figures == training_figures(rows)
    assert training_figures([{"step": 1, "reward/mean": 0.5}]) == []
