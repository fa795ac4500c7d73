"""Services of a recipe: their commands, and real processes that start, answer and end together."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.services import services_of
from palimpsest.config.load import load_recipe
from support.command import Run
from support.listening import listening

SOURCE = Path(__file__).parents[2] / "src"
WAIT_S = 120
VLLM = f"""#!{sys.executable}
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(b'{{"data": []}}')
    def log_message(self, *_): ...
print("serving", *sys.argv[1:], flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def open_port(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python beside which a `vllm` answers as vLLM's server does."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(VLLM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program.with_name("python")


@contextmanager
def serving(folder: Path, python: Path, ports: dict[str, int], *words: str) -> Iterator[subprocess.Popen[str]]:
    recipe = folder / "mine.yaml"
    judge = {"url": f"http://127.0.0.1:{ports['judge']}/v1", "model": "gpt-oss"}
    values: dict[str, Any] = {"reward": {"name": "final_answer", "final_answer": {"match": "judge"}, "judge": judge}}
    if "search" in ports:
        tools = {"search": {"source": f"http://127.0.0.1:{ports['search']}"}}
        values["policy"] = {"name": "prune", "options": {"tools": tools}}
    recipe.write_text(json.dumps(values))
    process = subprocess.Popen(
        [sys.executable, "-m", "palimpsest", "services", str(recipe), "--logs", str(folder / "logs"), *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PALIMPSEST_VLLM_PYTHON": str(python)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(start):
            return line
    raise AssertionError("".join(lines))


def closed(port: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while open_port(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not open_port(port)


# ---- commands ------------------------------------------------------------------------------------------------


def test_a_recipe_with_judge_and_search_needs_both_at_its_addresses() -> None:
    judge, search = services_of(load_recipe("memact-7b"), corpus=Path("wiki.jsonl"))
    assert (judge.name, judge.key, judge.url) == ("judge", "reward.judge.url", "http://127.0.0.1:9527/v1")
    assert judge.command[:3] == ("vllm", "serve", "openai/gpt-oss-120b")
    assert judge.command[judge.command.index("--port") + 1] == "9527"
    assert judge.command[judge.command.index("--served-model-name") + 1] == "gpt-oss"
    assert search.command[:4] == ("palimpsest", "retrieval", "serve", "wiki.jsonl")
    assert search.command[search.command.index("--port") + 1] == "8000"
    assert not search.problem


@pytest.mark.parametrize(
    ("overrides", "corpus", "problems"),
    [
        ([], None, {"search": "--corpus"}),
        (["reward.judge.url=http://10.0.0.7:9527/v1"], "c.jsonl", {"judge": "another machine"}),
        (["sampler.name=vllm", "sampler.urls=[http://127.0.0.1:8100]", "loss.importance_sampling_cap=null"],
         "c.jsonl", {"sampler": "palimpsest export"}),
    ],
)  # fmt: skip
def test_what_cannot_be_started_here_has_its_reason(
    overrides: list[str], corpus: str | None, problems: dict[str, str], python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", str(python))
    config = load_recipe("memact-7b", overrides)
    needed = services_of(config, corpus=None if corpus is None else Path(corpus))
    found = {service.name: service.problem for service in needed if service.problem}
    assert found.keys() == problems.keys()
    assert all(part in found[name] for name, part in problems.items())


def test_without_vllm_the_judge_is_a_command_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, palimpsest: Run
) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    done = palimpsest("services", "memact-7b", "--print", "--corpus", "c.jsonl", "--judge", "my/judge")
    assert done.returncode == 1
    assert "vllm serve my/judge" in done.stdout
    none = palimpsest("services", "memagent-7b")
    assert (none.returncode, "no service" in none.stdout) == (0, True)


# ---- processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_services_answer_and_end_with_an_interrupt(tmp_path: Path, python: Path) -> None:
    corpus, ports = tmp_path / "c.jsonl", {"judge": free_port(), "search": free_port()}
    corpus.write_text(json.dumps({"title": "Rome", "text": "The capital of Italy."}))
    with serving(tmp_path, python, ports, "--corpus", str(corpus)) as process:
        line = until(process, "train: ")
        assert f"reward.judge.url=http://127.0.0.1:{ports['judge']}/v1" in line
        body = json.dumps({"queries": ["Italy"], "topk": 1}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['search']}/retrieve", body, timeout=30) as answer:
            assert json.load(answer)["result"][0][0]["document"]["title"] == "Rome"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert not any(open_port(port) for port in ports.values())


def test_services_end_with_a_killed_supervisor(tmp_path: Path, python: Path) -> None:
    ports = {"judge": free_port()}
    with serving(tmp_path, python, ports) as process:
        until(process, "train: ")
        assert "--served-model-name gpt-oss" in (tmp_path / "logs" / "judge.log").read_text()
        process.kill()
    assert closed(ports["judge"])


def test_a_service_that_ends_is_an_error_with_its_last_line(tmp_path: Path, python: Path) -> None:
    python.with_name("vllm").write_text(f"#!{sys.executable}\nprint('starting')\nraise SystemExit('out of memory')")
    with serving(tmp_path, python, {"judge": free_port()}) as process:
        _, error = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2
    assert "judge ended: out of memory" in error


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.0 404 Not Found\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n[]", b"SSH-2.0-OpenSSH_9\r\n"]
)
def test_another_program_on_the_port_is_not_the_service(reply: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(reply)

    with listening(Handler) as port:
        config = load_recipe("memact-7b", [f"reward.judge.url=http://127.0.0.1:{port}/v1"])
        assert not next(services_of(config)).answers()


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:abc", "[::1", "127.0.0.1:0"])
def test_an_address_that_no_service_can_have_is_a_problem(address: str) -> None:
    config = load_recipe("memact-7b", [f"policy.options.tools.search.source=http://{address}"])
    search = list(services_of(config, corpus=Path("c.jsonl")))[1]
    assert "use http://127.0.0.1:PORT" in search.problem


def test_a_killed_service_is_named_with_its_signal(tmp_path: Path, python: Path) -> None:
    program = f"#!{sys.executable}\nimport os\nprint('ready', flush=True)\nos.kill(os.getpid(), 9)"
    python.with_name("vllm").write_text(program)
    with serving(tmp_path, python, {"judge": free_port()}) as process:
        _, error = process.communicate(timeout=WAIT_S)
    assert "judge ended: signal 9" in error


def test_a_service_that_answers_already_stays(tmp_path: Path, python: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)  # a server with a key
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with listening(Handler) as port, serving(tmp_path, python, {"judge": port}) as process:
        until(process, "train: ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert open_port(port)
    assert not (tmp_path / "logs" / "judge.log").exists()
