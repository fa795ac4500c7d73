"""Clients that others wrote ask a served agent, as docs/how-to/serve.md says."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.serving import body, server

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "serve.md").read_text()
DOCS = PAGE.split("\n## Other clients\n")[1].split("\n## ")[0]
FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(30))
TEXT = f"<document>{FACTS}</document> What does Bob3 sell?"
MASTER_KEY = "sk-0f4c9a7d51e24b3c8e6a2d9b7c1f5038"
PYTHONS = {
    "langchain_openai": "PALIMPSEST_LANGCHAIN_PYTHON",
    "litellm.proxy.proxy_server": "PALIMPSEST_LITELLM_PYTHON",
    "gradio": "PALIMPSEST_GRADIO_PYTHON",
}
NODE_MODULES = "PALIMPSEST_NODE_MODULES"
LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
model = {model}
texts = [f"<document>Anna{{n}} sells tea.</document> What does Anna{{n}} sell?" for n in range(32)]
print(json.dumps({{
    "whole": model.invoke(sys.argv[1]).content,
    "streamed": "".join(chunk.content for chunk in model.stream(sys.argv[1])),
    "texts": texts,
    "batch": [each.content for each in model.batch(texts, config={{"max_concurrency": 32}})],
}}))
"""

GRADIO = """
import json, sys
from gradio_client import Client
ask = Client(address, verbose=False).submit
print(json.dumps(list(ask({"text": sys.argv[1], "files": []}, api_name="/open_api_stream"))[-1]))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("store")) as (address, _):
        yield address


def asked(url: str, text: str) -> str:
    answer = httpx2.post(f"{url}/v1/chat/completions", json=body(text), timeout=300)
    return str(answer.json()["choices"][0]["message"]["content"])


def python_with(module: str) -> str:
    """A Python that has it; without one the test is skipped."""
    python = os.environ.get(PYTHONS[module], sys.executable)
    if subprocess.run([python, "-c", f"import {module}, openai"], capture_output=True, check=False).returncode:
        pytest.skip(f"no {module}, openai: pip install them, or name a Python that has them as ${PYTHONS[module]}")
    return python


def without_ours() -> dict[str, str]:
    """This environment, without the path to this package."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def output_of(command: list[str], **more: Any) -> Any:
    """The JSON that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, **more)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_openai_for_node(url: str, tmp_path: Path) -> None:
    modules = os.environ.get(NODE_MODULES, "")
    if shutil.which("node") is None or not (Path(modules) / "openai").is_dir():
        pytest.skip(f"no node, or no openai in ${NODE_MODULES}: npm install openai, and name its node_modules folder")
    (tmp_path / "node_modules").symlink_to(Path(modules).resolve())
    shutil.copy(Path(__file__).parent / "openai_node.mjs", tmp_path)
    (tmp_path / "a.txt").write_text(FACTS)
    told = output_of(["node", "openai_node.mjs", f"{url}/v1", "a.txt"], cwd=tmp_path)
    assert "palimpsest" in told["models"]
    assert told["whole"] == told["streamed"] == asked(url, TEXT)
    assert told["input"] == "file_parts"
    assert "section 1 of" in told["reasoning"]
    assert told["response"] == asked(url, TEXT.replace("Bob3", "Bob5"))
    assert told["error"] == [400, "unsupported_parameter"]


def test_langchain(url: str) -> None:
    python = python_with("langchain_openai")
    found = re.search(r"`(ChatOpenAI\(.*?\))`", DOCS)
    assert found
    model = found[1].replace("http://localhost:8400", url)
    told = output_of([python, "-c", LANGCHAIN.format(model=model), TEXT], env=without_ours())
    assert told["whole"] == told["streamed"] == asked(url, TEXT)
    assert told["batch"] == [asked(url, text) for text in told["texts"]]


@contextmanager
def litellm_proxy(python: str, url: str, folder: Path) -> Iterator[str]:
    """The proxy with the configuration of the docs, in front of `url`; its address."""
    found = re.search(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert found
    (folder / "litellm.yaml").write_text(found[1].replace("http://127.0.0.1:8400", url))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [python, "-c", "import litellm; litellm.run_server()", "--config", "litellm.yaml", "--port", str(port)]
    environment = without_ours() | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": MASTER_KEY}
    with (folder / "litellm.log").open("wb") as log:
        child = subprocess.Popen([*command, "--host", "127.0.0.1"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        for _ in range(600):
            assert child.poll() is None, (folder / "litellm.log").read_text()[-2000:]
            try:
                if httpx2.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).status_code == 200:
                    break
            except httpx2.TransportError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait()


def test_the_litellm_proxy_in_front(url: str, tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    python = python_with("litellm.proxy.proxy_server")
    with litellm_proxy(python, url, tmp_path) as proxy:
        client = openai.OpenAI(base_url=f"{proxy}/v1", api_key=MASTER_KEY, timeout=300)
        messages = [{"role": "user", "content": TEXT}]
        whole = client.chat.completions.create(model="palimpsest", messages=messages)
        streamed = "".join(
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(model="palimpsest", messages=messages, stream=True)
            if chunk.choices
        )
    assert whole.choices[0].message.content == streamed == asked(url, TEXT)


def test_a_chat_of_gradio(url: str) -> None:
    python = python_with("gradio")
    found = re.search(r"```python\n(import gradio.*?)```", DOCS, re.DOTALL)
    assert found
    code = found[1].replace("http://127.0.0.1:8400", url)
    code = code.replace("chat.launch()", "_, address, _ = chat.launch(prevent_thread_lock=True, quiet=True)")
    environment = without_ours() | {"GRADIO_ANALYTICS_ENABLED": "False"}
    told = output_of([python, "-c", code + GRADIO, TEXT], env=environment)
    assert told == asked(url, TEXT)
