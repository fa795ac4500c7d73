"""TextWorld games: made, won by their walkthroughs, lost, in processes that may die. Needs the extra textworld."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.textworld_games import GameSet, make_games, missing_games
from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import EnvironmentConfig, PolicyConfig
from palimpsest.errors import ConfigError, DataError, RunError
from palimpsest.events import EnvironmentStepped, Pruned, of_type
from palimpsest.memory.registry import build_policy
from palimpsest.tools import textworld
from palimpsest.tools.environment import EnvironmentLost, OpenEnvironment
from palimpsest.tools.textworld import TextWorldEnvironment
from palimpsest.training.supervised.walkthroughs import WalkthroughLessons
from palimpsest.types import Outcome, Problem
from support.agents import base_codec

pytest.importorskip("textworld", reason="needs the extra textworld")


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "games"
    made = make_games(GameSet(games=6, held_out=1, difficulty=(3,), test_difficulty=(2, 32)), out=out)
    assert made.problems == {"train.jsonl": 6, "test-2.jsonl": 1, "test-32.jsonl": 1}
    return out


def problems(games: Path, name: str = "train") -> list[Problem]:
    rows = map(json.loads, (games / f"{name}.jsonl").read_text().splitlines())
    return [Problem(row["id"], row["question"], (), None, row["metadata"]) for row in rows]


@pytest.mark.parametrize("name", ["train", "test-2", "test-32"])
def test_the_walkthrough_wins(name: str, games: Path) -> None:
    problem = problems(games, name)[0]
    game = TextWorldEnvironment(str(games))
    first = game.reset(problem)
    assert first.startswith("-= ")
    assert "note" in first
    *steps, last = [game.step(action) for action in problem.metadata["walkthrough"]]
    game.close()
    assert [(step.reward, step.done, step.info["invalid"]) for step in steps] == [(0.0, False, 0.0)] * len(steps)
    assert (last.reward, last.done, last.info["won"]) == (1.0, True, 1.0)
    thing = problem.metadata["walkthrough"][-1].split()[-1]
    assert steps[0].observation == f"The note says: take the {thing}."


def test_the_order_of_the_things_tells_nothing(games: Path) -> None:
    places = set()
    for problem in problems(games):
        *way, last = problem.metadata["walkthrough"]
        game = TextWorldEnvironment(str(games))
        game.reset(problem)
        shown = [game.step(action) for action in way][-1].observation
        game.close()
        listed = re.findall(r"\ba (\w+)", shown)
        places.add(listed.index(last.split()[-1]))
    assert len(places) > 1


def test_another_thing_loses_and_nonsense_is_invalid(games: Path) -> None:
    problem = problems(games)[0]
    *way, right = problem.metadata["walkthrough"]
    game = TextWorldEnvironment(str(games), commands=True)
    assert "Commands: examine note; " in game.reset(problem)
    assert game.step("fly").info["invalid"] == 1.0
    seen = [game.step(action) for action in way][-1].observation
    commands = seen.rpartition("Commands: ")[2].split("; ")
    wrong = next(one for one in commands if one.startswith("take ") and one != right)
    lost = game.step(wrong)
    assert (lost.reward, lost.done, lost.info) == (0.0, True, {"won": 0.0, "invalid": 0.0})


@pytest.mark.parametrize("commands", [False, True])
def test_a_command_that_the_game_refuses_is_invalid(commands: bool, games: Path) -> None:
    problem = problems(games)[0]
    game = TextWorldEnvironment(str(games), commands=commands)
    game.reset(problem)
    way = problem.metadata["walkthrough"][1].split()[-1]
    closed = next(side for side in ("north", "south", "east", "west") if side != way)
    tried = ["look", "wait", "take note", "take note", f"go {closed}", "go", "take lantern", "inventory", f"go {way}"]
    steps = {f"{n} {action}": game.step(action) for n, action in enumerate(tried)}
    game.close()
    refused = {"3 take note", f"4 go {closed}", "5 go", "6 take lantern"}
    assert {name for name, step in steps.items() if step.info["invalid"]} == refused
    assert not any("[" in step.observation for step in steps.values())


STEERING = (r"\boxed{take key}", "save", "restore", "script", "wait. restore", "take a then wait", "look\x00", "quit")


@pytest.mark.parametrize("action", [*STEERING, "x" * 300, "tw-trace-actions", ""])
def test_a_command_that_steers_the_interpreter_is_invalid(action: str, games: Path) -> None:
    game = TextWorldEnvironment(str(games))
    first = game.reset(problems(games)[0])
    step = game.step(action)
    assert (step.reward, step.done, step.info["invalid"]) == (0.0, False, 1.0)
    assert game.step("look").observation == first, "nothing happened"


def test_a_game_ends_after_its_steps(games: Path) -> None:
    problem = problems(games)[0]
    least = len(problem.metadata["walkthrough"])
    for factor, steps in ((1.0, least), (1.5, math.ceil(1.5 * least))):
        game = TextWorldEnvironment(str(games), most_steps=factor)
        game.reset(problem)
        assert [game.step("look").done for _ in range(steps)] == [False] * (steps - 1) + [True]


def test_equal_actions_have_equal_observations(games: Path) -> None:
    problem = problems(games)[1]

    def played() -> list[Any]:
        game = TextWorldEnvironment(str(games))
        return [game.reset(problem), *(game.step(action) for action in ["look", *problem.metadata["walkthrough"]])]

    assert played() == played()


def test_a_process_that_dies_ends_its_episode_and_the_next_game_has_another(games: Path) -> None:
    world = OpenEnvironment(EnvironmentConfig(name="textworld", options={"games": str(games), "workers": 1}))
    problem = problems(games)[0]

    async def lost() -> str:
        episode = world.episode([].append)
        await episode.reset(problem)
        textworld._WORKERS[0]._process.kill()
        with pytest.raises(EnvironmentLost):
            await episode.step("look")
        await episode.close()
        again = world.episode([].append)
        return await again.reset(problem)

    assert asyncio.run(lost()).startswith("-= ")


def test_a_signal_to_the_group_of_the_run_does_not_end_games(games: Path) -> None:
    game = TextWorldEnvironment(str(games))
    game.reset(problems(games)[0])
    assert game._worker is not None
    assert os.getpgid(game._worker._process.pid) != os.getpgid(0)
    game.close()


def test_no_game_is_made_once_the_caller_has_ended(tmp_path: Path) -> None:
    ended = threading.Event()
    ended.set()
    with pytest.raises(RunError):
        make_games(GameSet(games=200), out=tmp_path / "games", ended=ended)
    assert list(tmp_path.iterdir()) == []


def test_the_quickstart_names_the_file_of_a_length_that_is_missing(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_recipe("textworld-quickstart", read_files=False)
    assert missing_games(config) == Path("games")
    (tmp_path / "games").symlink_to(games)
    assert missing_games(config) is None
    with pytest.raises(ConfigError, match=r"test-8\.jsonl"):
        Grid(config).problems(8)


def test_a_problem_without_its_game_in_the_folder_is_an_error(games: Path, tmp_path: Path) -> None:
    inside = problems(games)[0].metadata["game"]
    made, elsewhere = TextWorldEnvironment(str(games)), TextWorldEnvironment(str(tmp_path))
    made.admit(Problem("p", metadata={"game": inside}))
    wrong = [(made, name) for name in (None, "games/none.z8", 3, "train.jsonl")]
    wrong += [(elsewhere, name) for name in (str(games / inside), os.path.relpath(games / inside, tmp_path))]
    for game, name in wrong:
        with pytest.raises(DataError, match=r"metadata\.game"):
            game.admit(Problem("p", metadata={"game": name}))


@pytest.mark.parametrize(
    "wanted", [{"family": "coin"}, {"difficulty": (0,)}, {"difficulty": (33,)}, {"test_difficulty": (99,)}]
)
def test_difficulties_that_a_family_lacks_are_an_error(wanted: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        GameSet(**wanted)


@pytest.mark.parametrize("policy", ["edit", "prune", "summary", "compaction", "tool_window"])
def test_scripted_episodes_win_with_every_agent(policy: str, games: Path) -> None:
    limits: dict[str, Any] = {"context_tokens": 320, "turn_tokens": 90, "tools": {}, "prompts": "play_short"}
    summed = {"summary_tokens": 40}
    more = {"tool_window": {"window_tokens": 90}, "summary": summed, "compaction": summed}
    options = limits | more.get(policy, {})
    world = OpenEnvironment(EnvironmentConfig(name="textworld", options={"games": str(games)}))
    built = build_policy(PolicyConfig(name=policy, options=options))
    listed = problems(games)
    lessons = WalkthroughLessons(built, base_codec(), world, lambda index: listed[index % 2], 0)
    drawn = [lessons.draw(index) for index in range(4)]
    assert drawn[0] == lessons.draw(0)
    assert {one.outcome for one in drawn} == {Outcome.ANSWERED}
    rewards = [sum(step.reward for step in of_type(one.events, EnvironmentStepped)) for one in drawn]
    assert rewards == [1.0] * 4
    assert any(of_type(one.events, Pruned) for one in drawn) is (policy in ("edit", "prune"))
