"""Episodes of a cold start: they teach the format of replies, not the task."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.app.train import supervised_training
from palimpsest.app.train.run_setup import open_setup
from palimpsest.app.train.supervised_training import run_cold_start
from palimpsest.app.train.training_run import train_in_folder
from palimpsest.config.data import SyntheticConfig
from palimpsest.config.load import load_recipe
from palimpsest.data.synthetic.families import ASKS
from palimpsest.data.synthetic.world import PEOPLE, RELATIONS
from palimpsest.errors import ConfigError
from palimpsest.memory.document_baselines import FullContextPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.recall import RecallPolicy
from palimpsest.progress.reporter import Silent
from palimpsest.runs.driver import Finished
from palimpsest.runs.run_folder import open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.reply_tags import RecallReply, read_recall_reply
from palimpsest.text.sentences import flat, sentences, stands_in
from palimpsest.training.supervised.lessons import Lessons
from palimpsest.training.supervised.supervised_loop import SupervisedTrainer
from support.facts import GOLDS, values_of
from support.fakes import first_lessons

DATA = SyntheticConfig(facts_per_chunk=2, task=("two_hops",), distractor_facts=0, competing_facts=0.5)
ONE_HOP = SyntheticConfig(facts_per_chunk=2)
SIZES: dict[str, Any] = {"chunk_size": 60, "question_tokens": 80, "memory_tokens": 48, "prompts": "short"}
COUNT = 200


def slots_of(turn: Any, codec: Any) -> dict[str, str]:
    """Texts of the pieces of a reading prompt; a recalled memory counts as memory."""
    slots = {name: codec.decode(turn.piece(name)) for name in turn.spans}
    if "recalled" in slots:
        slots["memory"] = f"{slots.pop('recalled')}\n{slots['memory']}"
    return slots


def read_lessons(
    policy: Any, codec: Any, insight: float = 0.0, data: SyntheticConfig = DATA
) -> list[tuple[dict[str, str], str]]:
    """Slots and reply of each reading turn."""
    drawn = first_lessons(Lessons(policy, codec, data, 0, insight), COUNT)
    turns = [turn for trajectory in drawn for turn in trajectory.turns if turn.name == "read"]
    return [(slots_of(turn, codec), codec.decode(turn.completion.token_ids, control=False)) for turn in turns]


def lessons(policy: Any, codec: Any, insight: float = 0.0) -> list[tuple[str, str, str]]:
    """Kind, prompt and reply of each turn."""
    drawn = first_lessons(Lessons(policy, codec, DATA, 0, insight), COUNT)
    turns = [turn for trajectory in drawn for turn in trajectory.turns]
    texts = [[codec.decode(ids, control=False) for ids in (t.prompt_ids, t.completion.token_ids)] for t in turns]
    return [(turn.name, prompt, reply) for turn, (prompt, reply) in zip(turns, texts, strict=True)]


def test_every_reply_is_well_formed_and_within_its_budget(tiny_codec: Any) -> None:
    policy, queries = RecallPolicy(**SIZES, reply_tokens=140), 0
    for trajectory in first_lessons(Lessons(policy, tiny_codec, DATA, 0), COUNT):
        (turn,) = trajectory.turns
        if turn.name == "read":
            reply = read_recall_reply(turn.completion.token_ids, tiny_codec)
            assert isinstance(reply, RecallReply)
            assert 0 < len(reply.update) <= policy.memory_tokens
            assert reply.query is None or reply.query in PEOPLE
            queries += reply.query is not None
        assert turn.completion.token_ids[-1] == tiny_codec.stop_ids[-1]
        assert len(turn.prompt_ids) + policy.written_tokens <= policy.required_context(tiny_codec)
    assert 0.6 < queries / (0.6 * COUNT) < 0.95


def test_memories_and_queries_are_drawn_from_the_prompt(tiny_codec: Any) -> None:
    sources = Counter[str]()
    for slots, text in read_lessons(RecallPolicy(**SIZES, reply_tokens=140), tiny_codec):
        update, _, recall = text.removeprefix("<update>").partition("</update>")
        shown = flat(slots["memory"] + "\n" + slots["section"])
        assert all(stands_in(flat(sentence), shown) for sentence in sentences(update))
        name = recall.removeprefix("<recall> ").removesuffix("</recall>")
        assert not name or (name in slots["section"] and name not in slots["question"])
        for sentence in sentences(update):
            sources["section" if sentence in slots["section"] else "memory"] += 1
    assert 0.5 < sources["section"] / sources.total() < 0.95


@pytest.mark.parametrize("task", GOLDS)
def test_an_answer_follows_from_the_memory_in_every_family(task: Any, tiny_codec: Any) -> None:
    data, policy = SyntheticConfig(task=(task,)), OverwritePolicy(**SIZES | {"memory_tokens": 96})
    answers = Counter[str]()
    for trajectory in first_lessons(Lessons(policy, tiny_codec, data, 0), COUNT):
        (turn,) = trajectory.turns
        if turn.name == "answer":
            slots = slots_of(turn, tiny_codec)
            values = values_of(f"- {slots['memory'].strip()}", slots["question"].removesuffix(f" {ASKS[task]}"))
            answer = (
                tiny_codec.decode(turn.completion.token_ids, control=False).removeprefix("\\boxed{").removesuffix("}")
            )
            said = sorted(answer.split(", ")) if task == "list" else [answer]
            assert said == (GOLDS[task](values) if values else ["unknown"])
            answers[answer] += 1
    assert answers["unknown"] > 0
    assert len(answers) > 2


def test_memories_do_not_depend_on_the_question(tiny_codec: Any) -> None:
    """Facts about the subject of the question are written as often as the others."""
    shown, written = Counter[bool](), Counter[bool]()
    for slots, text in read_lessons(OverwritePolicy(**SIZES), tiny_codec):
        subject = next(word for word in slots["question"].replace("?", "").split() if word in PEOPLE)
        for fact in dict.fromkeys(sentences(slots["section"])):
            shown[subject in fact] += 1
            written[subject in fact] += fact in text
    assert shown[True] > 10
    assert abs(written[True] / shown[True] - written[False] / shown[False]) < 0.25


def test_with_insight_the_first_hop_stays_in_memory_and_the_second_is_queried(tiny_codec: Any) -> None:
    """The first hop is about the question's subject, the second about the person at its end."""
    written = queried = 0
    for slots, text in read_lessons(RecallPolicy(**SIZES, reply_tokens=140), tiny_codec, insight=1.0):
        subject = next(word for word in slots["question"].replace("?", "").split() if word in PEOPLE)
        update, _, recall = text.removeprefix("<update>").partition("</update>")
        facts = sentences(slots["memory"] + "\n" + slots["section"])
        for first in (
            fact for fact in facts if fact.startswith(f"{subject} ") and fact.rstrip(".").split()[-1] in PEOPLE
        ):
            bridge = first.rstrip(".").split()[-1]
            verb = slots["question"].partition(f"{subject} ")[2].split()[0]
            if verb not in first:
                continue
            assert first in update
            written += 1
            if not any(fact.startswith(f"{bridge} ") for fact in facts):
                assert recall == f"<recall> {bridge}</recall>"
                queried += 1
            break
    assert written > 12
    assert queried > 6


