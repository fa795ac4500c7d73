"""The checker of the policy contract."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from palimpsest.errors import ConfigError
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy import Answered, MemoryPolicy
from palimpsest.memory.policy_check import check_policy
from palimpsest.text.codec import Codec
from palimpsest.types import Problem
from support.agents import base_codec

SMALL: dict[str, Any] = {"chunk_size": 20, "question_tokens": 60, "memory_tokens": 12, "answer_tokens": 8}


class Forgetful(MemoryPolicy):
    """Breaks the contract in every way the checker looks for."""

    def __init__(self) -> None:
        self.calls = 0

    async def run(self, problem: Problem, model: Any) -> Answered:
        self.calls += 1  # state on self: prompts differ between episodes
        assert problem.context is not None
        prompt = model.codec.encode_trusted(f"{self.calls} {problem.question} {problem.context}")
        await model.generate(prompt, name="answer", max_tokens=model.max_context)
        return Answered(problem.context.split()[0])


class Reads(MemoryPolicy):
    """Shows the document in windows of 8 tokens; `after` gives the next start."""

    def __init__(self, after: Any, *, to_end: bool = True) -> None:
        self.after, self.reads_to_end = after, to_end  # type: ignore[misc]

    async def run(self, problem: Problem, model: Any) -> Answered:
        ids, at = model.codec.encode(problem.context or ""), 0
        while at is not None and at < len(ids):
            prompt = [*model.codec.encode("Read:"), *ids[at : at + 8]]
            done = await model.generate(prompt, name="read", max_tokens=8)
            at = self.after(at, len(model.codec.strip_stop(done.token_ids)))
        return Answered("nothing")


@pytest.mark.parametrize(
    ("policy", "passed", "message"),
    [
        (Reads(lambda at, reply: at + 8), True, r"all \d+ words are in the prompts, in order$"),
        (
            Reads(lambda at, reply: at + 8 if reply > 4 else None),
            True,
            "ends earlier with a model that answers briefly$",
        ),
        (Reads(lambda at, reply: at + 8 if at < 8 else None, to_end=False), True, r"the first \d+ of \d+ words are"),
        (Reads(lambda at, reply: at + 8 if at < 8 else None), False, r"ends after \d+ of .*reads_to_end = False"),
        (Reads(lambda at, reply: at + 16, to_end=False), False, r"\d+ of \d+ words never reach a prompt"),
    ],
    ids=["all", "brief", "declared", "stops", "skips"],
)
def test_a_policy_may_stop_early_if_declared_but_not_skip_text(
    policy: MemoryPolicy, passed: bool, message: str, tiny_codec: Any
) -> None:
    (document,) = [finding for finding in check_policy(policy, tiny_codec, 512) if finding.name == "document"]
    assert document.passed is passed
    assert re.search(message, document.message)


def test_the_checker_passes_a_shipped_policy_and_names_the_faults_of_a_broken_one(tiny_codec: Any) -> None:
    assert [f for f in check_policy(OverwritePolicy(**SMALL, prompts="short"), tiny_codec, 512) if not f.passed] == []
    failed = {f.name for f in check_policy(Forgetful(), tiny_codec, 512) if not f.passed}
    assert {"budget", "determinism", "adversarial"} <= failed


def test_prompts_that_do_not_fit_the_window_are_a_finding_with_the_fix(tiny_codec: Any) -> None:
    texts = {"read": "word " * 600 + "{question} {memory} {section}", "answer": "{question} {memory}"}
    long = OverwritePolicy(**SMALL, prompts=texts | {"empty_memory": "-"})
    findings = {finding.name: finding for finding in check_policy(long, tiny_codec, 512)}
    assert (findings["options"].passed, findings["window"].passed) == (True, False)
    assert "shorten the texts" in findings["window"].message


def test_a_configuration_that_no_episode_can_have_is_reported_once(tiny_codec: Any) -> None:
    class Impossible(Plays):
        def required_context(self, codec: Codec) -> int:
            raise ConfigError("the model has none", key="model.chat_template")

    findings = [(one.name, one.passed) for one in check_policy(Impossible(one_answer), tiny_codec, 512)]
    assert findings == [("options", True), ("window", False)]


# ---- calls side by side, errors, questions, memories --------------------------------------------------------------


class Plays(MemoryPolicy):
    """Runs a function; declares what is given."""

    def __init__(self, run: Callable[..., Any], **declared: bool) -> None:
        self._run = run
        for name, value in declared.items():
            setattr(self, name, value)

    async def run(self, problem: Problem, model: Any) -> Answered:
        result: Answered = await self._run(problem, model)
        return result


def asking(model: Any, text: str, **notes: Any) -> Any:
    return model.generate(model.codec.encode(text), name="look", max_tokens=8, **notes)


async def at_once(problem: Problem, model: Any) -> Answered:
    prompts = [model.codec.encode(f"{n}?") for n in range(4)]
    for reply in await model.generate_all(prompts, name="look", max_tokens=8, notes=[{"at": n} for n in range(4)]):
        model.event("looked", turn=reply.turn)
    return Answered("x")


async def in_chains(problem: Problem, model: Any) -> Answered:
    async def chain(name: str) -> None:
        for step in range(3):
            await asking(model, f"{name} {step}?")

    async with asyncio.TaskGroup() as tasks:
        for name in "abcd":
            tasks.create_task(chain(name))
    return Answered("x")


async def with_unnamed_events(problem: Problem, model: Any) -> Answered:
    async def look(n: int) -> None:
        await asking(model, f"{n}?")
        model.event("looked", n=n)

    await asyncio.gather(*map(look, range(4)))
    return Answered("x")


async def one_answer(problem: Problem, model: Any) -> Answered:
    await asking(model, problem.question)
    return Answered("x")


async def hides_errors(problem: Problem, model: Any) -> Answered:
    for n in range(3):
        try:
            reply = await asking(model, f"{n}?")
        except Exception:  # noqa: BLE001
            reply = None
    return Answered(str(reply.token_ids and n))


async def falls_over(problem: Problem, model: Any) -> Answered:
    try:
        for n in range(3):
            reply = await asking(model, f"{n}?")
    except Exception as error:
        raise KeyError("lost") from error
    return Answered(str(reply.token_ids))


async def with_a_memory(problem: Problem, model: Any) -> Answered:
    await asking(model, f"{problem.question} {problem.memory}")
    return Answered("x")


async def by_text(problem: Problem, model: Any) -> Answered:
    reply = await asking(model, problem.question)
    await asking(model, model.codec.decode(model.codec.strip_stop(reply.token_ids)))
    return Answered("x")


async def by_ids(problem: Problem, model: Any) -> Answered:
    reply = await asking(model, problem.question)
    await model.generate(model.codec.strip_stop(reply.token_ids), name="look", max_tokens=8)
    return Answered("x")


async def by_a_role(problem: Problem, model: Any) -> Answered:
    await asking(model, problem.question, role="reader")
    return Answered("x")


async def without_room(problem: Problem, model: Any) -> Answered:
    await model.generate(model.codec.encode("?"), name="look", max_tokens=0)
    return Answered("x")


@pytest.mark.parametrize(
    ("kept", "declared", "passed", "says"),
    [
        (0, 0, True, "prompts don't grow"),
        (4, 0, True, "prompts grow"),
        (32, 400, False, "required_context declares 400"),
    ],
)
def test_whether_prompts_grow_with_the_document(kept: int, declared: int, passed: bool, says: str) -> None:
    class Notes(MemoryPolicy):
        def required_context(self, codec: Codec) -> int:
            return declared

        async def run(self, problem: Problem, model: Any) -> Answered:
            ids, notes = model.codec.encode(problem.context or ""), list[int]()
            for at in range(0, len(ids), 64):
                reply = await model.generate([*notes, *ids[at : at + 64]], name="read", max_tokens=32)
                notes += reply.token_ids[:kept]
            return Answered("x")

    (found,) = [one for one in check_policy(Notes(), base_codec(), 2048) if one.name == "long document"]
    assert (found.passed, says in found.message) == (passed, True)


def test_a_policy_that_always_raises_has_no_other_findings() -> None:
    async def raises(problem: Problem, model: Any) -> Answered:
        raise KeyError("x")

    findings = check_policy(Plays(raises), base_codec(), 4096)
    assert {one.name.partition(",")[0] for one in findings if one.passed} == {"options", "window"}
    assert {one.name.partition(",")[0] for one in findings if not one.passed} == {"ends"}


@pytest.mark.parametrize(
    ("policy", "finding", "passed"),
    [
        (Plays(without_room), "ends, model that answers briefly", False),
        (Plays(at_once), "order", True),
        (Plays(in_chains), "order", False),
        (Plays(with_unnamed_events), "order", False),
        (Plays(one_answer), "order", True),
        (Plays(one_answer), "several questions", None),
        (Plays(one_answer, answers_questions=True), "several questions", False),
        (Plays(at_once), "failing call", True),
        (Plays(in_chains), "failing call", True),
        (Plays(hides_errors), "failing call", True),
        (Plays(falls_over), "failing call", False),
        (Plays(one_answer), "memory", None),
        (Plays(one_answer, takes_memory=True), "memory", False),
        (Plays(with_a_memory, takes_memory=True), "memory", True),
        (Plays(by_text), "sampled ids", False),
        (Plays(by_ids), "sampled ids", True),
        (Plays(by_ids), "roles", None),
        (Plays(by_a_role), "roles", True),
    ],
    ids=lambda value: value._run.__name__ if isinstance(value, Plays) else str(value),
)
def test_a_finding_of_the_contract(policy: Plays, finding: str, passed: bool | None) -> None:
    found = {one.name: one.passed for one in check_policy(policy, base_codec(), 4096)}
    assert found.get(finding) is passed
