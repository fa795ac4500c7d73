"""The checker of the policy contract."""

from __future__ import annotations

import re
from typing import Any

import pytest

from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy import Answered, MemoryPolicy
from palimpsest.memory.policy_check import check_policy
from palimpsest.types import Problem

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
    assert all(f.passed for f in check_policy(OverwritePolicy(**SMALL, prompts="short"), tiny_codec, 512))
    failed = {f.name for f in check_policy(Forgetful(), tiny_codec, 512) if not f.passed}
    assert {"budget", "determinism", "adversarial"} <= failed


def test_prompts_that_do_not_fit_the_window_are_a_finding_with_the_fix(tiny_codec: Any) -> None:
    texts = {"read": "word " * 600 + "{question} {memory} {section}", "answer": "{question} {memory}"}
    long = OverwritePolicy(**SMALL, prompts=texts | {"empty_memory": "-"})
    findings = {finding.name: finding for finding in check_policy(long, tiny_codec, 512)}
    assert (findings["options"].passed, findings["window"].passed) == (True, False)
    assert "shorten the texts" in findings["window"].message