def test_answers_need_both_memories_and_are_unknown_without_a_piece(tiny_codec: Any) -> None:
    answers = [(p, t) for kind, p, t in lessons(RecallPolicy(**SIZES), tiny_codec) if kind == "answer"]
    right = [(p, t) for p, t in answers if "unknown" not in t]
    assert 0.6 < len(right) / len(answers) < 0.9
    spread = 0
    for prompt, text in right:
        answer = text.removeprefix("\\boxed{").removesuffix("}")
        recalled, memory = prompt.partition("recall:")[2].split("\nMemory:")
        assert answer in recalled + memory
        subject = next(word for word in prompt.partition("\n")[2].partition("?")[0].split() if word in PEOPLE)
        spread += (answer in recalled) != (subject in recalled)
    assert spread > len(right) / 5  # a hop in each


def test_recall_and_overwrite_start_from_equal_problems(tiny_codec: Any) -> None:
    policies = (RecallPolicy(**SIZES), OverwritePolicy(**SIZES))
    kinds, other_kinds = ([kind for kind, _, _ in lessons(policy, tiny_codec)] for policy in policies)
    assert kinds == other_kinds
    ours, theirs = (read_lessons(policy, tiny_codec) for policy in policies)
    for (mine, _), (other, _) in zip(ours, theirs, strict=True):
        assert (mine["question"], mine["section"]) == (other["question"], other["section"])
        assert other["memory"] in mine["memory"]  # which includes the recalled one


@pytest.mark.parametrize("keeps", [True, False])
def test_empty_replies_occur_only_where_they_leave_the_memory_unchanged(tiny_codec: Any, keeps: bool) -> None:
    policy = OverwritePolicy(**SIZES, empty_memory="keep" if keeps else "overwrite")
    replies = [reply for _, reply in read_lessons(policy, tiny_codec)]
    assert (0.2 < sum(not reply for reply in replies) / len(replies) < 0.4) == keeps
    assert keeps or all(replies)


