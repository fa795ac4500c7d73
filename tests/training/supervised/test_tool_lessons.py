"""Lessons for agents with tools: the policy's own form, drawn from what is in sight, good and bad."""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from typing import Any

import pytest

from palimpsest.app.train.supervised_training import build_lessons
from palimpsest.config.data import SearchDataConfig
from palimpsest.config.load import load_recipe, parse_config
from palimpsest.config.reward import FinalAnswerConfig
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.parts.history import sampled_text
from palimpsest.memory.prune import PrunePolicy
from palimpsest.memory.registry import build_policy
from palimpsest.memory.tool_baselines import ToolWindowPolicy
from palimpsest.reward.answer_match import FinalAnswerGrader
from palimpsest.text.tool_calls import ToolCall, find_calls
from palimpsest.training.supervised import scripted_episodes as tool_lessons
from palimpsest.training.supervised.scripted_episodes import ToolLessons
from palimpsest.types import Outcome, Trajectory, Turn
from support.agents import base_codec
from support.fakes import first_lessons

COUNT = 60
WINDOW = 1024
RECIPE = load_recipe("memact-quickstart")
DATA = SearchDataConfig(objectives=(1, 2, 4, 6), people=24, facts_per_passage=5)


def policy(**options: Any) -> PrunePolicy:
    built = build_policy(RECIPE.policy.model_copy(update={"options": {**RECIPE.policy.options, **options}}))
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
    """What was written down, and where."""
    found = []
    for turn in trajectory.turns:
        if turn.name == "summarise":
            found.append((turn, reply(turn)))
        calls = [one for one in find_calls(reply(turn), "llama3") if isinstance(one, ToolCall)]
        found += [(turn, one.arguments["memory"]) for one in calls if one.name == "prune_context"]
    return found


def test_a_lesson_is_a_function_of_seed_and_number() -> None:
    again = lessons()
    assert [again.draw(index) for index in (7, 3)] == [drawn()[7], drawn()[3]]
    assert lessons(seed=1).draw(3) != drawn()[3]


def test_every_reply_is_a_search_a_prune_and_a_search_a_summary_or_the_answer() -> None:
    for trajectory in drawn():
        assert trajectory.outcome in (Outcome.ANSWERED, Outcome.OUT_OF_CONTEXT)
        for turn in trajectory.turns:
            calls, last = find_calls(reply(turn), "llama3"), turn is trajectory.turns[-1]
            if turn.name == "summarise":
                assert not calls
            elif calls and turn.completion.token_ids[-1] in base_codec().stop_ids:  # not cut by the context's end
                assert [one.name for one in calls if isinstance(one, ToolCall)] in (
                    ["search"],
                    ["prune_context", "search"],
                )
            elif not calls:
                assert last
                assert reply(turn).count("FINAL_ANSWER: ") == 1
    assert not [event for one in drawn() for event in one.events if event.kind == "prune_refused"]


def test_prompt_and_reply_are_within_the_context() -> None:
    limits = policy()
    for trajectory in drawn():
        for turn in trajectory.turns:
            assert len(turn.completion.token_ids) <= limits.turn_tokens
            pruning = "prune_context" in prompt(trajectory.turns[0])
            room = limits.context_tokens if pruning or turn.name == "summarise" else WINDOW
            assert len(turn.prompt_ids) + len(turn.completion.token_ids) <= room


def test_what_is_written_down_stands_in_the_prompt() -> None:
    written = [(turn, text) for trajectory in drawn() for turn, text in memories(trajectory)]
    assert len(written) > COUNT / 2
    for turn, text in written:
        for name, fact in re.findall(r" (?:(Q\d+) )?([^.]+\.)", text):
            assert fact in prompt(turn) or fact == "unknown."
            if name:  # stands under the question about its person
                (question,) = re.findall(rf"\b{name}: (.*)", prompt(turn))
                assert fact.split()[0] in question


def test_an_answer_names_what_is_in_sight_and_nothing_else() -> None:
    golds, others = 0, 0
    for trajectory in drawn():
        *_, last = trajectory.turns
        if trajectory.outcome is Outcome.ANSWERED:
            for value in re.findall(r'": " ([^"]+)"', reply(last)):
                golds, others = golds + (value != "unknown"), others + (value == "unknown")
                assert value in prompt(last) or value == "unknown"
    assert golds > others > 0  # good lessons and bad ones


def test_there_are_lessons_with_the_tool_without_it_and_with_summaries() -> None:
    offered = ["prune_context" in prompt(trajectory.turns[0]) for trajectory in drawn()]
    summed = [any(turn.name == "summarise" for turn in trajectory.turns) for trajectory in drawn()]
    pruned = [any(event.kind == "prune" for event in trajectory.events) for trajectory in drawn()]
    assert 0.4 < sum(offered) / COUNT < 0.8  # 0.6 expected
    assert any(summed)
    assert sum(pruned) > COUNT / 5
    assert not any(has and not may for has, may in zip(pruned, offered, strict=True))


def test_a_teacher_that_loses_nothing_is_always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEEPS", "DELETES"):
        monkeypatch.setattr(tool_lessons, name, 1.0)
    monkeypatch.setattr(tool_lessons, "EARLY", 0.3)
    perfect, grader = lessons(data=SearchDataConfig(objectives=(4,))), FinalAnswerGrader(FinalAnswerConfig())
    pruned = 0
    for index in range(20):
        (problem,) = perfect.source.problems(step=index, count=1)
        trajectory = perfect.draw(index)
        grade = asyncio.run(grader.grade(problem, trajectory))
        assert grade.value == 1.0, [reply(turn) for turn in trajectory.turns]
        pruned += any(event.kind == "prune" for event in trajectory.events)
    assert pruned > 5


# ---- the configuration -----------------------------------------------------------------------------------------------


def cold(*overrides: str) -> RunConfig:
    return load_recipe("memact-quickstart", overrides)


def test_the_cold_start_says_how_many_questions_its_lessons_ask() -> None:
    config = cold("cold_start={}", "data.search.objectives=[3]")
    assert config.cold_start is not None
    built = build_lessons(config, config.cold_start, policy(), base_codec(), WINDOW)
    assert isinstance(built, ToolLessons)
    assert built.source.config.objectives == (3,)
    asked = [len(problem.metadata["objectives"]) for problem in built.source.problems(step=0, count=4)]
    assert asked == [3] * 4
    as_data = cold("cold_start={}", "data.search.objectives=[2, 5]")
    assert as_data.cold_start is not None
    built = build_lessons(as_data, as_data.cold_start, policy(), base_codec(), WINDOW)
    assert isinstance(built, ToolLessons)
    assert built.source.config.objectives == (2, 5)


def test_an_agent_without_tools_has_no_lessons_on_search_problems() -> None:
    config = parse_config("data: {train_files: synthetic_search}\ncold_start: {}")
    assert config.cold_start is not None
    with pytest.raises(ConfigError, match="needs an agent with tools; OverwritePolicy"):
        build_lessons(config, config.cold_start, build_policy(config.policy), base_codec(), WINDOW)


def test_an_agent_that_has_no_memory_action_is_taught_as_it_is() -> None:
    plain = ToolWindowPolicy(**RECIPE.evaluation.baselines["sliding_window"].options)
    for trajectory in first_lessons(ToolLessons(plain, base_codec(), DATA, 0, WINDOW), 10):
        assert {turn.name for turn in trajectory.turns} == {"act"}
        assert not memories(trajectory)
