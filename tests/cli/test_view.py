"""`palimpsest view`: its address, its end, its errors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from support.serving_process import SOURCE, serving_process
from support.view_folders import run_folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_responds_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    run_folder(tmp_path / "first", [{"step": 1, "reward/mean": 0.5}])
    with serving_process(["view", str(tmp_path), "--port", "0"], "/") as (url, process):
        assert httpx2.get(f"{url}/", timeout=60).status_code == 200
        assert httpx2.get(f"{url}/api/runs", timeout=60).json()["runs"][0]["name"] == "first"
        process.send_signal(number)
        assert process.wait(timeout=60) == 0


ENDLESS = """
import sys, time
from pathlib import Path
from palimpsest.cli.main import main
from palimpsest.viewer.screens.viewer_api import ViewerApi
def get(*_):
    print("request", flush=True)
    time.sleep(600)
ViewerApi.get = get
sys.argv = ["palimpsest", "view", sys.argv[1], "--port", "0"]
main()
"""


def until_closed(url: str) -> None:
    """Wait until the port is closed."""
    address = httpx2.URL(url)
    with suppress(ConnectionError):
        while True:
            socket.create_connection((address.host, address.port), timeout=60).close()
            time.sleep(0.01)


@pytest.mark.parametrize("again", [False, True])
def test_an_endless_read_does_not_delay_the_end(again: bool, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first")
    env, command = {**os.environ, "PYTHONPATH": str(SOURCE)}, [sys.executable, "-c", ENDLESS, str(run)]
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        url = child.stdout.readline().removeprefix("viewer at ").strip()
        with ThreadPoolExecutor() as threads:
            response = threads.submit(httpx2.get, f"{url}api/runs", timeout=60)
            assert child.stdout.readline() == "request\n"
            child.send_signal(signal.SIGINT)
            if again:
                until_closed(url)  # two signals that wait together are one
                child.send_signal(signal.SIGINT)
                assert child.wait(timeout=60) == -signal.SIGINT
                assert response.exception() is not None
            else:
                assert response.result().json() == {"error": "the viewer is stopping"}
                assert response.result().status_code == 503
                assert child.wait(timeout=60) == 0
        assert "Traceback" not in child.communicate()[1]
    finally:
        child.kill()
        child.wait()


def test_a_client_that_does_not_read_is_dropped_at_the_end_without_output(tmp_path: Path) -> None:
    words = ["view", str(run_folder(tmp_path / "first")), "--port", "0"]
    with serving_process(words, "/", stderr=subprocess.PIPE) as (address, child):
        url = httpx2.URL(address)
        with socket.create_connection((url.host, url.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)
            time.sleep(1)
            child.send_signal(signal.SIGINT)
            assert child.wait(timeout=60) == 0
        assert child.communicate()[1] == ""


def test_head_is_answered_as_get_without_a_body(tmp_path: Path) -> None:
    run_folder(tmp_path / "first")
    with serving_process(["view", str(tmp_path), "--port", "0"], "/") as (url, _):
        for path in ("/", "/api/runs"):
            get, head = httpx2.get(url + path, timeout=60), httpx2.head(url + path, timeout=60)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))
        assert httpx2.head(f"{url}/nowhere", timeout=60).status_code == 404


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "no such file or folder; pass"),
        (["."], "contains no run"),
        ([], "runs: no such file or folder"),
        (["first", "first"], "appears twice"),
        (["first", "--host", "0.0.0.0"], "--server-key-env"),
        (["first", "--server-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
    ],
)
def test_an_invalid_path_or_address_is_one_line(
    words: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "first" in words or not words:
        run_folder(tmp_path / "first")
    assert reason in refused("view", *words)
