"""Scripted episodes of agents with tools, and of reading agents on problems that name their evidence."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.wiki_questions import make_wiki_questions
from palimpsest.app.train.supervised_training import build_lessons
from palimpsest.config.data import SearchDataConfig
from palimpsest.config.load import load_recipe, parse_config
from palimpsest.config.reward import FinalAnswerConfig
from palimpsest.data.formats.problem_files import is_question_file
from palimpsest.data.sources.file_source import FileSource
from palimpsest.errors import ConfigError, DataError
from palimpsest.events import Pruned, PruneRefused, RolledBack, ToolCalled, of_type
from palimpsest.memory.document_baselines import FullContextPolicy
from palimpsest.memory.edit import EditPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.parts.history import sampled_text
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.recall import RecallPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.memory.tool_baselines import ToolWindowPolicy
from palimpsest.reward.answer_match import FinalAnswerGrader
from palimpsest.text.reply_tags import RecallReply, read_recall_reply
from palimpsest.text.tool_calls import ToolCall, find_calls
from palimpsest.training.supervised import scripted_episodes
from palimpsest.training.supervised.scripted_episodes import EvidenceLessons, ToolLessons
from palimpsest.types import Outcome, Problem, Trajectory, Turn
from support.agents import base_codec
from support.command import Run
from support.fakes import first_lessons

COUNT = 60
WINDOW = 1024
RECIPE = load_recipe("memact-quickstart")
DATA = SearchDataConfig(objectives=(1, 2, 4, 6), people=24, facts_per_passage=5)


def policy() -> PrunePolicy:
    built = build_policy(RECIPE.policy)
    assert isinstance(built, PrunePolicy)
    return built


def lessons(seed: int = 0, data: SearchDataConfig = DATA) -> ToolLessons:
    return ToolLessons(policy(), base_codec(), data, seed, WINDOW)


@lru_cache
def drawn() -> list[Trajectory]:
    return first_lessons(lessons(), COUNT)


def prompt(turn: Turn) -> str:
    return base_codec().decode(turn.prompt_ids)


def reply(turn: Turn) -> str:
    return sampled_text(turn.completion.token_ids, base_codec())


def memories(trajectory: Trajectory) -> list[tuple[Turn, str]]:
    """Texts of prunes and summaries, with their turns."""
    written = []
    for turn in trajectory.turns:
        if turn.name == "summarise":
            written.append((turn, reply(turn)))
        calls = [one for one in find_calls(reply(turn), "llama3") if isinstance(one, ToolCall)]
        written += [(turn, one.arguments["memory"]) for one in calls if one.name == "prune_context"]
    return written


def test_an_episode_is_a_function_of_seed_and_number() -> None:
    again = lessons()
    assert [again.draw(index) for index in (7, 3)] == [drawn()[7], drawn()[3]]
    assert lessons(seed=1).draw(3) != drawn()[3]


def test_every_reply_is_a_search_a_prune_and_a_search_a_summary_or_the_answer_within_the_context() -> None:
    limits = policy()
    for trajectory in drawn():
        assert trajectory.outcome in (Outcome.ANSWERED, Outcome.OUT_OF_CONTEXT)
        assert not [event for event in trajectory.events if event.kind == "prune_refused"]
        pruning = "prune_context" in prompt(trajectory.turns[0])
        for turn in trajectory.turns:
            assert len(turn.completion.token_ids) <= limits.turn_tokens
            room = limits.context_tokens if pruning or turn.name == "summarise" else WINDOW
            assert len(turn.prompt_ids) + len(turn.completion.token_ids) <= room
            calls = find_calls(reply(turn), "llama3")
            if turn.name == "summarise":
                assert not calls
            elif calls and turn.completion.token_ids[-1] in base_codec().stop_ids:  # not cut by the context's end
                names = [one.name for one in calls if isinstance(one, ToolCall)]
                assert names in (["search"], ["prune_context", "search"])
            elif not calls:
                assert turn is trajectory.turns[-1]
                assert reply(turn).count("FINAL_ANSWER: ") == 1


def test_memories_and_answers_contain_only_text_of_the_prompt() -> None:
    written = [(turn, text) for trajectory in drawn() for turn, text in memories(trajectory)]
    assert len(written) > COUNT / 2
    for turn, text in written:
        for name, fact in re.findall(r" (?:(Q\d+) )?([^.]+\.)", text):
            assert fact in prompt(turn) or fact == "unknown."
            if name:  # under the question about its person
                (question,) = re.findall(rf"\b{name}: (.*)", prompt(turn))
                assert fact.split()[0] in question
    golds, others = 0, 0
    for last in (trajectory.turns[-1] for trajectory in drawn() if trajectory.outcome is Outcome.ANSWERED):
        for value in re.findall(r'": " ([^"]+)"', reply(last)):
            golds, others = golds + (value != "unknown"), others + (value == "unknown")
            assert value in prompt(last) or value == "unknown"
    assert golds > others > 0  # good episodes and bad ones


def test_episodes_have_the_prune_tool_or_not_and_some_have_summaries() -> None:
    offered = ["prune_context" in prompt(trajectory.turns[0]) for trajectory in drawn()]
    pruned = [any(event.kind == "prune" for event in trajectory.events) for trajectory in drawn()]
    assert 0.4 < sum(offered) / COUNT < 0.8  # 0.6 expected
    assert any(turn.name == "summarise" for trajectory in drawn() for turn in trajectory.turns)
    assert sum(pruned) > COUNT / 5
    assert not any(has and not may for has, may in zip(pruned, offered, strict=True))


def test_a_teacher_that_loses_no_fact_is_always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KEEPS", 1.0), ("DELETES", 1.0), ("EARLY", 0.3)):
        monkeypatch.setattr(scripted_episodes, name, value)
    perfect, grader = lessons(data=SearchDataConfig(objectives=(4,))), FinalAnswerGrader(FinalAnswerConfig())
    pruned = 0
    for index in range(20):
        (problem,) = perfect.source.problems(step=index, count=1)
        trajectory = perfect.draw(index)
        grade = asyncio.run(grader.grade(problem, trajectory))
        assert grade.value == 1.0, [reply(turn) for turn in trajectory.turns]
        pruned += any(event.kind == "prune" for event in trajectory.events)
    assert pruned > 5


@pytest.mark.parametrize("objectives", [(3,), (2, 5)])
def test_the_cold_start_has_as_many_questions_as_the_data(objectives: tuple[int, ...]) -> None:
    config = load_recipe("memact-quickstart", ["cold_start={}", f"data.search.objectives={list(objectives)}"])
    assert config.cold_start is not None
    built = build_lessons(config, config.cold_start, policy(), base_codec(), WINDOW)
    assert isinstance(built, ToolLessons)
    assert built.source.config.objectives == objectives
    problems = built.source.problems(step=0, count=4)
    assert {len(problem.metadata["objectives"]) for problem in problems} <= set(objectives)


def test_an_agent_without_tools_is_rejected_for_search_problems() -> None:
    config = parse_config("data: {train_files: synthetic_search}\ncold_start: {}")
    assert config.cold_start is not None
    with pytest.raises(ConfigError, match="needs an agent with tools; OverwritePolicy"):
        build_lessons(config, config.cold_start, build_policy(config.policy), base_codec(), WINDOW)


def test_edits_are_of_every_verb_and_keep_to_the_words_of_the_prompt() -> None:
    config = load_recipe("edit-quickstart")
    agent = build_policy(config.policy)
    assert isinstance(agent, EditPolicy)
    drawn = first_lessons(ToolLessons(agent, base_codec(), config.data.search or DATA, 0, WINDOW), 60)
    verbs = Counter(edit.verb for one in drawn for edit in of_type(one.events, Pruned))
    assert set(verbs) == set(agent.verbs)
    assert min(verbs.values()) > verbs.total() / 10
    assert not [one for one in drawn if of_type(one.events, PruneRefused)]
    for turn in (turn for one in drawn for turn in one.turns):
        for fact in re.findall(r"[A-Z][a-z]+ [a-z]+ \w+\.", reply(turn)):
            assert fact in prompt(turn)
    again = [one for one in drawn if of_type(one.events, RolledBack) and one.outcome is Outcome.ANSWERED]
    assert again
    for one in again:
        asked = [called.arguments["query"] for called in of_type(one.events, ToolCalled)]
        assert len(asked) > len(set(asked))  # the result that found no room, again


def test_an_agent_without_a_memory_action_only_acts() -> None:
    plain = ToolWindowPolicy(**RECIPE.evaluation.baselines["sliding_window"].options)
    for trajectory in first_lessons(ToolLessons(plain, base_codec(), DATA, 0, WINDOW), 10):
        assert {turn.name for turn in trajectory.turns} == {"act"}
        assert not memories(trajectory)


# ---- Reading agents ------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {"chunk_size": 40, "question_tokens": 80, "memory_tokens": 48, "chunk_boundary": "line"}
TEXT = "Omar sells tea.\nAnna paints boats.\nRo trusts Omar.\nIda eats figs.\nBen has a dog.\nKim runs."
EVIDENCE = ("Ro trusts Omar.", "Omar sells tea.")


def evident(**changes: Any) -> Problem:
    values: dict[str, Any] = {"context": TEXT, "metadata": {"evidence": EVIDENCE}, **changes}
    return Problem("p", "What does the one Ro trusts sell?", ("tea",), **values)


def played(codec: Any, policy: Any, problem: Problem) -> tuple[Trajectory, list[str]]:
    trajectory = EvidenceLessons(policy, codec, lambda index: problem).draw(3)
    return trajectory, [codec.decode(turn.completion.token_ids, control=False) for turn in trajectory.turns]


@pytest.mark.parametrize(("grounded", "unchanged"), [("verbatim", ""), ("off", "Omar sells tea.")])
def test_the_memory_gains_each_piece_of_evidence_where_it_is_read(
    grounded: str, unchanged: str, tiny_codec: Any
) -> None:
    policy = OverwritePolicy(**{**SIZES, "chunk_size": 16}, grounded=grounded, prompts="short")
    trajectory, replies = played(tiny_codec, policy, evident())
    sections = [tiny_codec.decode(turn.piece("section")) for turn in trajectory.turns[:-1]]
    first, second = (next(i for i, text in enumerate(sections) if piece in text) for piece in EVIDENCE[::-1])
    assert 0 == first < second < len(sections) - 1
    assert replies[first] == "Omar sells tea."
    assert replies[second] == "Omar sells tea. Ro trusts Omar."
    assert {replies[i] for i in range(first + 1, second)} <= {unchanged}
    assert replies[-2:] == [unchanged and replies[second], "\\boxed{tea}"]
    assert trajectory.outcome is Outcome.ANSWERED


def test_an_answer_without_its_evidence_is_unknown(tiny_codec: Any) -> None:
    missing = evident(context="Anna paints boats.\nKim runs.")
    _, replies = played(tiny_codec, OverwritePolicy(**SIZES, grounded="verbatim", prompts="short"), missing)
    assert replies[-1] == "\\boxed{unknown}"
    _, replies = played(tiny_codec, OverwritePolicy(**SIZES, prompts="final"), evident())
    assert replies[-1] == "FINAL_ANSWER: tea"


@pytest.mark.parametrize(
    ("task", "golds", "reply"),
    [("list", ("tea", "jars"), "tea, jars"), ("count", ("2",), "2"), ("needle", ("tea",), "tea")],
)
def test_a_family_is_answered_from_all_that_it_needs(
    task: str, golds: tuple[str, ...], reply: str, tiny_codec: Any
) -> None:
    metadata: dict[str, Any] = {"evidence": ("Omar sells tea.", "Omar makes jars."), "task": task}
    metadata |= {"every_gold": True} if task == "list" else {}
    policy = OverwritePolicy(**SIZES, grounded="verbatim", prompts="short")
    for context, answer in (
        ("Omar sells tea.\nOmar makes jars.", reply),
        ("Omar sells tea.\nKim has 2 dogs.", "tea" if task == "needle" else "unknown"),
    ):
        problem = Problem("p", "What does Omar sell?", golds, context, metadata)
        assert played(tiny_codec, policy, problem)[1][-1] == f"\\boxed{{{answer}}}"


def test_a_long_piece_is_reduced_to_its_sentence_with_the_answer(tiny_codec: Any) -> None:
    long = "Omar has a shop by the harbour of the old town. Omar sells tea. He opens it at nine on every working day."
    problem = evident(context=f"{long}\nKim runs.", metadata={"evidence": (long,)})
    small = OverwritePolicy(**{**SIZES, "chunk_size": 120, "memory_tokens": 24}, grounded="verbatim", prompts="short")
    assert played(tiny_codec, small, problem)[1][0] == "Omar sells tea."


def test_a_recalling_policy_is_taught_in_its_format(tiny_codec: Any) -> None:
    policy = RecallPolicy(**SIZES, reply_tokens=80, prompts="short")
    trajectory, replies = played(tiny_codec, policy, evident())
    for turn in trajectory.turns[:-1]:
        assert isinstance(read_recall_reply(turn.completion.token_ids, tiny_codec), RecallReply)
    assert "Omar sells tea." in replies[0]
    assert replies[-1] == "\\boxed{tea}"


def test_a_problem_without_evidence_and_a_policy_without_a_format_are_rejected(tiny_codec: Any) -> None:
    with pytest.raises(DataError, match="metadata"):
        played(tiny_codec, OverwritePolicy(**SIZES), evident(metadata={}))
    with pytest.raises(ConfigError, match="teachable"):
        EvidenceLessons(FullContextPolicy(), tiny_codec, lambda index: evident())


# ---- Problems from files -------------------------------------------------------------------------------------


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
    made, again = (make_wiki_questions([source], out=tmp_path / name, held_out=20) for name in ("wiki", "again"))
    assert dict(made.problems) == {"train.jsonl": 60, "dev.jsonl": 20}
    assert (tmp_path / "wiki/train.jsonl").read_bytes() == (tmp_path / "again/train.jsonl").read_bytes()
    assert made.edition == again.edition
    train, dev = (list(FileSource.open(tmp_path / "wiki" / name, split="eval", documents=8)) for name in made.problems)
    for one in (*train, *dev):
        (sentence,) = one.metadata["supporting_sentences"]
        assert one.answers[0] in sentence
        assert sentence in str(one.context)
        assert one.metadata["num_docs"] == 8
    assert not {one.question for one in train} & {one.question for one in dev}
    with pytest.raises(DataError, match="--held-out"):
        make_wiki_questions([source], out=tmp_path / "none", held_out=100)


ROW = {"question": "What does Omar sell?", "answers": ["tea"], "context": "Omar sells tea.\nAnna eats figs."}


@pytest.fixture
def evidence_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({**ROW, "metadata": {"evidence": ["Omar sells tea."]}}))
    return file


def test_sft_accepts_a_file_of_questions_with_evidence(palimpsest: Run, tmp_path: Path, evidence_file: Path) -> None:
    assert is_question_file(evidence_file)
    sft = ("sft", "memagent-quickstart", "--from", str(evidence_file))
    settings = ("train.max_steps=2", "train.batch_size=2", "train.num_minibatches=1", "--out", str(tmp_path / "warm"))
    done = palimpsest(*sft, *settings)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "warm" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    again = palimpsest("sft", "--resume", str(tmp_path / "warm"), "train.max_steps=3")
    assert again.returncode == 0, again.stderr
    evidence_file.write_text(json.dumps(ROW))
    lacking = palimpsest(*sft, "--out", str(tmp_path / "other"))
    assert (lacking.returncode, "metadata.evidence" in lacking.stderr) == (2, True)


def test_a_cold_start_on_a_file_draws_its_problems(palimpsest: Run, tmp_path: Path, evidence_file: Path) -> None:
    data = (f"data={{train_files: {evidence_file}}}", "data.curriculum=null")
    start = "cold_start={max_steps: 2, batch_size: 2}"
    done = palimpsest("sft", "memagent-quickstart", *data, start, "--out", str(tmp_path / "warm"))
    assert done.returncode == 0, done.stderr
