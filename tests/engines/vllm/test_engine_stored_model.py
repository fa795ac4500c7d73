"""Servers of a model that isn't trained: eval, ask and serve with a script that poses as a Python with vLLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from palimpsest.app.config_resolution import Agent
from palimpsest.config.engine import AdapterConfig, ModelConfig
from palimpsest.engines.embedded.model_loading import save_adapter, trainable
from palimpsest.engines.open import open_engine, start_servers
from palimpsest.engines.vllm.server_process import stable_name
from palimpsest.errors import ConfigError
from palimpsest.types import SamplingParams
from support.command import Run
from support.small_run import small_evaluation
from support.vllm_process import digests, pretender

VLLM = "sampler.name=vllm"
STARTING = """#!{python}
import os, sys, time
if sys.argv[1] == "-c":
    print("True 2.13.0+cpu")
    sys.exit()
open({out!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", pretender(tmp_path))


def config(model: Path, *words: str) -> Any:
    return Agent(model=model, overrides=[VLLM, *words]).config({})


async def facts_of(engine: Any) -> dict[str, Any]:
    """Arguments and weights of the server."""
    (member,) = engine.sampler._pool._members
    facts: dict[str, Any] = await member.client._ask("POST", "/seen", {})
    return facts


async def test_only_the_servers_read_the_models_folder(tiny_model_folder: Path, tmp_path: Path) -> None:
    engine = open_engine(config(tiny_model_folder), objective=None, folder=tmp_path / "out")
    assert engine.learner is None
    assert (engine.limits.vocab, engine.limits.max_context) == (len(engine.codec.tokenizer), 512)
    await start_servers(engine)
    await start_servers(engine)
    facts = await facts_of(engine)
    words = facts["words"]
    assert Path(words[words.index("--model") + 1]).resolve() == tiny_model_folder
    completion = await engine.sampler.generate([5, 6, 7], SamplingParams(2, stop_ids=()))
    assert (completion.token_ids, completion.policy_version) == ((7, 7), 0)
    assert await engine.sampler.score([5], [6, 7]) == (-6 / 8, -7 / 8)
    assert engine.sampler.stats().requests == 1
    await engine.close()
    assert not psutil.pid_exists(facts["pid"])
    assert [path.name for path in (tmp_path / "out" / "servers").iterdir()] == ["vllm-0.log"]


async def test_an_adapter_is_merged_into_a_temporary_folder(tiny_model_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_adapter(trainable(ModelConfig(path=str(tiny_model_folder), lora=AdapterConfig(rank=2))), adapter)
    engine = open_engine(config(adapter), objective=None, folder=tmp_path / "out")
    await start_servers(engine)
    facts = await facts_of(engine)
    merged = Path(facts["folder"]).resolve()
    assert merged.is_relative_to(tmp_path / "out" / "servers")
    assert "model.safetensors" in facts["files"]
    assert facts["files"] == digests(merged)
    await engine.close()
    assert not merged.exists()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("sampler.urls=[http://127.0.0.1:1]", "--base-url"), ("roles.critic.model=org/other", "roles.critic.model")],
)
def test_settings_that_need_a_learner_are_an_error(setting: str, reason: str, tiny_model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_engine(config(tiny_model_folder, setting), objective=None)


def test_eval_and_ask_sample_from_a_server(palimpsest: Run, tiny_model_folder: Path, tmp_path: Path) -> None:
    out, document = tmp_path / "out", tmp_path / "document.txt"
    done = palimpsest(*small_evaluation(tiny_model_folder, out), VLLM)
    assert done.returncode == 0, done.stderr
    assert "sampled by vLLM" in done.stderr
    rows = list(map(json.loads, (out / "samples.jsonl").read_text().splitlines()))
    assert len(rows) == 4
    assert all(row["value"] is not None for row in rows)
    document.write_text("Ada sells tea.\n")
    budgets = [word for word in small_evaluation(tiny_model_folder, out) if "=" in word]
    done = palimpsest("ask", str(tiny_model_folder), str(document), "What?", VLLM, *budgets, "--json")
    assert done.returncode == 0, done.stderr
    assert "answer" in json.loads(done.stdout)


@pytest.mark.parametrize(
    ("command", "number"),
    [("eval", signal.SIGTERM), pytest.param("serve", signal.SIGKILL, marks=pytest.mark.slow)],
)
def test_a_command_that_ends_while_its_server_starts_leaves_no_process(
    command: str, number: signal.Signals, tiny_model_folder: Path, tmp_path: Path
) -> None:
    script, file = tmp_path / "starting", tmp_path / "pid"
    script.write_text(STARTING.format(python=sys.executable, out=str(file)))
    script.chmod(0o755)
    budgets = small_evaluation(tiny_model_folder, tmp_path / "out")
    words = budgets if command == "eval" else ["serve", str(tiny_model_folder), "--port", "0", *budgets[7:11]]
    environment = os.environ | {"PALIMPSEST_VLLM_PYTHON": str(script), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command_line = [sys.executable, "-m", "palimpsest", *words, VLLM]
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command_line, env=environment, **silent) as process:
        wait_for(lambda: (file.is_file() and bool(file.read_text())) or process.poll() is not None)
        server = psutil.Process(int(file.read_text()))
        process.send_signal(number)
        process.wait(60)
    wait_for(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    wait_for(lambda: not list(tmp_path.glob("palimpsest-*/http*")))


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert true()


def test_stable_names_are_reused_for_like_models_but_never_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    models = [tmp_path / name for name in ("first", "second", "other")]
    for model in models:
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"layers": 3 if model.name == "other" else 2}))
    with ExitStack() as lock, ExitStack() as rest:
        names = [stable_name(model, lock if model is models[0] else rest) for model in models]
        assert [link.resolve() for link in names] == models
        assert len({*names}) == 3
        lock.close()
        assert stable_name(models[1], lock) == names[0]  # no longer in use
        assert [name.resolve() for name in names[:2]] == [models[1], models[1]]
        names[0].parent.chmod(0o777)
        assert stable_name(models[0], lock) == models[0]
