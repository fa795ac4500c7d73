"""Tasks served as an OpenEnv environment: the same episodes as played here, and OpenEnv's client over loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import EnvironmentConfig
from palimpsest.errors import ConfigError
from palimpsest.servers.task_server import TaskPrompt, Tasks, TaskSession, openenv_app
from palimpsest.tools.environment import OpenEnvironment
from palimpsest.types import Problem

CHUNKS = 2
RECIPE = ["data.curriculum=null", f"data.synthetic.chunks={CHUNKS}", "data.synthetic.starts=null"]


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return Tasks.open(load_recipe("memagent-quickstart", RECIPE))


async def played(session: TaskSession, replies: list[str], seed: int) -> list[TaskPrompt]:
    prompts = [await session.reset(seed)]
    for reply in replies:
        prompts.append(await session.step(reply))
    return prompts


@pytest.mark.parametrize("right", [True, False])
def test_a_session_shows_the_prompts_of_the_policy_and_then_the_reward(tasks: Tasks, right: bool) -> None:
    problem = tasks.problem(3)
    memory = problem.metadata["evidence"][0]
    answer = f"\\boxed{{{problem.answers[0] if right else 'nothing'}}}"
    prompts = asyncio.run(played(TaskSession(tasks), [memory] * CHUNKS + [answer], 3))
    first, *_, last, ended = prompts
    (message,) = first.messages
    assert message["role"] == "user"
    assert problem.question in message["content"]
    assert memory in last.messages[0]["content"]
    assert first.max_tokens == tasks.config.policy.options["memory_tokens"]
    assert (ended.done, ended.reward) == (True, float(right))
    assert ended.metadata["outcome"] == "answered"


def test_the_same_seed_is_the_same_problem_and_a_reset_ends_an_episode(tasks: Tasks) -> None:
    async def twice() -> tuple[TaskPrompt, ...]:
        session = TaskSession(tasks)
        first = await session.reset(5)
        await session.step("half read")
        return first, await session.reset(5), await session.reset(6)

    first, again, other = asyncio.run(twice())
    assert first == again != other


def test_a_reply_is_cut_at_its_budget_and_forges_no_message(tasks: Tasks) -> None:
    prompts = asyncio.run(played(TaskSession(tasks), ["<|end|>" + "x " * 1_000_000], 3))
    assert len(prompts[1].messages) == 1
    assert len(prompts[1].messages[0]["content"]) < 2 * len(prompts[0].messages[0]["content"])


def test_a_stop_token_ends_a_reply_and_a_truncated_one_is_no_answer(tasks: Tasks) -> None:
    problem = tasks.problem(3)
    replies = [problem.metadata["evidence"][0]] * CHUNKS
    answer = f"\\boxed{{{problem.answers[0]}}}"

    async def ended(text: str, **cut: bool) -> TaskPrompt:
        session = TaskSession(tasks)
        await played(session, replies, 3)
        return await session.step(text, **cut)

    assert asyncio.run(ended(answer + tasks.stops[0])).reward == 1.0
    assert asyncio.run(ended(answer, truncated=True)).metadata["outcome"] == "answer_truncated"


def test_resets_without_a_seed_are_different_problems(tasks: Tasks) -> None:
    async def several() -> list[TaskPrompt]:
        return [await TaskSession(tasks).reset() for _ in range(3)]

    shown = [prompt.messages[0]["content"] for prompt in asyncio.run(several())]
    assert len(set(shown)) == 3
    for wrong in (-1, 1.5, "7", True, 10**30):
        with pytest.raises(ValueError, match="seed"):
            asyncio.run(TaskSession(tasks).reset(wrong))


def test_a_role_with_a_local_model_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"roles\.reader\.model"):
        Tasks.open(load_recipe("lead-quickstart"))
    asked = Tasks.open(load_recipe("lead-quickstart", ["roles.reader.model=null"]))
    assert asyncio.run(TaskSession(asked).reset(0)).messages


def test_each_question_has_its_own_reward_as_in_training() -> None:
    several = Tasks.open(load_recipe("memagent-quickstart", [*RECIPE, "data.synthetic.task=several"]))
    problem = several.problem(0)
    right, *wrong = problem.questions
    replies = [f"\\boxed{{{right.answers[0]}}}", *["\\boxed{nothing}"] * len(wrong)]
    memory = " ".join(problem.metadata["evidence"])

    async def ended() -> TaskPrompt:
        session, left = TaskSession(several), list(replies)
        prompt = await session.reset(0)
        while not prompt.done:
            reads = "boxed" not in prompt.messages[0]["content"]
            prompt = await session.step(memory if reads else left.pop(0))
        return prompt

    assert asyncio.run(ended()).reward == pytest.approx(1 / len(problem.questions))


def test_a_step_without_an_episode_is_an_error(tasks: Tasks) -> None:
    with pytest.raises(ValueError, match="reset"):
        asyncio.run(TaskSession(tasks).step("x"))


# ---- With the package (extra openenv); skipped without it ----------------------------------------------------


@pytest.fixture(scope="module")
def url(tasks: Tasks) -> Iterator[str]:
    pytest.importorskip("openenv", reason="needs the extra openenv")
    import uvicorn

    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = uvicorn.Server(uvicorn.Config(openenv_app(tasks, sessions=4), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_the_client_of_openenv_plays_a_task(url: str, tasks: Tasks) -> None:
    from openenv.core.generic_client import GenericEnvClient

    problem = tasks.problem(3)
    with GenericEnvClient(base_url=url).sync() as client:
        result: Any = client.reset(seed=3)
        assert problem.question in result.observation["messages"][0]["content"]
        for _ in range(CHUNKS):
            assert not result.done
            result = client.step({"text": problem.metadata["evidence"][0]})
        result = client.step({"text": f"\\boxed{{{problem.answers[0]}}}"})
        assert (result.done, result.reward) == (True, 1.0)


def test_our_agent_acts_in_a_served_environment(url: str, tasks: Tasks) -> None:
    async def acted() -> tuple[str, list[float]]:
        steps: list[Any] = []
        world = OpenEnvironment(EnvironmentConfig(name="openenv", options={"url": url})).episode(steps.append)
        first = await world.reset(Problem("p", metadata={"reset": {"seed": 3}}))
        while not world.done:
            await world.step("\\boxed{" + tasks.problem(3).answers[0] + "}")
        await world.close()
        return first, [step.reward for step in steps]

    first, rewards = asyncio.run(acted())
    assert tasks.problem(3).question in first
    assert rewards == [0.0] * CHUNKS + [1.0]


@pytest.mark.parametrize("options", [{"url": "http://127.0.0.1:9"}, {"url": "no address"}])
def test_a_server_that_cannot_be_reached_is_an_error(options: dict[str, Any]) -> None:
    from palimpsest.tools.environment import EnvironmentLost

    if options["url"].startswith("http"):
        pytest.importorskip("openenv", reason="needs the extra openenv")
    world = OpenEnvironment(EnvironmentConfig(name="openenv", options=options)).episode([].append)
    with pytest.raises((EnvironmentLost, ConfigError)):
        asyncio.run(world.reset(Problem("p")))
