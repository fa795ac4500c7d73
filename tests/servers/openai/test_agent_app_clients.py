"""Clients and evaluation harnesses by other authors, with the code of docs/how-to/serve.md."""

from __future__ import annotations

import json
import os
import re
import shlex
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

import palimpsest
from palimpsest.data.synthetic.documents import make_problem
from palimpsest.servers.openai.answer_text import unboxed
from support.serving import body, server

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "serve.md").read_text()
DOCS = PAGE.split("\n## Other clients\n")[1].split("\n## ")[0]
HARNESSES = PAGE.split("\n## Under lm-eval and inspect\n")[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", HARNESSES.split("\n## ")[0], re.DOTALL)
"""The section's code: (language, text)."""


FILES = {"yaml": "problems.yaml", "python": "problems.py"}
COMMANDS = [text for language, text in BLOCKS if language == "sh"]
FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(30))
pytestmark = pytest.mark.slow
TEXT = f"<document>{FACTS}</document> What does Bob3 sell?"
MASTER_KEY = "sk-0f4c9a7d51e24b3c8e6a2d9b7c1f5038"
PYTHONS = {
    "langchain_openai": "PALIMPSEST_LANGCHAIN_PYTHON",
    "litellm.proxy.proxy_server": "PALIMPSEST_LITELLM_PYTHON",
    "gradio": "PALIMPSEST_GRADIO_PYTHON",
    "lm_eval": "PALIMPSEST_LM_EVAL_PYTHON",
    "inspect_ai": "PALIMPSEST_INSPECT_PYTHON",
}
"""Environment variables that name a Python with a module."""


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


def answer_to(url: str, text: str) -> str:
    answer = httpx2.post(f"{url}/v1/chat/completions", json=body(text), timeout=300)
    return str(answer.json()["choices"][0]["message"]["content"])


def python_with(module: str) -> str:
    """A Python that has the module and openai; without one the test is skipped."""
    python = os.environ.get(PYTHONS[module], sys.executable)
    needed = module if module == "lm_eval" else f"{module}, openai"
    if subprocess.run([python, "-c", f"import {needed}"], capture_output=True, check=False).returncode:
        pytest.skip(f"no {needed}: pip install them, or name a Python that has them as ${PYTHONS[module]}")
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
    result = output_of(["node", "openai_node.mjs", f"{url}/v1", "a.txt"], cwd=tmp_path)
    assert "palimpsest" in result["models"]
    assert result["whole"] == result["streamed"] == answer_to(url, TEXT)
    assert result["input"] == "file_parts"
    assert "section 1 of" in result["reasoning"]
    assert result["response"] == answer_to(url, TEXT.replace("Bob3", "Bob5"))
    assert result["error"] == [400, "unsupported_parameter"]


def test_langchain(url: str) -> None:
    python = python_with("langchain_openai")
    match = re.search(r"`(ChatOpenAI\(.*?\))`", DOCS)
    assert match
    model = match[1].replace("http://localhost:8400", url)
    result = output_of([python, "-c", LANGCHAIN.format(model=model), TEXT], env=without_ours())
    assert result["whole"] == result["streamed"] == answer_to(url, TEXT)
    assert result["batch"] == [answer_to(url, text) for text in result["texts"]]


@contextmanager
def litellm_proxy(python: str, url: str, folder: Path) -> Iterator[str]:
    """The proxy with the configuration of the docs, in front of `url`; its address."""
    match = re.search(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert match
    (folder / "litellm.yaml").write_text(match[1].replace("http://127.0.0.1:8400", url))
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


def test_the_litellm_proxy(url: str, tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    python = python_with("litellm.proxy.proxy_server")
    with litellm_proxy(python, url, tmp_path) as proxy:
        client = openai.OpenAI(base_url=f"{proxy}/v1", api_key=MASTER_KEY, timeout=300)
        messages = [{"role": "user", "content": TEXT}]
        complete = client.chat.completions.create(model="palimpsest", messages=messages)
        streamed = "".join(
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(model="palimpsest", messages=messages, stream=True)
            if chunk.choices
        )
    assert complete.choices[0].message.content == streamed == answer_to(url, TEXT)


def test_a_gradio_chat(url: str) -> None:
    python = python_with("gradio")
    match = re.search(r"```python\n(import gradio.*?)```", DOCS, re.DOTALL)
    assert match
    code = match[1].replace("http://127.0.0.1:8400", url)
    code = code.replace("chat.launch()", "_, address, _ = chat.launch(prevent_thread_lock=True, quiet=True)")
    environment = without_ours() | {"GRADIO_ANALYTICS_ENABLED": "False"}
    result = output_of([python, "-c", code + GRADIO, TEXT], env=environment)
    assert result == answer_to(url, TEXT)


def lm_eval_replies(folder: Path) -> dict[str, str]:
    """Problem to reply."""
    (log,) = (folder / "lm-eval").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {row["doc"]["id"]: row["resps"][0][0] for row in rows}


def inspect_replies(folder: Path) -> dict[str, str]:
    """Problem to reply."""
    (log,) = (folder / "inspect").glob("*.json")
    return {sample["id"]: sample["output"]["completion"] for sample in json.loads(log.read_text())["samples"]}


def run_harness(module: str, command: str, url: str, folder: Path) -> None:
    """Run a command of the docs in the folder, with the Python that has the module."""
    python = python_with(module)
    words = shlex.split(command.replace("\\\n", " ").replace("http://127.0.0.1:8400", url))
    variables = dict(word.split("=", 1) for word in words if word.startswith("PALIMPSEST_"))
    _, *arguments = [word for word in words if not word.startswith("PALIMPSEST_")]
    environment = {**without_ours(), **variables, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, "-m", module, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder with the files of the docs and the problems, problem to the reply that an evaluation gives)."""
    folder = tmp_path_factory.mktemp("evaluated")
    for language, text in BLOCKS:
        if language in FILES:
            (folder / FILES[language]).write_text(text)
    drawn = [
        make_problem(2, "eval", at, chunks=chunks, facts_per_chunk=2) for at, chunks in enumerate((1, 1, 1, 2, 60))
    ]
    rows = [{"id": p.id, "question": p.question, "answers": p.answers, "context": p.context} for p in drawn]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = palimpsest.evaluate("embedded", folder / "problems.jsonl", baselines=False, quiet=True)
    replies = {sample.id: sample.answer for sample in evaluation}
    assert len(set(replies.values())) > 2
    return folder, replies


@pytest.mark.parametrize(
    ("module", "command", "replies"),
    [("lm_eval", COMMANDS[0], lm_eval_replies), ("inspect_ai", COMMANDS[1], inspect_replies)],
)
def test_a_harness_records_the_replies_that_an_evaluation_gives(
    module: str, command: str, replies: Any, evaluated: Any, tmp_path: Path
) -> None:
    folder, expected = evaluated
    with server(tmp_path / "store") as (url, _):
        run_harness(module, command, url, folder)
    if module == "inspect_ai":
        expected = {name: unboxed(reply) for name, reply in expected.items()}
    assert replies(folder) == expected
