"""How long processes are waited for, and what is said where one fails; Ray itself is not started."""

from __future__ import annotations

import time
from importlib.util import find_spec
from itertools import count
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.errors import ProcessesLost, RunError

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)

import ray
from ray.exceptions import RayActorError, RayTaskError

from palimpsest.engines.ray.actor_group import ActorGroup
from palimpsest.engines.ray.ray_runtime import Limit


def group_of(*overrides: str) -> ActorGroup:
    return ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray", *overrides]), "policy", 0)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls are what they answer: an exception, None for never, or a value; the group that made them, once ended."""
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


def test_what_is_asked_after_a_failure_is_told_the_first(called: list[Any]) -> None:
    group = group_of()
    for error in (RayActorError(), RunError("of no interest any more")):
        with pytest.raises(ProcessesLost, match=r"^update: .* lost a process \(RayActorError"):
            group.collect([error], LIMIT, "update")
    group._state = "lost"
    with pytest.raises(ProcessesLost, match=r"^update: .* lost a process \(RayActorError"):
        group.start()


def test_who_waits_while_all_is_lost_waits_no_longer(called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ranks_that_gave_each_other_up_name_the_limit(called: list[Any]) -> None:
    with pytest.raises(ProcessesLost, match=r"Timed out waiting.*raise cluster\.timeout_s"):
        group_of().collect([failed(RuntimeError("[gloo] Timed out waiting 1000ms for recv"))], LIMIT, "update")


def test_what_the_user_can_mend_is_told_as_it_was_raised(called: list[Any]) -> None:
    raised = failed(RunError("cluster.folder: node does not see /a"))
    with pytest.raises(RunError, match=r"^cluster\.folder: node does not see /a$"):
        group_of().collect([1, raised], LIMIT, "starting")
    assert len(called) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [(RayActorError(), "RayActorError"), (failed(ZeroDivisionError("of\nlines")), "ZeroDivision")],
)
def test_a_lost_process_is_told_in_a_line_with_what_to_do(called: list[Any], error: Exception, told: str) -> None:
    with pytest.raises(ProcessesLost, match=rf"engine\.name=ray lost a process \({told}.*newest check") as caught:
        group_of().collect([error, None], LIMIT, "update")
    assert "\n" not in str(caught.value)
    assert len(called) == 1
