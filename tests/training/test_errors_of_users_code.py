"""An error in a user's policy or reward names its file and line, and its traceback is kept with the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from palimpsest import play, train
from palimpsest.app.plugin_checks import check
from palimpsest.errors import RunError
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.text.codec import Codec
from support.small_run import small_run

POLICY = """from palimpsest.memory.policy import MemoryPolicy


class Buggy(MemoryPolicy):
    def required_context(self, codec):
        return 1

    async def run(self, problem, model):
        return {}["oops"]
"""
REWARD = """def typo(problem, trajectory):
    return trajectory.final_answer == "tea"
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("buggy")
    (folder / "buggy_policy.py").write_text(POLICY)
    (folder / "earlier_policy.py").write_text(POLICY)
    (folder / "buggy_reward.py").write_text(REWARD)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield folder


def test_a_run_that_a_policys_error_ends_names_the_line_and_keeps_the_traceback(
    module: Path, tmp_path: Path, tiny_model_folder: Path
) -> None:
    play("Who?", "Anna lives in Rome.", policy="earlier_policy:Buggy")
    settings = {**small_run(tiny_model_folder), "policy.name": "buggy_policy:Buggy", "policy.options": {}}
    with pytest.raises(RunError) as ended:
        train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
    told = str(ended.value)
    assert f"KeyError: 'oops' ({module / 'buggy_policy.py'}:9)" in told
    assert "palimpsest check buggy_policy:Buggy" in told
    assert str(tmp_path / "run" / "events.jsonl") in told
    (event,) = [row for row in read_rows(tmp_path / "run" / "events.jsonl") if row["kind"] == "user_code_failed"]
    assert event["where"] == f"{module / 'buggy_policy.py'}:9"
    assert 'return {}["oops"]' in event["traceback"]
    assert event["traceback"].endswith("KeyError: 'oops'\n")


def test_a_run_that_a_rewards_error_ends_names_the_line_and_keeps_the_traceback(
    module: Path, tmp_path: Path, tiny_model_folder: Path
) -> None:
    settings = {**small_run(tiny_model_folder), "reward.name": "buggy_reward:typo"}
    with pytest.raises(RunError) as ended:
        train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
    assert f"has no attribute 'final_answer' ({module / 'buggy_reward.py'}:2)" in str(ended.value)
    assert "palimpsest check buggy_reward:typo" in str(ended.value)
    kept = [row for row in read_rows(tmp_path / "run" / "events.jsonl") if row["kind"] == "user_code_failed"]
    assert [row["where"] for row in kept] == [f"{module / 'buggy_reward.py'}:2"]
    assert "trajectory.final_answer" in kept[0]["traceback"]


def test_check_names_the_line_of_a_rewards_error(module: Path, tiny_model_folder: Path) -> None:
    findings = check("buggy_reward:typo", {}, codec=Codec.load(str(tiny_model_folder)))
    assert [finding for finding in findings if f"({module / 'buggy_reward.py'}:2)" in finding.message]


def test_an_episode_shows_the_error_of_its_policy(module: Path) -> None:
    shown = repr(play("Who?", "Anna lives in Rome.", policy="buggy_policy:Buggy"))
    assert f"policy_failed (KeyError: 'oops' ({module / 'buggy_policy.py'}:9))" in shown
