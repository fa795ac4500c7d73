"""Runs on Ray as commands: they learn as one process does, resume after kills and leave nothing."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from palimpsest.config.engine import model_path
from palimpsest.config.load import load_recipe
from palimpsest.engines.open import open_engine
from palimpsest.errors import CheckpointError, EngineError
from palimpsest.runs.checkpoint import Checkpoints
from palimpsest.runs.jsonl_rows import read_rows
from support.cluster import ON_RAY, ClusterRun, command_of, own_address, settings
from support.command import Run
from support.models import nats_by
from support.ray_ports import call_without_a_token, heads_with_ranks, ports_of
from support.vllm_wire import reply, wire

pytest.importorskip("ray", reason="needs the extra ray")

from palimpsest.engines.ray.ray_runtime import open_sockets


def test_a_run_on_ray_learns_as_one_process_and_leaves_nothing(
    run: ClusterRun, tmp_path: Path, palimpsest: Run
) -> None:
    run.finish()
    assert run.gone()
    assert not run.folders_left()
    done = palimpsest("train", "memagent-quickstart", *settings(2), "--out", str(tmp_path / "one"))
    assert done.returncode == 0, done.stderr
    computed = {"policy/physical_tokens", "policy/reuse", "tokens/computed_total"}
    differing = {"crc32", *computed, "learner/idle_share", "learner/padding_share"}
    for theirs, ours in zip(*(read_rows(out / "metrics.jsonl") for out in (tmp_path / "one", run.out)), strict=True):
        assert {"learner/idle_share", "learner/padding_share"} <= ours.keys()
        assert theirs.keys() - differing == ours.keys() - differing
        assert all(ours[name] == pytest.approx(theirs[name], abs=1e-4) for name in theirs.keys() - differing)
    assert all("publish/seconds" in row for row in read_rows(run.out / "timings.jsonl"))


@pytest.mark.slow
async def test_ranks_publish_their_weights_to_servers_complete_and_untied(tmp_path: Path) -> None:
    loaded: dict[str, torch.Tensor] = {}
    opened: list[Any] = []

    def load(body: dict[str, Any]) -> bytes:
        folder = Path(body["kwargs"]["weights_path"])
        assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
        for file in folder.glob("*.safetensors"):
            loaded.update(load_file(file))
        opened.append(AutoModelForCausalLM.from_pretrained(folder))
        return reply(200, {})

    async with wire() as server:
        server.faults["/collective_rpc"] = load
        server.score = lambda ids: nats_by(opened[-1], ids)  # compared with the ranks'
        servers = ["sampler.name=vllm", f"sampler.urls=[{server.url}]", f"sampler.max_model_len={server.window}"]
        config = load_recipe("memagent-quickstart", [*settings(2), *ON_RAY, *servers])
        engine = open_engine(config, objective="policy", folder=tmp_path)
        try:
            assert engine.learner is not None
            assert await engine.learner.publish() == 0
        finally:
            await engine.close()
    weights = load_file(Path(model_path(config.model)) / "model.safetensors")
    wanted = weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], value) for name, value in wanted.items())


@pytest.mark.slow
def test_a_run_killed_and_resumed_comes_to_the_same_bytes(run: ClusterRun, tmp_path: Path) -> None:
    through = ClusterRun(tmp_path / "through", steps=10)
    through.finish()
    run.steps = 10
    run.start()
    run.wait_for_step(4)
    assert run.process is not None
    run.process.kill()
    assert run.gone()
    run.finish()
    assert run.rows() == through.rows()
    records = [path.relative_to(through.out) for path in (through.out / "trajectories").glob("*.zst")]
    assert len(records) == 10
    for path in (*records, Path("checkpoints") / "step-000010" / "manifest.json"):  # with the hashes of all files
        assert (run.out / path).read_bytes() == (through.out / path).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_is_private_and_leaves_nothing_after_a_signal(run: ClusterRun, end: signal.Signals) -> None:
    run.steps = 200
    process = run.start()
    run.wait_for_step(2)
    assert not open_sockets(run.processes())
    assert {path.name.partition("-")[0] for path in run.folders_left()} == {"palimpsest", "pal"}
    homes = [path for path in run.folders_left() if path.name.startswith("pal-")]
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in homes)
    assert any(path.rglob("plasma_store") for path in homes)
    process.send_signal(end)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == (0 if end == signal.SIGTERM else -signal.SIGKILL), output
    assert run.gone()
    assert not run.folders_left()


@pytest.mark.slow
def test_nothing_is_left_of_a_killed_run_whose_guard_was_killed_first(run: ClusterRun) -> None:
    run.steps = 200
    process = run.start()
    run.wait_for_step(1)
    (guard,) = guards(run)
    guard.kill()
    wait_for(lambda: [item for item in guards(run) if item.pid != guard.pid])
    process.kill()
    process.communicate(timeout=300)
    assert run.gone()
    assert not run.folders_left()


def guards(run: ClusterRun) -> list[psutil.Process]:
    return [item for item in run.processes() if "palimpsest.engines.process_guard" in command_of(item)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ray::Rank", "lost a process (ActorDiedError"),
        ("gcs_server", "lost a process (Ray's gcs_server ended)"),
        ("raylet", "lost a process (Ray's raylet ended)"),
    ],
)
def test_a_process_that_dies_ends_the_run_with_a_reason_and_it_resumes(
    run: ClusterRun, name: str, message: str
) -> None:
    run.steps, run.apart = 6, True
    process = run.start()
    run.wait_for_step(2)
    run.named(name)[0].kill()
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 2, errors
    assert not output  # Ray prints its findings there
    last = errors.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert last.endswith("; resume the run from its newest checkpoint")
    assert name == "gcs_server" or "warning: Ray: " in (run.out / "events.jsonl").read_text() + errors
    assert run.gone()
    run.finish()
    assert len(run.rows()) == 6


@pytest.mark.slow
def test_a_run_survives_calls_that_abort_its_gcs_server_and_listens_on_loopback_only(run: ClusterRun) -> None:
    run.steps = 6
    process = run.start("cluster.max_restarts=3")
    run.wait_for_step(1)
    for _ in range(2):
        (server,) = wait_for(partial(heads_with_ranks, run))
        (port,) = wait_for(partial(ports_of, server))
        assert call_without_a_token(f"{own_address()}:{port}") == "UNAVAILABLE"
        assert server.is_running()
        call_without_a_token(f"127.0.0.1:{port}")
        server.wait(60)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "restart 2 of 3" in output
    assert [json.loads(row)["step"] for row in run.rows()] == [1, 2, 3, 4, 5, 6]
    assert run.gone()
    assert not run.folders_left()


def wait_for(look: Callable[[], list[Any]]) -> list[Any]:
    while not (items := look()):
        time.sleep(0.05)
    return items


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("save", r"step-000001 can't be written \(.*File too large.*\): [\d,]+ bytes were, raise .ulimit -f.$"),
        (
            "publish",
            r"at: writing the weights failed \(.*File too large.*\) after [\d,]+ of SIZE bytes, with [\d,]+ free",
        ),
    ],
)
async def test_a_full_disk_is_an_error_with_the_needed_and_free_bytes(tmp_path: Path, of: str, message: str) -> None:
    config = load_recipe("memagent-quickstart", [*settings(2), *ON_RAY])
    engine = open_engine(config, objective="policy")
    learner: Any = engine.learner
    folder = Path(model_path(config.model))
    width = json.loads((folder / "config.json").read_text())["hidden_size"]  # servers read an output projection
    weights = load_file(folder / "model.safetensors").values()
    size = 4 * (sum(weight.numel() for weight in weights) + learner.limits.vocab * width)
    try:
        await learner.publish()
        group = learner._group
        for pid in group.call(group.ranks, "pid", limit=group.limit()):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (50_000, -1))  # as a disk that is full
        saves = Checkpoints(tmp_path, identity="a").save(1, learner.save, {})
        publishes = learner.write_weights(group.folder / "at")  # it is removed with the ranks
        wanted, other = (saves, publishes) if of == "save" else (publishes, saves)
        other.close()
        with pytest.raises((CheckpointError, EngineError), match=message.replace("SIZE", f"{size:,}")):
            await wanted
    finally:
        await engine.close()


@pytest.mark.slow
def test_a_kill_in_a_save_leaves_the_checkpoint_before_it(run: ClusterRun) -> None:
    run.steps = 30
    process = run.start()
    run.wait_for_step(2)
    hidden = run.out / "checkpoints"
    while process.poll() is None and not any(path.name.startswith(".step-") for path in hidden.iterdir()):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert run.gone()
    last = len(run.rows())
    resumed = run.start(f"train.max_steps={last + 1}")
    output, _ = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, output
    assert f"step-{last + 1:06d}" in {path.name for path in hidden.iterdir()}
