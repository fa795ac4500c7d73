"""Progress displays: bars with messages above them on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from palimpsest.progress.displays import Notebook, Terminal
from palimpsest.progress.reporter import Stage

PLAN = [Stage("training", 4, 2.0, "steps"), Stage("evaluation", 6, 0.2, "turns")]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("palimpsest.progress.displays.time.monotonic", made)
    return made


def etas(stream: io.StringIO) -> list[str]:
    return [line.partition("ETA ")[2] for line in stream.getvalue().splitlines()]


def test_a_class_named_as_an_emoji_is_printed_as_it_is(clock: Clock) -> None:
    stream = io.StringIO()
    Terminal(stream).message("my_policy:Dog:")
    assert "my_policy:Dog:" in stream.getvalue()


def test_a_line_has_stage_percentage_times_and_metrics(clock: Clock) -> None:
    stream = io.StringIO()
    with Terminal(stream).stages(PLAN) as staged:
        steps = staged.steps(4)
        clock.now += 20
        steps.log(1, {"reward/mean": 0.641, "reward/std": 0.48}, {"rollout_tokens_per_s": 1820.0})
        steps.close()
    metrics = "reward 0.641  std 0.480  sampling 1,820 tok/s"
    assert stream.getvalue() == f"[ 25%] training 1/4 steps  elapsed 0:00:20  ETA 0:01:00  {metrics}\n"


def test_the_first_and_last_part_of_a_stage_have_one_line(clock: Clock) -> None:
    stream = io.StringIO()
    display = Terminal(stream)
    with display.stages(PLAN) as staged:
        steps = staged.steps(4)
        for step in range(1, 5):
            steps.progress("rollout", 3, 8)
            steps.log(step, {}, {})
        steps.message("a line")
        steps.close()
        with staged.count("evaluation", 6, done=2) as tick:
            for _ in range(4):
                tick()
            tick()  # beyond the estimate
    display.message("the end")
    lines = [re.sub("  elapsed.*", "", line) for line in stream.getvalue().splitlines()]
    assert lines == [
        "[ 25%] training 1/4 steps", "[100%] training 4/4 steps", "a line",
        "[ 50%] evaluation 3/6 turns", "[100%] evaluation 6/6 turns", "the end",
    ]  # fmt: skip


def test_earlier_progress_counts_as_done_and_not_as_speed(clock: Clock) -> None:
    stream = io.StringIO()
    for resumed in (True, False):  # an unreported 80 is taken from the first step
        steps = Terminal(stream).steps(100)
        if resumed:
            steps.resumed(80)
        clock.now += 2
        steps.log(81, {}, {})
    for total, done, ticks in ((50, 40, 1), (4, 4, 0), (4, 0, 0)):
        with Terminal(stream).count("episodes", total, done=done) as tick:
            clock.now += 3
            for _ in range(ticks):
                tick()
    assert etas(stream) == ["0:00:38", "0:00:38", "0:00:27", "0:00:00", "?"]


def test_a_stage_may_differ_from_the_plan(clock: Clock) -> None:
    stream = io.StringIO()
    with Terminal(stream).stages(PLAN[:1]) as staged:
        staged.steps(8).log(8, {}, {})
        with staged.count("report", 1) as tick:
            tick()
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == [
        "[100%] training 8/8 steps", "[100%] report 1/1",
    ]  # fmt: skip


def test_a_long_stage_has_a_line_every_ten_seconds_with_progress(clock: Clock) -> None:
    stream = io.StringIO()
    with Terminal(stream).count("episodes", 1000) as tick:
        for _ in range(30):
            clock.now += 1
            tick()
        tick(969)
        clock.now += 100
    lines = stream.getvalue().splitlines()
    assert [line.split()[3].partition("/")[0] for line in lines] == ["1", "11", "21", "999"]
    assert lines[-1].startswith("[ 99%] ")  # below 100 before the end


def test_a_long_step_shows_its_episodes_every_half_minute(clock: Clock) -> None:
    stream = io.StringIO()
    steps = Terminal(stream).steps(2)
    for episode in range(1, 65):
        clock.now += 1
        steps.progress("rollouts", episode, 64)
    steps.log(1, {}, {})
    lines = stream.getvalue().splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["30/64", "60/64"]
    assert "steps 1/2" in lines[2]
    assert len(lines) == 3


def test_on_a_terminal_messages_are_above_the_bar_and_earlier_progress_is_in_it() -> None:
    stream = io.StringIO()
    display = Terminal(stream, live=True)
    steps = display.steps(20)
    steps.resumed(12)
    steps.progress("rollout", 3, 8)
    display.message("resumed [not markup]")
    steps.close()
    assert stream.getvalue().count("resumed [not markup]") == 1
    assert " 60% steps 12/20" in stream.getvalue()
    with Terminal(stream, live=True).stages(PLAN[1:]) as staged, staged.count("evaluation", 8, done=4):
        pass
    assert "50% evaluation 4/8" in stream.getvalue()


def test_a_notebook_updates_one_output(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    displayed, bundles = list[dict[str, str]](), list[dict[str, str]]()

    def display(bundle: dict[str, str], **_: Any) -> Any:
        displayed.append(bundle)
        return SimpleNamespace(update=lambda bundle, *, raw: bundles.append(bundle))

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with Notebook().count("<episodes>", 4) as tick:
        for _ in range(4):
            clock.now += 0.15
            tick()
    (first,) = displayed
    done = [bundle["text/plain"].split()[1] for bundle in (first, *bundles)]
    assert done == ["0/4", "2/4", "4/4", "4/4"]  # at most every 0.2 s, but start and end
    assert '<progress value="100.00" max="100">' in bundles[-1]["text/html"]
    assert "&lt;episodes&gt;" in bundles[-1]["text/html"]


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False


def test_a_reader_that_left_ends_neither_messages_nor_lines(clock: Clock) -> None:
    display = Terminal(Gone())
    display.message("before")
    with display.stages(PLAN) as staged:
        steps = staged.steps(4)
        for step in range(1, 5):
            steps.log(step, {}, {})
        steps.message("within")
        steps.close()


def test_a_notebook_prints_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    Notebook().message("a\x1b[31mb\nc")
    assert capsys.readouterr().out == "a\\x1b[31mb\nc\n"
