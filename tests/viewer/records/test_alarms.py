"""Each alarm is raised by rows beyond its threshold, and not by rows just below it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import palimpsest.viewer.records.alarms as alarms_module
from palimpsest.viewer.records.alarms import THRESHOLDS, Watched, alarms
from palimpsest.viewer.records.run_status import Status


def rows(count: int = 70, **values: Any) -> list[dict[str, Any]]:
    """`count` steps; a value that is a pair is the first until twenty steps before the end, then the second."""

    def at(step: int, value: Any) -> Any:
        return value[step >= count - 20] if isinstance(value, tuple) else value

    return [
        {"step": step, **{name.replace("__", "/"): at(step, value) for name, value in values.items()}}
        for step in range(count)
    ]


def raised(metrics: Any, **more: Any) -> dict[str, str]:
    """Key to severity."""
    return {item.key: item.severity for item in alarms(Watched(metrics, **more), now=1000.0)}


@pytest.mark.parametrize(
    ("key", "over", "under"),
    [
        ("no_signal", {"groups__with_signal": 0.49}, {"groups__with_signal": 0.51}),
        (
            "ungraded",
            {"reward__ungraded": 3.0, "outcome__answered": 100.0},
            {"reward__ungraded": 2.0, "outcome__answered": 90.0, "outcome__sampler_failed": 10.0},
        ),
        ("memory_cut", {"memory__truncated": 0.26}, {"memory__truncated": 0.24}),
        (
            "answers_cut",
            {"outcome__answered": 20, "outcome__answer_truncated": 12},
            {"outcome__answered": 25, "outcome__answer_truncated": 7},
        ),
        ("logprob_gap", {"sampler__logprob_gap_mean": 0.06}, {"sampler__logprob_gap_mean": 0.04}),
        ("logprob_gap", {"policy__logprob_gap": 0.06}, {"policy__logprob_gap": 0.04}),
        ("logprob_drop", {"sampler__logprob_drop_max": 2.1}, {"sampler__logprob_drop_max": 1.9}),
        (
            "logprob_gap",
            {"sampler__logprob_gap_mean": 0.06, "policy__logprob_gap": 0.01},
            {"sampler__logprob_gap_mean": 0.01, "policy__logprob_gap": 0.06},
        ),
        ("entropy", {"policy__entropy": (1.0, 0.2)}, {"policy__entropy": (1.0, 0.3)}),
        ("entropy", {"reward__std": (0.4, 0.05)}, {"reward__std": (0.4, 0.2)}),
        ("invention", {"memory__copy_fidelity": (0.9, 0.79)}, {"memory__copy_fidelity": (0.9, 0.81)}),
        ("grad_skipped", {"optim__grad_skipped": 0.3}, {"optim__grad_skipped": 0.0}),
    ],
)
def test_a_red_alarm_is_raised_beyond_its_threshold(key: str, over: dict[str, Any], under: dict[str, Any]) -> None:
    assert raised(rows(**over)) == {key: "red"}
    assert raised(rows(**under)) == {}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (rows(groups__with_signal=0.3, reward__mean=0.97), {"no_signal": "advice"}),  # solved problems
        (rows(groups__with_signal=0.3, reward__mean=0.03), {"no_signal": "red"}),
        (rows(30, memory__truncated=0.5), {"memory_cut": "amber"}),  # a quickstart learns in 25 steps what fits
        (rows(memory__truncated=(0.0, 0.5)), {"memory_cut": "amber"}),
        (rows(memory__truncated=(0.5, 0.1)), {}),
        (rows(optim__grad_skipped=0.1), {"grad_skipped": "amber"}),
        (rows(4, groups__with_signal=0.0, memory__truncated=1.0, policy__logprob_gap=9.0), {}),  # too few steps
        ([], {}),
        ([{"step": 1, "groups/with_signal": None}] * 9, {}),
    ],
    ids=range(9),
)
def test_the_severity_depends_on_reward_trend_and_number_of_steps(metrics: Any, expected: dict[str, str]) -> None:
    assert raised(metrics) == expected


def test_a_stage_that_takes_six_times_its_median_is_named() -> None:
    timings = [{"step": step, "rollout_s": 2.0, "learn_s": 1.0} for step in range(20)]
    slow = [*timings, {"step": 20, "rollout_s": 2.0, "learn_s": 6.5}]
    result = alarms(Watched(rows(21), slow))
    assert [item.key for item in result] == ["slow_stage"]
    assert "learning took 6.5 s" in result[0].text
    assert raised(rows(21), timings=[*timings, {"step": 20, "rollout_s": 11.0, "learn_s": 1.0}]) == {}
    quick = [{"step": step, "learn_s": 0.01 if step < 20 else 0.5} for step in range(21)]
    assert raised(rows(21), timings=quick) == {}  # half a second is nothing to look into


def test_the_alarm_of_a_dead_run_names_the_command_to_resume() -> None:
    result = alarms(Watched(rows(3), status=Status.DEAD, resume="palimpsest train --resume runs/first"))
    assert [(item.severity, item.key) for item in result] == [("red", "dead")]
    assert "palimpsest train --resume runs/first" in result[0].text


def test_a_run_that_writes_nothing_for_long_is_silent() -> None:
    timings = [{"step": step, "rollout_s": 20.0, "learn_s": 5.0} for step in range(9)]
    for updated, status, silent in (
        (1000.0 - 151, Status.RUNNING, True),
        (1000.0 - 149, Status.RUNNING, False),
        (0.0, Status.FINISHED, False),
    ):
        assert ("silent" in raised(rows(9), updated=updated, timings=timings, status=status)) == silent


@pytest.mark.parametrize(
    ("top_p", "temperature", "name", "limit"),
    [
        (0.9, 0.7, "vllm", 0.05 + 0.105361),  # -ln 0.9
        (0.9, 1.0, "vllm", 0.05),
        (0.9, 0.7, "embedded", 0.05),
        (1.0, 0.7, "vllm", 0.05),
        (0, 0.7, "vllm", 0.05),
        ("?", 0.7, "vllm", 0.05),
    ],
)
def test_the_threshold_of_the_gap_includes_top_p_where_servers_log_probabilities_do(
    top_p: Any, temperature: float, name: str, limit: float
) -> None:
    config = {"sampling.temperature": temperature, "sampling.top_p": top_p, "sampler.name": name}
    for gap, alarm in ((limit - 0.001, {}), (limit + 0.001, {"logprob_gap": "red"})):
        assert raised(rows(sampler__logprob_gap_mean=gap), config=config) == alarm


ADVISED = {"memory__tokens": 3.0, "reward__mean": 0.5}


def test_advice_comes_only_where_no_alarm_is_red() -> None:
    timings = [{"step": step, "rollout_s": 9.5, "learn_s": 0.5} for step in range(120)]
    run: dict[str, Any] = {"timings": timings, "status": Status.STOPPED, "config": {"policy.options.memory_tokens": 8}}
    advice = {"rollout_bound": "advice", "memory_unused": "advice", "flat": "advice"}
    assert raised(rows(120, **ADVISED), **run) == advice
    assert raised(rows(120, **ADVISED, memory__truncated=0.9), **run) == {"memory_cut": "red"}
    assert raised(rows(120, **ADVISED, optim__grad_skipped=0.1), **run) == {"grad_skipped": "amber", **advice}


def test_the_worst_alarm_is_first() -> None:
    result = raised(rows(optim__grad_skipped=0.1, memory__truncated=0.9), status=Status.DEAD)
    assert list(result.values()) == ["red", "red", "amber"]


def test_every_alarm_is_in_the_table_of_thresholds() -> None:
    source = Path(alarms_module.__file__).read_text("utf-8")
    raised_keys = set(re.findall(r'Alarm\((?:"\w+"|severity), "(\w+)"', source))
    assert raised_keys == {key for key, _, _ in THRESHOLDS}
