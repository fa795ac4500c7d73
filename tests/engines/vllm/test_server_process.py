"""The command and environment of a server, and errors of one that ended; a script poses as a Python with vLLM."""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.engine import SamplerConfig
from palimpsest.engines.vllm.server_process import ServerProcess, check_python, on_cpu
from palimpsest.errors import ConfigError, SamplerError

PRETENDER = """#!{python}
import json, os, stat, sys
if sys.argv[1] == "-c":
    print({version!r})
    sys.exit()
folder = os.path.dirname(sys.argv[sys.argv.index("--uds") + 1])
facts = {{"args": sys.argv[1:], "env": dict(os.environ), "mode": os.stat(folder).st_mode, "folder": folder}}
open({out!r}, "w").write(json.dumps(facts))
print("INFO loading")
print("ValueError: no GPU is free")
print("INFO bye", flush=True)
for word in sys.argv:
    if word.startswith("--kill="):
        os.kill(os.getpid(), int(word[7:]))
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Make a Python for the servers that reports this version of vLLM, or that runs these lines of a shell."""

    def make(version: str = "", *, lines: str | None = None) -> str:
        script = tmp_path / "python"
        facts = str(tmp_path / "seen.json")
        pretender = PRETENDER.format(python=sys.executable, version=version, out=facts)
        script.write_text(pretender if lines is None else f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", str(script))
        return str(script)

    return make


Python = Callable[..., str]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("exit 3", "status 3"),
        ("echo boom >&2; echo True 2.13.0+cpu; exit 1", "boom"),
        ("head -c 1000 /dev/urandom", "status 0"),
        ("echo True None", "status 0"),
        ("echo", "failed"),
        ("echo False 2.13.0", "has no vLLM"),
    ],
)
def test_a_python_without_vllm_is_an_error_with_the_reason(lines: str, message: str, python: Python) -> None:
    path = python(lines=lines)
    with pytest.raises(ConfigError, match=message) as caught:
        check_python(SamplerConfig(name="vllm"))
    assert path in str(caught.value)
    assert "PALIMPSEST_VLLM_PYTHON" in str(caught.value)


def test_a_missing_python_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"none: .*No such file"):
        check_python(SamplerConfig(name="vllm"))


def test_a_banner_before_the_version_is_ignored(python: Python) -> None:
    python("welcome\nTrue 2.13.0+cpu")
    assert on_cpu()


def test_gpus_for_a_build_that_computes_on_a_cpu_are_an_error(python: Python) -> None:
    settings = SamplerConfig(name="vllm", devices=(1,))
    path = python("True 2.13.0+cpu")
    message = rf"sampler\.devices=\[1\]: the vLLM of {path} computes on a CPU; .*remove sampler\.devices"
    with pytest.raises(ConfigError, match=message):
        check_python(settings)
    python("True 2.13.0+cu130")
    check_python(settings)


@pytest.fixture
def start(tmp_path: Path, python: Python) -> Iterator[Callable[..., tuple[ServerProcess, Any]]]:
    """Start a server that ends at once; its process, arguments and environment."""
    started: list[ServerProcess] = []

    def start(
        index: int = 0, torch: str = "2.13.0+cu130", sleeps: bool = False, dtype: str = "float32", **settings: Any
    ) -> tuple[ServerProcess, Any]:
        python(f"True {torch}")
        config = SamplerConfig(name="vllm", **settings)
        folder = tmp_path / "run" / "servers"
        modes: Any = {"mode": "raw_logprobs", "dtype": dtype, "sleeps": sleeps}
        process = ServerProcess(config, index, window=64, folder=folder, **modes)
        started.append(process)
        process.start(tmp_path / "weights")
        while process.running:
            time.sleep(0.01)
        return process, json.loads((tmp_path / "seen.json").read_text())

    yield start
    for process in started:
        process.stop()
        process.stop()  # does nothing


