"""Scripted reading of problems that name their evidence, and the questions made for it from real paragraphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.wiki_questions import make_wiki_questions
from palimpsest.data.formats.problem_files import is_question_file
from palimpsest.data.sources.file_source import FileSource
from palimpsest.errors import ConfigError, DataError
from palimpsest.memory.document_baselines import FullContextPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.recall import RecallPolicy
from palimpsest.text.reply_tags import RecallReply, read_recall_reply
from palimpsest.training.supervised.scripted_episodes import EvidenceLessons
from palimpsest.types import Outcome, Problem, Trajectory
from support.command import Run

SIZES: dict[str, Any] = {"chunk_size": 40, "question_tokens": 80, "memory_tokens": 48, "chunk_boundary": "line"}
TEXT = "Omar sells tea.\nAnna paints boats.\nRo trusts Omar.\nIda eats figs.\nBen has a dog.\nKim runs."
EVIDENCE = ("Ro trusts Omar.", "Omar sells tea.")


def problem(**changes: Any) -> Problem:
    values: dict[str, Any] = {"context": TEXT, "metadata": {"evidence": EVIDENCE}, **changes}
    return Problem("p", "What does the one Ro trusts sell?", ("tea",), **values)


def played(codec: Any, policy: Any, asked: Problem) -> tuple[Trajectory, list[str]]:
    drawn = EvidenceLessons(policy, codec, lambda index: asked).draw(3)
    return drawn, [codec.decode(turn.completion.token_ids, control=False) for turn in drawn.turns]


@pytest.mark.parametrize(("grounded", "unchanged"), [("verbatim", ""), ("off", "Omar sells tea.")])
def test_the_memory_gains_each_piece_and_an_unchanged_one_costs_nothing(
    grounded: str, unchanged: str, tiny_codec: Any
) -> None:
    policy = OverwritePolicy(**{**SIZES, "chunk_size": 16}, grounded=grounded, prompts="short")
    drawn, replies = played(tiny_codec, policy, problem())
    sections = [tiny_codec.decode(turn.piece("section")) for turn in drawn.turns[:-1]]
    first, second = (next(i for i, text in enumerate(sections) if piece in text) for piece in EVIDENCE[::-1])
    assert 0 == first < second < len(sections) - 1
    assert replies[first] == "Omar sells tea."
    assert replies[second] == "Omar sells tea. Ro trusts Omar."
    assert {replies[i] for i in range(first + 1, second)} <= {unchanged}
    assert replies[-2:] == [unchanged and replies[second], "\\boxed{tea}"]
    assert drawn.outcome is Outcome.ANSWERED


def test_an_answer_without_its_evidence_is_unknown(tiny_codec: Any) -> None:
    missing = problem(context="Anna paints boats.\nKim runs.")
    _, replies = played(tiny_codec, OverwritePolicy(**SIZES, grounded="verbatim", prompts="short"), missing)
    assert replies[-1] == "\\boxed{unknown}"
    _, replies = played(tiny_codec, OverwritePolicy(**SIZES, prompts="final"), problem())
    assert replies[-1] == "FINAL_ANSWER: tea"


def test_a_long_piece_is_its_sentence_with_the_answer(tiny_codec: Any) -> None:
    long = "Omar has a shop by the harbour of the old town. Omar sells tea. He opens it at nine on every working day."
    asked = problem(context=f"{long}\nKim runs.", metadata={"evidence": (long,)})
    small = OverwritePolicy(**{**SIZES, "chunk_size": 120, "memory_tokens": 24}, grounded="verbatim", prompts="short")
    _, replies = played(tiny_codec, small, asked)
    assert replies[0] == "Omar sells tea."


def test_a_recalling_policy_is_taught_in_its_format(tiny_codec: Any) -> None:
    policy = RecallPolicy(**SIZES, reply_tokens=80, prompts="short")
    drawn, replies = played(tiny_codec, policy, problem())
    updates = [read_recall_reply(turn.completion.token_ids, tiny_codec) for turn in drawn.turns[:-1]]
    assert all(isinstance(update, RecallReply) for update in updates)
    assert "Omar sells tea." in replies[0]
    assert replies[-1] == "\\boxed{tea}"


def test_what_has_no_evidence_or_no_format_is_rejected(tiny_codec: Any) -> None:
    with pytest.raises(DataError, match="metadata"):
        played(tiny_codec, OverwritePolicy(**SIZES), problem(metadata={}))
    with pytest.raises(ConfigError, match="teachable"):
        EvidenceLessons(FullContextPolicy(), tiny_codec, lambda index: problem())


# ---- From files ----------------------------------------------------------------------------------------------


def corpus(path: Path) -> Path:
    rows = []
    for number in range(40):
        name, film = f"Anna Lee{chr(97 + number % 26)}{'x' * (number // 26)}", f"Harbour {number}"
        rows.append({"title": name, "text": f"{name} (born {number % 28 + 1} May 19{number + 10}) is a Dutch painter."})
        text = f"{film} is a 1990 drama film directed by Tom Ro{chr(97 + number % 26)}n and written by Ida Berg."
        rows.append({"title": f"{film} (film)", "text": text})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_questions_are_made_from_paragraphs_and_split_by_title(tmp_path: Path) -> None:
    source = corpus(tmp_path / "corpus.jsonl")
    made = make_wiki_questions([source], out=tmp_path / "wiki", held_out=20)
    assert dict(made.problems) == {"train.jsonl": 60, "dev.jsonl": 20}
    again = make_wiki_questions([source], out=tmp_path / "again", held_out=20)
    assert (tmp_path / "wiki/train.jsonl").read_bytes() == (tmp_path / "again/train.jsonl").read_bytes()
    assert made.edition == again.edition
    train, dev = (list(FileSource.open(tmp_path / "wiki" / name, split="eval", documents=8)) for name in made.problems)
    for one in (*train, *dev):
        (sentence,) = one.metadata["supporting_sentences"]
        assert one.answers[0] in sentence
        assert sentence in str(one.context)
        assert str(one.context).count(one.answers[0]) >= 1
        assert one.metadata["num_docs"] == 8
    assert not {one.question for one in train} & {one.question for one in dev}
    with pytest.raises(DataError, match="--held-out"):
        make_wiki_questions([source], out=tmp_path / "none", held_out=100)


def test_sft_takes_a_file_of_questions_with_evidence(palimpsest: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    row = {"question": "What does Omar sell?", "answers": ["tea"], "context": "Omar sells tea.\nAnna eats figs."}
    file.write_text(json.dumps({**row, "metadata": {"evidence": ["Omar sells tea."]}}))
    assert is_question_file(file)
    settings = ("train.max_steps=2", "train.batch_size=2", "train.num_minibatches=1", "--out", str(tmp_path / "warm"))
    done = palimpsest("sft", "memagent-quickstart", "--from", str(file), *settings)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "warm" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    again = palimpsest("sft", "--resume", str(tmp_path / "warm"), "train.max_steps=3")
    assert again.returncode == 0, again.stderr
    file.write_text(json.dumps(row))
    lacking = palimpsest("sft", "memagent-quickstart", "--from", str(file), "--out", str(tmp_path / "other"))
    assert lacking.returncode == 2
    assert "metadata.evidence" in lacking.stderr


def test_a_cold_start_on_a_file_draws_its_problems(palimpsest: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    row = {"question": "What does Omar sell?", "answers": ["tea"], "context": "Omar sells tea.\nAnna eats figs."}
    file.write_text(json.dumps({**row, "metadata": {"evidence": ["Omar sells tea."]}}))
    start = "cold_start={max_steps: 2, batch_size: 2}"
    data = (f"data={{train_files: {file}}}", "data.curriculum=null")
    done = palimpsest("sft", "memagent-quickstart", *data, start, "--out", str(tmp_path / "warm"))
    assert done.returncode == 0, done.stderr
