"""vLLM's OpenAI-compatible server on loopback, run by $PALIMPSEST_VLLM_PYTHON (see scripts/vllm_environment.py)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from palimpsest.text.codec import Codec
from support.models import build_llama

PYTHON = os.environ.get("PALIMPSEST_VLLM_PYTHON")
NEEDS_VLLM = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no $PALIMPSEST_VLLM_PYTHON, a Python with vLLM"),
]
START_S = 900.0  # on a busy machine


@contextmanager
def served_model(folder: Path, window: int) -> Iterator[tuple[Path, str]]:
    """A model with random weights and the shipped tokenizer in `folder`, and the address of its server in float32."""
    codec = Codec.load("embedded")
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}  # heads of 32, vLLM's least on CPUs
    model = build_llama(codec.vocab_size, max_position_embeddings=window, tie_word_embeddings=False, **sizes)
    model.save_pretrained(folder)
    codec.save(folder)
    with serving(folder, window, folder / "vllm.log") as url:
        yield folder, url


@contextmanager
def serving(model: Path, window: int, log: Path) -> Iterator[str]:
    """The address of a server of `model` in float32."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(window)),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *("--enforce-eager", "--no-enable-chunked-prefill"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # of another environment
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as file:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text("utf-8", "replace")[-4000:]
        with suppress(httpx2.HTTPError):
            if httpx2.get(health, trust_env=False).status_code == 200:
                return
        time.sleep(0.5)
    raise AssertionError(f"no answer within {START_S:g} s; {log} has why")
