"""A problem that brings a memory: where it stands, who takes it, what is recorded of it, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.config.data import DataConfig
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.formats.problem_files import write_problems
from palimpsest.data.sources.file_source import build_source
from palimpsest.errors import ConfigError, DataError
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy, policy_class
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.plugin_kinds import KINDS
from palimpsest.provenance import evaluation_identity
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.types import Grade, Group, Problem
from support.agents import base_codec, played

PROBLEM = Problem("p", "What does Ann drink?", ("tea",), "- Bob owns cats.\n", memory=" Ann drinks tea.")
REPLIES = {
    "overwrite": " Ann drinks tea.",
    "retrieval": " Ann drinks tea.",
    "recall": "<update> Ann drinks tea.</update>",
}
TAKES = [name for name in KINDS["policy"].shipped if policy_class(name).takes_memory and name in REPLIES]


def policy(name: str, **options: int) -> MemoryPolicy:
    return build_policy(PolicyConfig(name=name, options={"prompts": "short", "question_tokens": 20, **options}))


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("layout", ["memory_first", "section_first"])
def test_the_first_prompt_holds_the_memory_that_the_problem_brings(name: str, layout: str) -> None:
    made = build_policy(PolicyConfig(name=name, options={"prompts": "short", "layout": layout}))
    trajectory, script = played(made, [REPLIES[name], "\\boxed{tea}"], PROBLEM)
    codec = base_codec()
    (reading,) = readings(trajectory, GroupTexts(codec))
    assert codec.decode(trajectory.turns[0].piece("memory") or ()) == reading.memory_before.text == " Ann drinks tea."
    assert "Memory: Ann drinks tea." in script.text(0)
    assert " none" not in script.text(0).split("Memory:")[1].split("\n")[0]
    bare, _ = played(made, [REPLIES[name], "\\boxed{tea}"], replace(PROBLEM, memory=""))
    assert codec.decode(bare.turns[0].piece("memory") or ()) == " none"


@pytest.mark.parametrize("name", [name for name in KINDS["policy"].shipped if not policy_class(name).takes_memory])
def test_a_policy_that_begins_without_a_memory_is_refused_with_a_problem_that_brings_one(name: str) -> None:
    made = build_policy(PolicyConfig(name=name))
    with pytest.raises(
        ConfigError, match=r"starts without a memory and problem p has one; .*data\.synthetic\.starts=null"
    ):
        admit_all(made, [PROBLEM], base_codec(), 1_000_000)


def test_a_memory_beyond_its_budget_is_refused() -> None:
    length = len(base_codec().encode(PROBLEM.memory))
    admit_all(policy("overwrite", memory_tokens=length), [PROBLEM], base_codec(), 10_000)
    told = rf"problem p: its memory has {length} tokens, policy\.options\.memory_tokens={length - 1}; raise"
    with pytest.raises(DataError, match=told):
        admit_all(policy("overwrite", memory_tokens=length - 1), [PROBLEM], base_codec(), 10_000)


def test_it_is_written_to_files_and_records_and_read_again(tmp_path: Path) -> None:
    several = replace(PROBLEM, id="bare", memory="")
    write_problems(tmp_path / "mine.jsonl", [PROBLEM, several])
    source = build_source(DataConfig(train_files=str(tmp_path / "mine.jsonl"), shuffle=False), split="train")
    first, second = source.problems(step=0, count=2)
    assert (first.memory, second.memory) == (PROBLEM.memory, "")
    assert ["memory" in json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()] == [
        True,
        False,
    ]

    trajectory, _ = played(policy("overwrite"), [" m", "\\boxed{tea}"], PROBLEM)
    (tmp_path / "group.jsonl.zst").write_bytes(encode_groups([Group(PROBLEM, (trajectory,), (Grade(1.0),))]))
    (group,) = read_groups(tmp_path / "group.jsonl.zst").groups
    assert group.problem.memory == PROBLEM.memory


def test_a_memory_that_is_no_text_is_refused_with_file_and_row(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"question": "Who?", "answers": ["A"], "context": "A.", "memory": ["A"]}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl.* memory must be a string, is list"):
        build_source(DataConfig(train_files=str(tmp_path / "bad.jsonl")), split="train").problems(step=0, count=1)


def test_samples_of_problems_with_other_memories_do_not_belong_together() -> None:
    identities = [
        str(evaluation_identity(RunConfig(), {}, [replace(PROBLEM, memory=memory)])["problems"])
        for memory in ("", " Ann drinks tea.", " Ann drinks rum.")
    ]
    assert len(set(identities)) == 3
