"""Policies by name, their options, and the problems they accept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError, DataError
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy, policy_class
from palimpsest.plugin_kinds import KINDS
from palimpsest.types import Problem, Question
from support.agents import base_codec

MEMORY = Problem("p", "What does Ann drink?", ("tea",), "- Bob owns cats.\n", memory=" Ann drinks tea.")
QUESTIONS = Problem.asking("p", [Question("Who ran?", ("Anna",)), Question("Where?", ("Rome",))], "Anna ran.")
SHIPPED = KINDS["policy"].shipped


def build(name: str, **options: Any) -> Any:
    return build_policy(PolicyConfig(name=name, options=options))


def admit(policy: MemoryPolicy, problem: Problem, window: int = 1_000_000) -> None:
    admit_all(policy, [problem], base_codec(), window)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("overwrit", {}, "policy.name='overwrit': no such policy; did you mean overwrite"),
        ("overwrite", {"chunk_sise": 3}, "policy.options.chunk_sise is unknown to overwrite; did you mean chunk_size"),
        ("overwrite", {"lr": 1}, "did you mean optim.learning_rate?"),
        ("closed_book", {"chunk_size": 1, "unit": "y"}, "prompts; policy.options={} drops those"),
        ("overwrite", {"chunk_size": 0}, "policy.options.chunk_size=0: must be at least 1"),
        ("overwrite", {"layout": "x"}, "policy.options.layout='x': choose one of memory_first, section_first"),
        ("overwrite", {"prompts": "x"}, "policy.options.prompts='x': choose one of standard, short"),
        ("overwrite", {"chunk_size": 2.5}, "policy.options.chunk_size=2.5: must be a whole number"),
        ("overwrite", {"max_chunks": True}, "policy.options.max_chunks=True: must be a whole number or null"),
        ("recall", {"min_similarity": "0"}, "policy.options.min_similarity='0': must be a number or null"),
        ("recall", {"retriever": "word"}, "policy.options.retriever='word': choose one of words, jaccard, tfidf, bm25"),
        ("passages", {"passage_tokens": 0}, "policy.options.passage_tokens=0: must be at least 1"),
        ("passages", {"retriever": "dense"}, "choose one of words, jaccard, tfidf, bm25"),
        ("recall", {"query": "rule"}, "policy.options.query='rule': choose one of model, question"),
        (
            "recall",
            {"malformed": "accept"},
            "policy.options.malformed='accept': needs policy.options.next_memory=reply",
        ),
        ("recall", {"reply_tokens": 0}, "policy.options.reply_tokens=0: must be at least 1"),
        ("recall", {"empty_memory": "keep"}, "policy.options.empty_memory='keep': has no effect"),
        ("prune", {"prune": 1}, "policy.options.prune=1: must be true or false"),
        ("prune", {"tools": ["search"]}, "policy.options.tools=['search']: must be a mapping"),
        ("prune", {"tools": {"search": {"topk": 2.5}}}, "policy.options.tools.search.topk=2.5: must be a whole number"),
        ("no_such_module:P", {}, "no module 'no_such_module'"),
        ("palimpsest.types:P", {}, "palimpsest.types has no 'P'"),
        ("palimpsest.types:Turn", {}, "policy.name='palimpsest.types:Turn': needs a method run"),
        ("threading:Thread", {}, "policy.name='threading:Thread': run is no coroutine: write async def run"),
    ],
)
def test_an_invalid_policy_is_rejected_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(name, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_class_with_run_alone_has_the_defaults_of_the_contract(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "plain_policy.py").write_text(
        "class Plain:\n"
        "    reward = 'f1'\n"
        "    def __init__(self, lines: int = 2, share: float = 0.5, other=None):\n"
        "        self.lines, self.share = lines, share\n"
        "    async def run(self, problem, model):\n"
        "        raise NotImplementedError\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = build("plain_policy:Plain", lines=3, share=1)
    assert MemoryPolicy in type(policy).__mro__
    assert (policy.lines, policy.share, type(policy).__name__) == (3, 1, "Plain")
    assert (policy.reward, policy.reads_documents, policy.required_context(None)) == ("f1", True, 0)
    for wrong, message in (
        ({"lines": 2.5}, "policy.options.lines=2.5: must be a whole number"),
        ({"lnies": 2}, "policy.options.lnies is unknown to plain_policy:Plain; did you mean lines?"),
        ({"share": "x"}, "policy.options.share='x': must be a number"),
    ):
        with pytest.raises(ConfigError) as error:
            build("plain_policy:Plain", **wrong)
        assert str(error.value).startswith(message)


def test_optional_members_of_a_policy_are_read_only_through_the_contract() -> None:
    members = {name for name in vars(MemoryPolicy) if not name.startswith("_")}
    sources = Path(palimpsest.__file__).parent.rglob("*.py")
    text = "\n".join(path.read_text("utf-8") for path in sources)
    names = set(re.findall(r"(?:getattr|hasattr)\([^()]*, *[\"'](\w+)[\"']", text))
    assert names & members <= {"run"}  # `run` is what makes a class a policy


def test_budgets_larger_than_the_window_are_refused_with_the_sum(tiny_codec: Any) -> None:
    policy = build("overwrite", chunk_size=20, question_tokens=60, memory_tokens=12, answer_tokens=8)
    need = policy.required_context(tiny_codec)
    admit_all(policy, [], tiny_codec, need)
    with pytest.raises(ConfigError, match=rf"add up to {need} tokens, the model's context is {need - 1}"):
        admit_all(policy, [], tiny_codec, need - 1)


@pytest.mark.parametrize("name", ["retrieval", "prune"])
def test_a_policy_for_one_question_is_rejected_with_those_for_several(name: str) -> None:
    policy = build(name, **({} if name == "prune" else {"prompts": "short", "question_tokens": 40}))
    with pytest.raises(ConfigError, match=r"policy.name: \w+ answers one question and problem p has 2; .*overwrite"):
        admit(policy, QUESTIONS)


@pytest.mark.parametrize("name", [name for name in SHIPPED if not policy_class(name).takes_memory])
def test_a_policy_without_a_starting_memory_is_rejected_for_a_problem_with_one(name: str) -> None:
    reason = r"starts without a memory and problem p has one; .*data\.synthetic\.starts=null"
    with pytest.raises(ConfigError, match=reason):
        admit(build(name), MEMORY)


@pytest.mark.parametrize(
    ("problem", "text", "option", "message"),
    [
        (QUESTIONS, QUESTIONS.question, "question_tokens", "its 2 questions have {} tokens, policy.options.question_"),
        (MEMORY, MEMORY.memory, "memory_tokens", r"problem p: its memory has {} tokens, policy\.options\.memory_tok"),
        (replace(MEMORY, memory=""), MEMORY.question, "question_tokens", r"problem p: its question has {} tokens"),
    ],
)
def test_a_text_beyond_its_budget_is_rejected(problem: Problem, text: str, option: str, message: str) -> None:
    length = len(base_codec().encode(text))
    admit(build("overwrite", prompts="short", **{option: length}), problem)
    with pytest.raises(DataError, match=message.format(length)):
        admit(build("overwrite", prompts="short", **{option: length - 1}), problem)