def test_with_insight_evidence_is_written_where_it_is_read(tiny_codec: Any) -> None:
    policy = OverwritePolicy(**SIZES, empty_memory="keep")
    in_memory = read = 0
    for slots, reply in read_lessons(policy, tiny_codec, insight=1.0, data=ONE_HOP):
        subject = next(word for word in re.findall(r"\w+", slots["question"]) if word in PEOPLE)
        (relation,) = (one for one in RELATIONS if one.question.format(s=subject) == slots["question"])
        starts = tuple(text.format(s=subject, v="").rstrip(".") for text in relation.statements)
        memory, section = (
            [fact for fact in sentences(slots[name]) if fact.startswith(starts)] for name in ("memory", "section")
        )
        if memory and not section:
            assert reply == ""
            in_memory += 1
        elif section and not memory:
            assert section[0] in reply
            read += 1
    assert min(in_memory, read) > 6


def test_a_policy_without_a_format_is_rejected(tiny_codec: Any) -> None:
    with pytest.raises(ConfigError, match=r"FullContextPolicy: its teachable\(\)"):
        Lessons(FullContextPolicy(), tiny_codec, DATA, 0)


def test_training_starts_with_one_cold_start(tmp_path: Path, tiny_model_folder: Path) -> None:
    settings = [
        f"model.path={tiny_model_folder}",
        "train={max_steps: 1, batch_size: 1, group_size: 2, num_minibatches: 1, save_steps: 1}",
        "cold_start={max_steps: 2, batch_size: 2}",
        "policy.options.question_tokens=60",
        "logging.report_to=[jsonl]",
    ]
    config = load_recipe("rememr1-quickstart", settings)
    started: list[str] = []
    for _ in range(2):
        with open_run(tmp_path / "run", config, resume=True) as folder:
            finished = asyncio.run(
                train_in_folder(folder, config, open_setup(config, folder.path), on_start=started.append)
            )
        assert finished.step == 1
    assert started == [str(tmp_path / "run" / "cold-start" / "checkpoints" / "step-000002")] * 2
    rows = (tmp_path / "run" / "cold-start" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2
    (row,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert "state_format" in row


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def killed() -> None:
    raise KeyboardInterrupt


def test_a_killed_or_interrupted_cold_start_ends_with_the_same_weights(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons = "cold_start={max_steps: 5, batch_size: 2}"
    settings = [f"model.path={tiny_model_folder}", lessons, "policy.options.question_tokens=60"]
    config = load_recipe("rememr1-quickstart", [*settings, "logging.report_to=[jsonl]"])
    setup = open_setup(config, tmp_path)
    policy, codec, step = setup.policy, setup.engine.codec, SupervisedTrainer.step
    happens: Callable[[], None] | None = None

    async def watched(trainer: SupervisedTrainer, number: int) -> Any:
        if number == 4 and happens is not None:
            happens()
        return await step(trainer, number)

    def go(name: str) -> Finished:
        out, rest = tmp_path / name / "cold-start", {"progress": Silent(), "stop": GracefulStop(), "warn": print}
        return asyncio.run(run_cold_start(config, policy, codec, out, **rest))

    monkeypatch.setattr(supervised_training, "SAVE_EVERY", 2)
    monkeypatch.setattr(SupervisedTrainer, "step", watched)
    go("whole")
    happens = killed
    with pytest.raises(KeyboardInterrupt):
        go("killed")
    assert [path.name for path in (tmp_path / "killed" / "cold-start" / "checkpoints").iterdir()] == ["step-000002"]
    happens, started = interrupt, list[str]()
    with open_run(tmp_path / "interrupted", config) as folder:
        report = asyncio.run(train_in_folder(folder, config, setup, on_start=started.append))
    assert (report.step, report.interrupted, report.checkpoint.name, started) == (0, True, "step-000004", [])
    assert not (tmp_path / "interrupted" / "metrics.jsonl").exists()
    assert not hasattr(setup, "engine")  # its memory was free during the cold start
    happens = None
    for name in ("killed", "interrupted"):
        assert go(name).step == 5
        for file in ("cold-start/metrics.jsonl", "cold-start/checkpoints/step-000005/model.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_the_grid_of_a_method_has_held_out_problems_of_each_size() -> None:
    grid = Grid(load_recipe("rememr1-quickstart", ["evaluation.problems=3"]))
    assert [len((p.context or "").split("\n")) for p in grid.problems(16)] == [128] * 3
    assert grid.axis.heading(grid.size(16), 8) == "128 chunks (16x)"
    assert grid.axis.heading(grid.size(16), 4) == "128 chunks (32x)"
    assert list(grid.players) == ["recall", "recall_before", "overwrite", "rule_recall"]


def test_baselines_have_the_budgets_of_the_agent() -> None:
    config = load_recipe("rememr1-quickstart")
    budgets = config.policy.options
    for other in (*config.evaluation.trained_baselines.values(), *config.evaluation.baselines.values()):
        shared = set(other.options) & set(budgets) - {"query"}
        assert {"memory_tokens", "chunk_size", "question_tokens", "answer_tokens"} <= shared
        assert all(other.options[name] == budgets[name] for name in shared)
