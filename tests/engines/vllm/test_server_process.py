"""What a server is started with and what is said of one that ended, by a Python that only pretends to have vLLM."""

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
    print({told!r})
    sys.exit()
folder = os.path.dirname(sys.argv[sys.argv.index("--uds") + 1])
seen = {{"args": sys.argv[1:], "env": dict(os.environ), "mode": os.stat(folder).st_mode, "folder": folder}}
open({out!r}, "w").write(json.dumps(seen))
print("INFO loading")
print("ValueError: no GPU is free")
print("INFO bye", flush=True)
for word in sys.argv:
    if word.startswith("--kill="):
        os.kill(os.getpid(), int(word[7:]))
"""


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    def make(told: str) -> str:
        script = tmp_path / "python"
        script.write_text(PRETENDER.format(python=sys.executable, told=told, out=str(tmp_path / "seen.json")))
        script.chmod(0o755)
        return str(script)

    return make


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 3", "status 3"),
        ("echo boom >&2; echo True 2.13.0+cpu; exit 1", "boom"),
        ("head -c 1000 /dev/urandom", "status 0"),
        ("echo True None", "status 0"),
        ("echo False 2.13.0", "has no vLLM"),
    ],
)
def test_a_python_that_cannot_say_whether_it_has_vllm_is_an_error_with_its_reason(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=said):
        on_cpu()


def test_a_banner_of_a_wrapper_is_no_answer(python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", python("welcome\nTrue 2.13.0+cpu"))
    assert on_cpu()


@pytest.fixture
def start(
    tmp_path: Path, python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[ServerProcess, Any]]]:
    """Start a server that ends by itself; what it saw."""
    started: list[ServerProcess] = []

    def start(
        index: int = 0, torch: str = "2.13.0+cu130", sleeps: bool = False, dtype: str = "float32", **settings: Any
    ) -> tuple[ServerProcess, Any]:
        monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", python(f"True {torch}"))
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


def test_each_server_sees_the_gpus_that_are_its_own(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    settings: dict[str, Any] = {"servers": 3, "tensor_parallel_size": 2, "devices": (4, 5, 0, 1, 7, 6)}
    assert [start(n, **settings)[1]["env"]["CUDA_VISIBLE_DEVICES"] for n in range(3)] == ["4,5", "0,1", "7,6"]
    assert start()[1]["env"]["CUDA_VISIBLE_DEVICES"] == "9"


def test_its_key_is_in_its_environment_alone_and_its_socket_in_a_folder_of_this_user_s(start: Any) -> None:
    process, seen = start()
    key = seen["env"]["VLLM_API_KEY"]
    assert len(key) == 32
    assert key not in " ".join(seen["args"])
    assert start()[1]["env"]["VLLM_API_KEY"] != key
    assert stat.S_IMODE(seen["mode"]) == 0o700
    assert not {"--host", "--port"} & set(seen["args"])
    process.stop()
    assert not Path(seen["folder"]).exists()


def test_a_server_has_as_long_for_its_start_and_its_first_request_as_the_run_s_time_limit_says(start: Any) -> None:
    _, seen = start(timeout_s=3000.5)
    assert seen["env"]["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "3001"  # whole seconds; vLLM's default is 300
    assert seen["env"]["VLLM_ENGINE_READY_TIMEOUT_S"] == "3001"


def test_it_is_vllm_s_server_on_the_weights_that_were_published(start: Any, tmp_path: Path) -> None:
    _, seen = start(args=("--seed=1",))
    words = seen["args"]
    assert words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert words[words.index("--model") + 1] == str(tmp_path / "weights")
    assert words[words.index("--generation-config") + 1] == "vllm"
    assert {"--skip-tokenizer-init", "--language-model-only"} <= set(words)  # either alone ends a model with vision
    assert words[-1] == "--seed=1"
    assert "PYTHONPATH" not in seen["env"]  # of another environment


def test_a_cpu_build_is_started_as_it_needs_and_others_as_they_are(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    own = {"--enforce-eager", "--no-enable-chunked-prefill"}
    _, on_cpu = start(torch="2.13.0+cpu")
    assert own <= set(on_cpu["args"])
    assert on_cpu["env"]["VLLM_CPU_KVCACHE_SPACE"] == "2"
    _, on_gpu = start()
    assert not own & set(on_gpu["args"])
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
def test_a_model_with_states_has_no_prefix_cache_on_a_cpu_whose_build_would_end_at_the_start(
    config: dict[str, Any], cached: bool, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text(json.dumps(config))
    assert ("--no-enable-prefix-caching" not in start(torch="2.13.0+cpu")[1]["args"]) == cached
    assert "--no-enable-prefix-caching" not in start()[1]["args"]


@pytest.mark.parametrize(
    ("torch", "sleeps", "flag"), [("2.13.0+cu130", True, 1), ("2.13.0+cu130", False, 0), ("2.13.0+cpu", True, 0)]
)
def test_a_server_that_takes_turns_can_free_its_gpu_and_a_cpu_build_which_refuses_the_option_has_none(
    torch: str, sleeps: bool, flag: int, start: Any
) -> None:
    _, seen = start(torch=torch, sleeps=sleeps)
    assert seen["args"].count("--enable-sleep-mode") == flag


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
    _, seen = start(torch=torch, dtype=dtype, args=args)
    given = [word.partition("=") for word in seen["args"]]
    assert [value for name, _, value in given if name == "--hf-overrides.head_dtype"] == heads


def test_a_server_that_ended_is_told_with_the_reason_in_its_log(start: Any, tmp_path: Path) -> None:
    process, _ = start(1)
    log = tmp_path / "run" / "servers" / "vllm-1.log"
    with pytest.raises(SamplerError) as caught:
        process.check()
    assert str(caught.value) == f"vLLM server 1 ended: ValueError: no GPU is free; its log is {log}"


@pytest.mark.parametrize("number", [9, 15])
def test_a_server_that_was_killed_is_told_with_the_signal_whatever_its_log_says(number: int, start: Any) -> None:
    process, _ = start(args=(f"--kill={number}",))
    with pytest.raises(SamplerError, match=rf"^vLLM server 0 ended: signal {number} \("):
        process.check()


def test_the_environment_names_the_python_of_servers(
    python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", python("True 2.13.0"))
    check_python(SamplerConfig(name="vllm"))
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", python("False 2.13.0"))
    with pytest.raises(ConfigError, match="has no vLLM"):
        check_python(SamplerConfig(name="vllm"))


@pytest.mark.parametrize("told", ["False 2.13.0", "", "nonsense"])
def test_a_python_without_vllm_is_refused(
    python: Callable[[str], str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", path := python(told))
    with pytest.raises(ConfigError, match=rf"{path} (has no vLLM|failed).*PALIMPSEST_VLLM_PYTHON"):
        check_python(SamplerConfig(name="vllm"))


def test_a_python_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"none: .*No such file"):
        check_python(SamplerConfig(name="vllm"))


def test_gpus_are_not_named_in_vain_for_a_build_that_computes_on_a_cpu(
    python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", path := python("True 2.13.0+cpu"))
    with pytest.raises(
        ConfigError, match=rf"sampler\.devices=\[1\]: the vLLM of {path} computes on a CPU; .*remove sampler\.devices"
    ):
        check_python(SamplerConfig(name="vllm", devices=(1,)))
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", python("True 2.13.0+cu130"))
    check_python(SamplerConfig(name="vllm", devices=(1,)))


def test_a_server_that_names_no_error_is_told_with_the_last_that_it_said(start: Any, tmp_path: Path) -> None:
    process, _ = start()
    log = tmp_path / "run" / "servers" / "vllm-0.log"
    log.write_text("INFO\napi_server.py: error: unrecognized arguments: --nonsense=3\n\n")
    with pytest.raises(
        SamplerError, match=r"^vLLM server 0 ended: api_server\.py: error: unrecognized arguments: --non"
    ):
        process.check()
