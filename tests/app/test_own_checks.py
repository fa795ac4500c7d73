"""`palimpsest check --kind`: formats, sinks and engines of one's own against their protocols."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.plugin_checks import check
from palimpsest.config.engine import EmbeddedEngineConfig
from palimpsest.engines.embedded.engine import EmbeddedEngine
from palimpsest.errors import ConfigError
from support.command import Run

HERE = __name__


def reads(path: Path) -> list[dict[str, str]]:
    return [{"question": line, "answers": "yes"} for line in path.read_text().splitlines()]


def fails(path: Path) -> list[dict[str, str]]:
    raise ValueError("no table")


def prints(step: int, metrics: Any, timings: Any) -> None: ...


class Breaks:
    def log(self, step: int, metrics: Any, timings: Any) -> None:
        if step == 3:
            raise OSError("gone")


async def waits(step: int, metrics: Any, timings: Any) -> None: ...


class Whole(EmbeddedEngine):
    def __init__(self, config: Any, *, objective: Any) -> None:
        super().__init__(config.model_copy(update={"engine": EmbeddedEngineConfig()}), objective=objective)


class NeverPublishes(Whole):
    def __init__(self, config: Any, *, objective: Any) -> None:
        super().__init__(config, objective=objective)

        class Silent:
            limits = self.limits
            version = 3

            async def publish(self) -> int:
                return 2

        self.silent = Silent()

    def __getattribute__(self, name: str) -> Any:
        silent = vars(self).get("silent") if name == "learner" else None
        return silent if silent is not None else super().__getattribute__(name)


def broken(name: str, kind: str, file: Path | None = None) -> dict[str, str]:
    return {f.name: f.message for f in check(f"{HERE}:{name}", {}, kind, file) if not f.passed}


class ATool:
    """What `palimpsest new tool` makes, without its work."""

    async def call(self, arguments: Mapping[str, Any]) -> str:
        return ""


def test_a_format_is_tried_on_a_file(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("Is it?\nWas it?\n")
    assert broken("reads", "format", tmp_path / "lines.txt") == {}
    assert "raised ValueError: no table" in broken("fails", "format", tmp_path / "lines.txt")["reads"]
    with pytest.raises(ConfigError, match="give a file of its kind, --file FILE"):
        check(f"{HERE}:reads", {}, "format")


def test_a_sink_gets_a_few_rows() -> None:
    assert broken("prints", "sink") == {}
    assert broken("Breaks", "sink") == {"rows": "raised OSError: gone"}
    assert "write def, not async def" in broken("waits", "sink")["rows"]


def test_an_engine_opens_samples_and_publishes() -> None:
    assert broken("Whole", "engine") == {}
    assert broken("NeverPublishes", "engine") == {"publishes": "published, learner, sampler: (2, 3, 0)"}


def test_a_kind_that_is_none_and_a_file_for_nothing_are_refused(palimpsest: Run) -> None:
    with pytest.raises(ConfigError, match="--kind thing: choose one of policy, reward"):
        check(f"{HERE}:reads", {}, "thing")
    with pytest.raises(ConfigError, match="is read by a data format"):
        check(f"{HERE}:prints", {}, "sink", Path("x.csv"))
    with pytest.raises(ConfigError, match="such as my_policy:MyPolicy"):
        check("my_policy.py", {})
    with pytest.raises(ConfigError, match=r"a tool is checked with a policy .*'tools=\{.*:ATool: \{\}\}'"):
        check(f"{HERE}:ATool", {})
    done = palimpsest("check", f"{HERE}:prints", "--kind", "sink")
    assert (done.returncode, "3 of 3 points hold" in done.stdout) == (0, True)
