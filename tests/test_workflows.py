"""Workflows of the public host run the commands of the README and publish only tested versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / ".github").rglob("*.yml"))
WORKFLOWS: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in FILES}
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))


def commands(name: str) -> list[str]:
    steps = [step for job in WORKFLOWS[name]["jobs"].values() for step in job.get("steps", ())]
    return [step["run"] for step in steps if "run" in step]


def test_the_tests_run_by_the_command_of_the_readme_on_linux_and_macos() -> None:
    assert "make test" in (ROOT / "README.md").read_text("utf-8")
    assert [command for command in commands("test") if command.startswith("make test ")]
    systems = {row["os"] for row in WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["include"]}
    assert systems == {"ubuntu-latest", "macos-latest"}


@pytest.mark.parametrize("name", ["test", "docs", "publish"])
def test_targets_exist_and_permissions_are_the_least(name: str) -> None:
    used = {target for command in commands(name) for target in re.findall(r"^make ([a-z-]+)", command, re.MULTILINE)}
    assert used <= _TARGETS
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}


def test_only_tested_tags_are_published_without_a_stored_key() -> None:
    jobs, triggers = WORKFLOWS["publish"]["jobs"], WORKFLOWS["publish"][True]  # YAML 1.1 reads the key `on` as true
    assert triggers == {"push": {"tags": ["v*"]}}
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    assert jobs["publish"]["needs"] == "test"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not any("secrets." in path.read_text("utf-8") for path in FILES)
