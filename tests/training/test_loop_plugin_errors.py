"""An error in a custom policy or reward names its file and line; the run records its traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    for name, text in (("buggy_policy", POLICY), ("earlier_policy", POLICY), ("buggy_reward", REWARD)):
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield folder


@pytest.mark.parametrize(
    ("settings", "line", "message", "text"),
    [
        ({"policy.name": "buggy_policy:Buggy", "policy.options": {}}, 9, "KeyError: 'oops'", 'return {}["oops"]'),
        ({"reward.name": "buggy_reward:typo"}, 2, "has no attribute 'final_answer'", "trajectory.final_answer"),
    ],
)
def test_a_run_that_ends_on_an_error_of_a_plugin_names_the_line_and_records_the_traceback(
    module: Path,
    tmp_path: Path,
    tiny_model_folder: Path,
    settings: dict[str, Any],
    line: int,
    message: str,
    text: str,
) -> None:
    play("Who?", "Anna lives in Rome.", policy="earlier_policy:Buggy")  # an earlier error is not reported
    plugin = next(iter(settings.values()))
    where = f"{module / plugin.split(':')[0]}.py:{line}"
    with pytest.raises(RunError) as ended:
        train("memagent-quickstart", small_run(tiny_model_folder) | settings, out=tmp_path / "run", quiet=True)
    assert f"{message} ({where})" in str(ended.value)
    assert f"palimpsest check {plugin}" in str(ended.value)
    assert str(tmp_path / "run" / "events.jsonl") in str(ended.value)
    (event,) = [row for row in read_rows(tmp_path / "run" / "events.jsonl") if row["kind"] == "user_code_failed"]
    assert event["where"] == where
    assert text in event["traceback"]
    assert message in event["traceback"].splitlines()[-1]


def test_check_and_play_name_the_line_of_an_error(module: Path, tiny_model_folder: Path) -> None:
    findings = check("buggy_reward:typo", {}, codec=Codec.load(str(tiny_model_folder)))
    assert [finding for finding in findings if f"({module / 'buggy_reward.py'}:2)" in finding.message]
    shown = repr(play("Who?", "Anna lives in Rome.", policy="buggy_policy:Buggy"))
    assert f"policy_failed (KeyError: 'oops' ({module / 'buggy_policy.py'}:9))" in shown
