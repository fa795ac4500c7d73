"""Progress: how far, how long, how long still; one line on a terminal, plain lines where something moved elsewhere."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable

import pytest

from palimpsest.progress.displays import Terminal
from palimpsest.progress.reporter import Overall, Stage

PLAN = [Stage("lessons", 10, 1.0), Stage("training", 100, 2.0), Stage("evaluation", 50, 0.2)]
"""10, 200 and 10 seconds."""


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_eta_covers_all_stages_at_the_pace_of_this_machine() -> None:
    clock = Clock()
    work = Overall(PLAN, clock)
    work.begin("lessons", 10)
    assert work.eta == 220.0  # as planned, nothing being known of this machine
    clock.now += 20
    work.moved(10)
    assert (work.elapsed, work.eta) == (20.0, 420.0)  # half as fast as planned
    work.begin("steps", 100)
    clock.now += 40
    work.moved(10)
    assert work.fraction == pytest.approx(30 / 220)
    assert work.eta == pytest.approx(2 * 190)
    clock.now += 5
    assert work.eta == pytest.approx(2 * 190 - 5)  # the clock runs while nothing moves
    assert work.words().startswith("training 10/100  elapsed 0:01:05  ETA 0:06:15")


def test_what_another_process_has_done_counts_as_done_and_not_as_speed() -> None:
    clock = Clock()
    work = Overall(PLAN, clock)
    work.begin("lessons", 10)
    work.begin("steps", 100)  # the lessons were found finished
    work.moved(80, before=True)
    clock.now += 2
    work.moved(81)
    assert work.eta == pytest.approx(19 * 2 + 10)
    work.begin("evaluation", 50, 40)
    assert work.words().startswith("evaluation 40/50")
    assert work.eta == pytest.approx(10 * 0.2)


def test_the_share_of_a_stage_is_corrected_by_what_its_parts_take_here() -> None:
    clock = Clock()
    work = Overall(PLAN[1:], clock)
    work.begin("steps", 100)
    clock.now += 200
    work.moved(100)
    assert work.fraction == pytest.approx(200 / 210)
    work.begin("evaluation", 50)
    for turn in range(1, 11):  # 200 times slower than planned
        clock.now += 40
        work.moved(turn)
    assert work.eta == pytest.approx(40 * 40)
    assert work.fraction == pytest.approx(200 / 210)  # (200 + 400) / (200 + 2000) would be a step back
    clock.now += 39 * 40
    work.moved(49)
    assert work.fraction == pytest.approx((200 + 1960) / (200 + 2000))


def test_before_the_end_there_is_always_something_left() -> None:
    clock = Clock()
    work = Overall([Stage("training", 100_000, 1.0), Stage("evaluation", 10, 0.01)], clock)
    work.begin("steps", 100_000)
    clock.now += 100_000
    work.moved(100_000)
    work.begin("evaluation", 10)
    assert work.fraction == 0.99
    clock.now += 60  # and no turn is over
    assert work.eta == pytest.approx(60, abs=1)
    work.moved(9)
    clock.now += 30
    assert work.eta is not None
    assert work.eta > 1
    work.moved(10)
    assert (work.fraction, work.eta) == (1.0, 0.0)


def test_without_a_plan_the_eta_is_known_once_something_moved() -> None:
    clock = Clock()
    work = Overall([Stage("episodes", 4)], clock)
    work.begin("episodes", 4)
    assert "ETA ?" in work.words()
    clock.now += 3
    work.moved(1)
    assert "episodes 1/4  elapsed 0:00:03  ETA 0:00:09" in work.words()


def test_a_stage_may_have_other_parts_than_planned_or_not_be_planned_at_all() -> None:
    work = Overall([Stage("training", 4, 1.0)], Clock())
    work.begin("steps", 8)
    work.moved(9)
    assert work.words().startswith("training 8/8")
    work.begin("report", 1)
    assert work.words().startswith("report 0/1")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What a log holds of two steps, a message and an evaluation, which take hardly any time."""
    clock = itertools.count(100.0, 1e-4).__next__
    monkeypatch.setattr("palimpsest.progress.displays.time.monotonic", clock)
    monkeypatch.setattr("palimpsest.progress.displays.Overall", lambda stages: Overall(stages, clock))
    stream = io.StringIO()
    display = Terminal(stream)
    with display.stages(PLAN[1:]) as staged:
        steps = staged.steps(4)
        for step in range(1, 5):
            steps.progress("rollout", 3, 8)
            steps.step(step, {"reward/mean": 0.641, "reward/std": 0.48}, {"rollout_tokens_per_s": 1820.0})
        steps.message("a line")
        steps.close()
        with staged.count("evaluation", 6, done=2) as tick:
            for _ in range(4):
                tick()
            tick()  # beyond the guess
    display.message("the end")
    return lambda: stream.getvalue().splitlines()


def test_without_a_terminal_lines_tell_elapsed_and_eta_now_and_then_and_none_comes_twice(
    log: Callable[[], list[str]],
) -> None:
    first, last, message, begun, done, end = log()
    assert re.fullmatch(
        r"\[ \d+%\] training 1/4  elapsed 0:00:00  ETA 0:00:\d\d  reward 0.641  std 0.480  sampling 1,820 tok/s", first
    )
    assert "training 4/4" in last
    assert (message, end) == ("a line", "the end")
    assert "evaluation 3/6" in begun
    assert re.match(r"\[100%\] evaluation 6/6  elapsed 0:00:00  ETA 0:00:00", done)


def test_a_long_stage_is_told_of_every_ten_seconds_where_something_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(), io.StringIO()
    monkeypatch.setattr("palimpsest.progress.displays.time.monotonic", clock)
    with Terminal(stream).count("episodes", 1000) as tick:
        for _ in range(30):
            clock.now += 1
            tick()
    told = [int(line.split()[3].partition("/")[0]) for line in stream.getvalue().splitlines()]
    assert told == [1, 11, 21, 30]


def test_a_long_step_shows_its_episodes_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(), io.StringIO()
    monkeypatch.setattr("palimpsest.progress.displays.time.monotonic", clock)
    steps = Terminal(stream).steps(2)
    for episode in range(1, 65):
        clock.now += 1
        steps.progress("rollouts", episode, 64)
    steps.step(1, {}, {})
    lines = stream.getvalue().splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["30/64", "60/64"]
    assert "steps 1/2" in lines[2]
    assert len(lines) == 3


def test_on_a_terminal_there_is_one_line_and_messages_stand_above_it() -> None:
    stream = io.StringIO()
    display = Terminal(stream, live=True)
    steps = display.steps(20)
    steps.progress("rollout", 3, 8)
    steps.step(2, {"reward/mean": 0.5}, {})
    display.message("resumed [not markup]")
    steps.close()
    shown = stream.getvalue()
    assert shown.count("resumed [not markup]") == 1
    assert "steps 2/20" in shown


def test_a_run_that_goes_on_shows_at_once_what_was_done_before() -> None:
    stream = io.StringIO()
    steps = Terminal(stream, live=True).steps(20)
    steps.resumed(12)
    steps.close()
    assert " 60% steps 12/20" in stream.getvalue()


def test_on_a_terminal_what_was_done_before_is_shown_from_the_beginning_of_a_stage() -> None:
    stream = io.StringIO()
    plan = [Stage("evaluation", 8, 1.0)]
    with Terminal(stream, live=True).stages(plan) as staged, staged.count("evaluation", 8, done=4):
        pass
    assert "50% evaluation 4/8" in stream.getvalue()
