"""Tokens of a step, against played episodes and by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import ModelConfig
from palimpsest.data.sources.file_source import build_source
from palimpsest.memory.policy_check import ScriptedModel
from palimpsest.memory.registry import build_policy
from palimpsest.planning.model_shape import KNOWN
from palimpsest.planning.workload import ANSWER, REPLY, PlannedRow, ProblemSizes, places, problem_sizes, workload
from palimpsest.text.codec import Codec


def test_rows_of_a_group_by_hand() -> None:
    """Three rollouts. Turn 1: prompt of 10, shared. Turn 2: 4 shared, 6 of each. Replies of 5, all different."""
    rows = [PlannedRow(10, 0, 5, 100), PlannedRow(4, 6, 5, 100)]
    assert places(rows, 3) == (10 + 4 + 3 * 6, 2 * 3 * 5)
    assert places(rows, 3, micro=15)[0] == 3 * 10 + 3 * (4 + 6)  # a row of 15 per forest: nothing is shared
    assert places(rows, 3, micro=26)[0] == 10 + 4 * 2 + 3 * 6  # turn 2: two rows of 11 after 4, then the third
    certain = [PlannedRow(10, 0, 5, 0), PlannedRow(4, 6, 5, 0)]
    assert places(certain, 3) == (20, 10)


@pytest.mark.parametrize("layout", ["memory_first", "section_first"])
@pytest.mark.parametrize("recipe", ["memagent-quickstart", "rememr1-quickstart"])
def test_a_readers_tokens_are_those_of_episodes_that_a_scripted_model_plays(recipe: str, layout: str) -> None:
    """A group of 3 whose replies all differ, each of the assumed length."""
    budgets = ["memory_tokens=64", "answer_tokens=64", "grounded=off", f"layout={layout}"]
    words = [f"policy.options.{word}" for word in budgets]
    recalls = recipe.startswith("rememr1")
    words += ["policy.options.reply_tokens=64", "policy.options.memory_tokens=40"] if recalls else []
    sized = ["train.group_size=3", "train.batch_size=1", "train.num_minibatches=1", "loss.kl_loss_coef=0.1"]
    config = load_recipe(recipe, [*words, *sized, "credit.dynamic_sampling=null", "engine.micro_batch_tokens=100000"])
    codec, policy = Codec.load(ModelConfig()), build_policy(config.policy)
    chunks = config.data.curriculum.chunks[-1] if config.data.curriculum else config.data.synthetic.chunks
    (problem,) = build_source(config.data, 0, split="train").problems(step=0, count=1, size=chunks)
    ids, length = itertools.count(100), round(64 * REPLY)

    tags = len(policy.reply(codec, ()))  # type: ignore[attr-defined]

    def reply(_: Sequence[int], __: int) -> list[int]:
        memory = [next(ids) % 2000 + 300 for _ in range(length - tags)]
        return list(policy.reply(codec, memory))  # type: ignore[attr-defined]

    rows: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(3):
        model = ScriptedModel(codec, lambda prompt, most: rows_of(rows, prompt, reply(prompt, most)), 4096)
        asyncio.run(model.play(policy, problem))
    found = workload(config, problem_sizes(config))
    assert found.rows == len(rows)
    assert found.prompt == pytest.approx(sum(prompt for prompt, _ in rows), rel=0.2)
    assert found.sampled == pytest.approx(sum(len(row) - prompt for prompt, row in rows), rel=0.1)
    assert found.logical == pytest.approx(sum(len(row) for _, row in rows), rel=0.15)
    distinct = {row[:end] for _, row in rows for end in range(1, len(row) + 1)}
    assert found.distinct == pytest.approx(len(distinct), rel=0.25)


def rows_of(rows: list[tuple[int, tuple[int, ...]]], prompt: Sequence[int], reply: list[int]) -> list[int]:
    """Record a row; returns its reply."""
    rows.append((len(prompt), (*prompt, *reply)))
    return reply


def test_memagents_step_by_hand() -> None:
    """6 sections of 5,000, no shared prefix but the instructions: 2,048 episodes of 7 turns."""
    config = load_recipe("memagent-7b")
    found = workload(config, ProblemSizes(30, 30_000, 6, 1, 2, (108, 58)))
    memory = REPLY * 1024
    reads = 108 + 30 + 5000 + 5 * (108 + 30 + memory + 5000)
    assert found.episodes == 2048
    assert found.prompt == pytest.approx(2048 * (reads + 58 + 30 + memory))
    assert found.sampled == pytest.approx(2048 * (6 * memory + ANSWER))
    assert found.rows == 2048 * 7
    assert 1.1 < found.logical / found.distinct < 1.2  # the first section of a group is read once
    shared = workload(load_recipe("memagent-7b", ["policy.options.layout=section_first"]), ProblemSizes(
        30, 30_000, 6, 1, 2, (108, 58)
    ))  # fmt: skip
    assert shared.logical / shared.distinct > 2


def test_replaced_groups_and_groups_without_a_signal_count() -> None:
    sizes = ProblemSizes(10, 40, 2, 1, 1, (20, 20))
    plain = workload(load_recipe("memagent-quickstart", ["credit.dynamic_sampling=null"]), sizes)
    refilled = workload(load_recipe("memagent-quickstart"), sizes)
    assert plain.episodes == 8 * 16
    assert refilled.episodes == pytest.approx(1.3 * plain.episodes)  # 30 % of the groups are played again
    assert refilled.rows == pytest.approx(8 * 0.91 * 16 * 3)
    compared = load_recipe("memagent-quickstart", ["credit.dynamic_sampling=null", "loss.kl_loss_coef=0.1"])
    assert workload(compared, sizes).rows == 8 * 16 * 3


def test_a_draw_of_segments_limits_the_rows() -> None:
    found = workload(load_recipe("memact-7b"), problem_sizes(load_recipe("memact-7b")))
    assert found.rows == pytest.approx(128 * 12)
    assert found.prompt / found.episodes == pytest.approx(5 * 20_480 / 2)  # five turns for 2.5 questions


def test_lengths_come_from_the_files_that_are_there(tmp_path: Path) -> None:
    rows = [f'{{"question": "Who {i}?", "answers": ["A"], "context": "{"word " * 9000}"}}' for i in range(3)]
    (tmp_path / "own.jsonl").write_text("\n".join(rows))
    words = [f"data.train_files={tmp_path / 'own.jsonl'}", "data.val_files=null"]
    there = problem_sizes(load_recipe("memagent-7b", words))
    assert there.document == pytest.approx(9000 * 5 / 4.4, rel=0.01)
    assert there.chunks == 3
    assert len(there.assumed) == 1  # the tokenizer
    absent = problem_sizes(load_recipe("memagent-7b"))
    assert (absent.document, absent.chunks, len(absent.assumed)) == (28_000, 6, 2)


@pytest.mark.parametrize(("documents", "tokens"), [("null", 28_000), ("4", 560), ("400", 56_000)])
def test_the_documents_of_a_file_that_is_not_there_are_those_of_the_configuration(documents: str, tokens: int) -> None:
    words = ["data.train_files=nowhere.json", f"data.documents={documents}", "policy.options.max_chunks=100000"]
    assert problem_sizes(load_recipe("memagent-smollm2", words)).document == tokens


def test_recurrent_states_are_shared_by_neither_learner_nor_embedded_sampler() -> None:
    config = load_recipe("memagent-quickstart")
    sizes = problem_sizes(config)
    shape = replace(KNOWN["Qwen/Qwen3-4B"], state=1, apart=True)
    forest, apart = workload(config, sizes), workload(config, sizes, shape)
    assert forest.distinct < forest.logical == apart.logical == apart.distinct
    assert forest.computed_prompt < forest.prompt == apart.prompt == apart.computed_prompt
    chosen = workload(load_recipe("memagent-quickstart", ["learner.layout=segments"]), sizes)
    assert (chosen.distinct, chosen.computed_prompt) == (apart.distinct, forest.computed_prompt)
    served = workload(load_recipe("memagent-7b", ["sampler.name=vllm"]), sizes, shape)
    assert served.computed_prompt < served.prompt