def test_a_server_sees_only_its_gpus(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    settings: dict[str, Any] = {"servers": 3, "tensor_parallel_size": 2, "devices": (4, 5, 0, 1, 7, 6)}
    assert [start(n, **settings)[1]["env"]["CUDA_VISIBLE_DEVICES"] for n in range(3)] == ["4,5", "0,1", "7,6"]
    assert start()[1]["env"]["CUDA_VISIBLE_DEVICES"] == "9"


def test_the_key_is_only_in_the_environment_and_the_socket_in_a_private_folder(start: Any) -> None:
    process, facts = start()
    key = facts["env"]["VLLM_API_KEY"]
    assert len(key) == 32
    assert key not in " ".join(facts["args"])
    assert start()[1]["env"]["VLLM_API_KEY"] != key
    assert stat.S_IMODE(facts["mode"]) == 0o700
    assert not {"--host", "--port"} & set(facts["args"])
    process.stop()
    assert not Path(facts["folder"]).exists()


def test_the_runs_time_limit_is_vllms_for_its_start_and_first_request(start: Any) -> None:
    _, facts = start(timeout_s=3000.5)
    assert facts["env"]["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "3001"  # whole seconds; vLLM's default is 300
    assert facts["env"]["VLLM_ENGINE_READY_TIMEOUT_S"] == "3001"


def test_the_command_starts_vllms_server_on_the_published_weights(start: Any, tmp_path: Path) -> None:
    _, facts = start(args=("--seed=1",))
    words = facts["args"]
    assert words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert words[words.index("--model") + 1] == str(tmp_path / "weights")
    assert words[words.index("--generation-config") + 1] == "vllm"
    assert {"--skip-tokenizer-init", "--language-model-only"} <= set(words)  # either alone ends a model with vision
    assert words[-1] == "--seed=1"
    assert "PYTHONPATH" not in facts["env"]  # of another environment


def test_only_a_cpu_build_gets_options_of_a_cpu(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    options = {"--enforce-eager", "--no-enable-chunked-prefill"}
    _, on_cpu = start(torch="2.13.0+cpu")
    assert options <= set(on_cpu["args"])
    assert on_cpu["env"]["VLLM_CPU_KVCACHE_SPACE"] == "2"
    _, on_gpu = start()
    assert not options & set(on_gpu["args"])
    assert "VLLM_CPU_KVCACHE_SPACE" not in on_gpu["env"]
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert start(torch="2.13.0+cpu")[1]["env"]["VLLM_CPU_KVCACHE_SPACE"] == "7"


@pytest.mark.parametrize(
    ("config", "cached"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"], "kv_lora_rank": 512}, True),
        ({"conv_L_cache": 3, "layer_types": ["conv", "full_attention"]}, False),  # LFM 2
        ({"text_config": {"linear_num_key_heads": 16}}, False),  # Qwen 3.5
        ({"mamba_d_state": 16, "layer_types": None}, False),  # Falcon H1
        ({}, True),
    ],
)
def test_a_model_with_states_has_no_prefix_cache_on_a_cpu(
    config: dict[str, Any], cached: bool, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text(json.dumps(config))
    assert ("--no-enable-prefix-caching" not in start(torch="2.13.0+cpu")[1]["args"]) == cached
    assert "--no-enable-prefix-caching" not in start()[1]["args"]


@pytest.mark.parametrize(
    ("torch", "sleeps", "flag"), [("2.13.0+cu130", True, 1), ("2.13.0+cu130", False, 0), ("2.13.0+cpu", True, 0)]
)
def test_only_a_server_on_a_gpu_that_takes_turns_can_sleep(torch: str, sleeps: bool, flag: int, start: Any) -> None:
    _, facts = start(torch=torch, sleeps=sleeps)
    assert facts["args"].count("--enable-sleep-mode") == flag


@pytest.mark.parametrize(
    ("torch", "dtype", "args", "heads"),
    [
        ("2.13.0+cu130", "bfloat16", (), ["float32"]),
        ("2.13.0+cu130", "float32", (), []),
        ("2.13.0+cpu", "bfloat16", (), []),
        ("2.13.0+cu130", "bfloat16", ("--hf-overrides.rope.factor=2",), ["float32"]),
        ("2.13.0+cu130", "bfloat16", ("--hf-overrides.head_dtype=model",), ["float32", "model"]),  # the last counts
        ("2.13.0+cu130", "bfloat16", ('--hf-overrides={"rope_theta": 1}',), []),  # vLLM would drop it
        ("2.13.0+cu130", "bfloat16", ("--hf_over={}",), []),
    ],
)
def test_a_bfloat16_model_on_a_gpu_has_float32_logits_unless_the_user_says_otherwise(
    torch: str, dtype: str, args: tuple[str, ...], heads: list[str], start: Any
) -> None:
    _, facts = start(torch=torch, dtype=dtype, args=args)
    words = [word.partition("=") for word in facts["args"]]
    assert [value for name, _, value in words if name == "--hf-overrides.head_dtype"] == heads


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (None, "ValueError: no GPU is free"),
        ("INFO\napi_server.py: error: unrecognized arguments: --x=3\n\n", "api_server.py: error: unrecognized arg"),
    ],
)
def test_a_server_that_ended_is_reported_with_the_reason_in_its_log(
    log: str | None, reason: str, start: Any, tmp_path: Path
) -> None:
    process, _ = start(1)
    file = tmp_path / "run" / "servers" / "vllm-1.log"
    if log is not None:
        file.write_text(log)
    with pytest.raises(SamplerError) as caught:
        process.check()
    assert str(caught.value).startswith(f"vLLM server 1 ended: {reason}")
    assert str(caught.value).endswith(f"; its log is {file}")


@pytest.mark.parametrize("number", [9, 15])
def test_a_server_that_was_killed_is_reported_with_the_signal(number: int, start: Any) -> None:
    process, _ = start(args=(f"--kill={number}",))
    with pytest.raises(SamplerError, match=rf"^vLLM server 0 ended: signal {number} \("):
        process.check()
