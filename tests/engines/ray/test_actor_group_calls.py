"""Time limits of calls and errors of lost processes; Ray itself is not started."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.errors import ProcessesLost, RunError

pytest.importorskip("ray", reason="needs the extra ray")

import ray
from ray.exceptions import RayActorError, RayTaskError

from palimpsest.engines.ray.actor_group import ActorGroup
from palimpsest.engines.ray.ray_runtime import Limit


def group_of(*overrides: str) -> ActorGroup:
    return ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray", *overrides]), "policy", 0)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ended groups. A call is its own result: an exception, a value, or None for no answer."""
    ended: list[Any] = []

    def wait(calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [call for call in calls if call is not None][:1]
        return ready, [call for call in calls if call not in ready]

    def get(calls: list[Any]) -> list[Any]:
        for call in calls:
            if isinstance(call, Exception):
                raise call
        return calls

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ActorGroup, "close", lambda group: ended.append(group))
    return ended


LIMIT = Limit("cluster.timeout_s", 10)
LOST = r"lost a process \(RayActorError"


def failed(cause: Exception) -> RayTaskError:
    return RayTaskError("update", "a traceback\nof many lines", cause)  # type: ignore[no-untyped-call]


def test_all_answers_come_in_the_order_of_the_calls(called: list[Any]) -> None:
    assert group_of().collect([3, 1, 2], LIMIT, "update") == [3, 1, 2]
    assert not called


def test_processes_that_do_not_answer_in_time_are_ended_with_the_limit_and_its_key(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of("cluster.timeout_s=1")
    clock = count(step=0.75)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(ProcessesLost, match=r"^update: not done within 2 s; raise cluster\.timeout_s=1$"):
        group.collect([1, None], group.limit(2), "update")
    assert called == [group]


def test_calls_after_a_failure_raise_the_first_failure(called: list[Any]) -> None:
    group = group_of()
    for error in (RayActorError(), RunError("another")):
        with pytest.raises(ProcessesLost, match=f"^update: .* {LOST}"):
            group.collect([error], LIMIT, "update")
    group._state = "lost"
    with pytest.raises(ProcessesLost, match=f"^update: .* {LOST}"):
        group.start()


def test_a_failure_in_another_thread_ends_a_wait(called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    group, waits = group_of(), 0

    def wait(calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        nonlocal waits
        waits += 1
        group._answers.failed(RayActorError(), "save")  # in another thread
        return [], calls

    monkeypatch.setattr(ray, "wait", wait)
    for calls in ([None], [None], []):
        with pytest.raises(ProcessesLost, match=r"^save: .* lost a process"):
            group.collect(calls, LIMIT, "update")
    assert waits == 1


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RayActorError(), ProcessesLost, rf"engine\.name=ray {LOST}.*newest check"),
        (failed(ZeroDivisionError("of\nlines")), ProcessesLost, r"lost a process \(ZeroDivision.*newest check"),
        (
            failed(RuntimeError("[gloo] Timed out waiting 1000ms")),
            ProcessesLost,
            r"Timed out.*raise cluster\.timeout_s",
        ),
        (
            failed(RunError("cluster.folder: node does not see /a")),
            RunError,
            r"^cluster\.folder: node does not see /a$",
        ),
    ],
)
def test_a_lost_process_is_an_error_of_one_line_with_the_fix(
    called: list[Any], error: Exception, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        group_of().collect([error, None], LIMIT, "update")
    assert "\n" not in str(caught.value)
    assert len(called) == 1
