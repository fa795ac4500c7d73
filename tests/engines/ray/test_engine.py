"""Notes and errors of the engine on Ray before its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.engines.open import open_engine
from palimpsest.errors import ConfigError, EngineError
from palimpsest.types import SamplingParams

pytest.importorskip("ray", reason="needs the extra ray")

from palimpsest.engines.ray.actor_group import ActorGroup
from palimpsest.engines.ray.engine import risk_of


@pytest.mark.parametrize("mode", ["token", "disabled", None])
def test_the_risk_of_joining_a_cluster_depends_on_its_token(monkeypatch: pytest.MonkeyPatch, mode: str | None) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode or "")
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE")
    risk = risk_of("10.0.0.1:6379")
    assert risk.startswith("cluster.address=10.0.0.1:6379: Ray and the ranks listen on all interfaces")
    assert ("and knows the token runs code there as you" in risk) is (mode == "token")
    assert risk.endswith("start Ray with RAY_AUTH_MODE=token") is (mode != "token")


@pytest.mark.parametrize("sampler", [[], ["sampler.name=vllm", "sampler.urls=[http://127.0.0.1:1]"]])
async def test_a_run_on_a_cluster_of_the_user_notes_the_risk(
    sampler: list[str], tmp_path: Path, tiny_model_folder: Path
) -> None:
    joined = ["engine.name=ray", "cluster.address=10.0.0.1:6379", f"cluster.folder={tmp_path}"]
    config = load_recipe("memagent-quickstart", [*joined, *sampler, f"model.path={tiny_model_folder}"])
    engine = open_engine(config, objective="policy")
    assert risk_of("10.0.0.1:6379") in engine.limits.note
    await engine.close()


def test_a_missing_folder_is_rejected_before_a_model_is_read(tmp_path: Path) -> None:
    config = load_recipe("memagent-quickstart", ["engine.name=ray", f"cluster.folder={tmp_path}/nowhere"])
    with pytest.raises(ConfigError, match=r"cluster\.folder=.*nowhere: not a writable folder"):
        open_engine(config, objective="policy")


async def test_a_failed_start_of_processes_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(group: ActorGroup) -> None:
        raise EngineError("no room for 8 GPUs")

    monkeypatch.setattr(ActorGroup, "start", start)
    config = load_recipe("memagent-quickstart", ["engine.name=ray"])
    engine = open_engine(config, objective="policy")
    assert engine.learner is not None
    calls = engine.sampler.generate((1,), SamplingParams(max_tokens=1)), engine.sampler.score((1,), (2,))
    for call in (engine.learner.publish(), *calls):
        with pytest.raises(EngineError, match="no room"):
            await call
    await engine.close()
