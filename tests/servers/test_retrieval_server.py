"""The retrieval server as a process: contract, limits, keys, end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from palimpsest.retrieval.search import Bm25Index
from palimpsest.servers.retrieval_server import BytesCache
from support.retrieval import process
from support.serving_process import SOURCE

WAIT_S = 60.0  # on a busy machine
get, post = partial(httpx2.get, timeout=WAIT_S), partial(httpx2.post, timeout=WAIT_S)
PASSAGES = [{"id": str(i), "title": f"City {i}", "text": f"place{i} lies by river{i % 3}"} for i in range(30)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "passages.jsonl"
    path.write_text("\n".join(map(json.dumps, PASSAGES)))
    return path


@pytest.fixture(scope="module")
def url(corpus: Path) -> Iterator[str]:
    with process(corpus) as (address, _):
        yield address


def send(url: str, **body: Any) -> Any:
    return post(f"{url}/retrieve", json=body).json()


def test_answers_are_those_of_the_index(url: str, corpus: Path, tmp_path: Path) -> None:
    index = Bm25Index.of_corpus(corpus, tmp_path / "index")
    queries = ["river1", "place7 river2", "", "nothing", "river1"]
    expected = [[{"document": h.document, "score": h.score} for h in hits] for hits in index.search(queries, 3)]
    for _ in range(2):  # the second comes from the cache
        assert send(url, queries=queries, topk=3, return_scores=True) == {"result": expected}
    without = [[{"document": hit["document"]} for hit in hits] for hits in expected]
    assert send(url, queries=queries, topk=3) == {"result": without}
    assert len(send(url, queries=["river1"], topk=None, return_scores=False)["result"][0]) == 5


def test_the_bytes_of_the_original_client_are_answered(url: str) -> None:
    """Those of `requests.post(url, json={...}, timeout=15)`."""
    body = b'{"queries": ["place7"], "topk": 3, "return_scores": true}'
    host, port = url.removeprefix("http://").split(":")
    head = (
        f"POST /retrieve HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: python-requests/2.32.3\r\n"
        "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    status, _, content = answer.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 200")
    ((hit,),) = json.loads(content)["result"]
    assert hit["document"] == PASSAGES[7]
    assert hit["score"] > 0


def test_topk_and_return_scores_may_be_missing_or_null(url: str) -> None:
    for body in (b'{"queries": ["river1"], "topk": null}', b'{"queries": ["river1"]}'):
        (hits,) = post(f"{url}/retrieve", content=body).json()["result"]
        assert [set(hit) for hit in hits] == [{"document"}] * 5


def test_a_reader_cannot_change_what_the_next_one_gets(url: str) -> None:
    """The original pops fields from the documents of its cache."""
    scored, plain = ({"queries": ["river2"], "topk": 2, "return_scores": wanted} for wanted in (True, False))
    answers = [send(url, **body) for body in (scored, plain, scored, plain)]
    assert answers[0] == answers[2] != answers[1] == answers[3]


def test_concurrent_requests_get_their_answers_while_another_client_disconnects(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")

    async def many() -> list[Any]:
        _, leaving = await asyncio.open_connection(host, int(port))
        leaving.write(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        await leaving.drain()
        leaving.close()
        async with httpx2.AsyncClient(timeout=WAIT_S) as client:
            bodies = [{"queries": [f"place{i % 30} unseen{i}"], "topk": 1} for i in range(60)]
            return await asyncio.gather(*(client.post(f"{url}/retrieve", json=body) for body in bodies))

    ids = [answer.json()["result"][0][0]["document"]["id"] for answer in asyncio.run(many())]
    assert ids == [str(i % 30) for i in range(60)]


@pytest.mark.slow
def test_a_server_killed_while_it_builds_starts_clean(tmp_path: Path) -> None:
    path, folder = tmp_path / "c.jsonl", tmp_path / "index"
    path.write_text("\n".join(json.dumps({"id": i, "text": f"common number{i}"}) for i in range(60_000)))
    command = [sys.executable, "-m", "palimpsest.cli.main", "retrieval", "serve", "--port", "0"]
    child = subprocess.Popen(
        [*command, str(path), "--index", str(folder)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
    )
    aside = tmp_path / ".index.palimpsest-partial" / "passages.jsonl"
    while not (aside.exists() and aside.stat().st_size > 100_000):
        assert child.poll() is None
        time.sleep(0.002)
    child.kill()
    assert child.communicate()[0] == b""
    assert aside.exists()
    assert not folder.exists()
    with process(path, "--index", str(folder)) as (address, _):
        assert send(address, queries=["number4711"], topk=1)["result"][0][0]["document"]["id"] == 4711
    assert not aside.exists()


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "the body"),
        (b"{}", 400, "queries: Field required"),
        (b'{"queries": "x"}', 400, "queries"),
        (b'{"queries": []}', 400, "queries"),
        (b'{"queries": [1]}', 400, "queries.0"),
        (b'{"queries": ["x"], "topk": 0}', 400, "topk"),
        (b'{"queries": ["x"], "topk": 1e9}', 400, "topk"),
        (b'{"queries": ["x"], "topk": 101}', 400, "topk: at most 100, is 101"),
        (b'{"queries": ["x"], "topk": true}', 400, "topk"),
        (b'{"queries": ["\\ud800"]}', 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (json.dumps({"queries": ["x"] * 129}).encode(), 400, "queries: at most 128"),
        (json.dumps({"queries": ["x" * 4097]}).encode(), 400, "at most 4096, is 4097"),
        (b" " * ((1 << 20) + 1), 413, "exceeds 1048576 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_error_of_a_wrong_request_is_one_line(url: str, body: bytes, status: int, text: str) -> None:
    answer = post(f"{url}/retrieve", content=body)
    assert answer.status_code == status
    assert text in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert send(url, queries=["place1"])["result"][0][0]["document"] == PASSAGES[1]


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/nowhere", 404, "GET '/nowhere': no such path"),
        ("POST", "/retrieve/", 404, "POST '/retrieve/': no such path"),
        ("GET", "/retrieve", 405, "GET '/retrieve': allowed: POST"),
        ("DELETE", "/cache_clear", 405, "DELETE '/cache_clear': allowed: POST"),
    ],
)
def test_a_wrong_path_or_method_has_the_same_form_of_error(
    url: str, method: str, path: str, status: int, text: str
) -> None:
    answer = httpx2.request(method, f"{url}{path}", timeout=WAIT_S)
    assert (answer.status_code, answer.json()) == (status, {"error": text})
    counted = re.search(rf'total{{status="{status}"}} (\d+)', get(f"{url}/metrics").text)
    assert counted
    assert int(counted[1]) >= 1


def test_status_cache_and_metrics_count_requests(url: str) -> None:
    post(f"{url}/cache_clear")
    before = get(f"{url}/cache_status").json()
    send(url, queries=["river0"], topk=2)
    send(url, queries=["river0"], topk=2)
    after = get(f"{url}/cache_status").json()
    assert (after["entries"], after["hits"] - before["hits"], after["misses"] - before["misses"]) == (1, 1, 1)
    assert post(f"{url}/cache_clear").json() == {"cleared": 1}
    assert get(f"{url}/queue_status").json() == {"running": 0, "waiting": 0, "max_waiting": 256}
    metrics = get(f"{url}/metrics").text
    assert re.search(r'^retrieval_requests_total\{status="200"\} \d+$', metrics, re.MULTILINE)
    assert re.search(r"^retrieval_queries_total \d+$", metrics, re.MULTILINE)


def test_every_path_needs_the_key_and_sigterm_ends_the_server(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "secret")
    options = ("--server-key-env", "KEY", "--index", str(tmp_path / "i"), "--host", "0.0.0.0")
    with process(corpus, *options) as (address, child):
        local = address.replace("0.0.0.0", "127.0.0.1")
        for path in ("cache_status", "queue_status", "metrics"):
            assert get(f"{local}/{path}").status_code == 401
            assert get(f"{local}/{path}", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert post(f"{local}/retrieve", json={"queries": ["x"]}).status_code == 401
        assert get(f"{local}/nowhere").status_code == get(f"{local}/retrieve").status_code == 401
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=WAIT_S) == 0
    assert (tmp_path / "i" / "manifest.json").is_file()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_an_address_others_can_reach_needs_a_token(refused: Callable[..., str], corpus: Path, host: str) -> None:
    assert "--server-key-env NAME" in refused("retrieval", "serve", str(corpus), "--host", host)


@pytest.mark.parametrize("token", ["pässword", "two words", "line\n"])
def test_a_key_that_no_client_can_send_is_rejected_and_not_shown(
    refused: Callable[..., str], corpus: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", token)
    message = refused("retrieval", "serve", str(corpus), "--server-key-env", "KEY")
    assert "--server-key-env" in message
    assert token not in message


def test_a_port_in_use_is_an_error_before_the_index_is_built(refused: Callable[..., str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        message = refused("retrieval", "serve", str(tmp_path / "none.jsonl"), "--port", port)
    assert f"--port {port}: can't listen there (Address already in use)" in message


def test_a_missing_corpus_is_named(refused: Callable[..., str], tmp_path: Path) -> None:
    missing = str(tmp_path / "none.jsonl")
    assert "none.jsonl: can't be read" in refused("retrieval", "serve", missing, "--port", "0")


def test_a_killed_server_without_an_index_folder_leaves_no_files(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with process(corpus) as (address, child):
        assert len(send(address, queries=["the", "of"], topk=1)["result"]) == 2
        assert list(tmp_path.iterdir()) == []
        child.kill()


def test_the_cache_of_answers_holds_no_more_bytes_than_its_bound_keys_included() -> None:
    most, cache = 1 << 20, BytesCache(entries=10**6, size=1 << 20)
    tracemalloc.start()
    for number in range(2000):
        cache.put((f"{number:06}" + "\N{GRINNING FACE}" * 1000, 3, True), b"[]")
        cache.put((f"{number % 7:06}", 3, True), b"[]")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    status = cache.status()
    assert status["bytes"] <= most
    assert held <= 1.1 * most
    assert status["bytes"] >= 0.9 * held
    for number in range(7):
        assert cache.get((f"{number:06}", 3, True)) == b"[]"
    cache.clear()
    assert cache.status()["bytes"] == 0
