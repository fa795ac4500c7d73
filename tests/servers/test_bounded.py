"""Hostile and slow clients of the retrieval server, on loopback: nothing grows, everything ends, others are served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

import httpx2
import pytest

SOURCE = Path(__file__).parents[2] / "src"
CHILD = """
import resource, sys
from palimpsest.servers.connection_limits import ConnectionLimits
from palimpsest.servers.http_service import bound
from palimpsest.servers.retrieval_server import Limits, RetrievalService, serve
from palimpsest.tools.shipped_tools import PassageIndex
token, descriptors, seconds = sys.argv[1] or None, int(sys.argv[2]), float(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
connection = ConnectionLimits(connections=200, head_seconds=seconds, write_seconds=1.0, linger_seconds=0.3)
index = PassageIndex([{"text": "river " + "x" * 400_000} for _ in range(50)])
service = RetrievalService(index, token=token, limits=Limits(connection=connection))
with bound("127.0.0.1", 0) as taken:
    serve(service, taken, lambda url: print(url, flush=True))
"""


@dataclass
class Child:
    url: str
    pid: int
    stderr: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", httpx2.URL(self.url).port), timeout=10)

    def memory(self) -> int:
        """Resident bytes, the most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))

    def serves(self, token: str = "") -> bool:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = {"queries": ["nothing of it"]}
        reply = httpx2.post(f"{self.url}/retrieve", json=body, headers=headers, timeout=20)
        return bool(reply.json() == {"result": [[]]})

    def serves_soon(self) -> bool:
        """As a client that asks again where it is turned away."""
        for _ in range(30):
            if self.serves():
                return True
            time.sleep(0.5)
        return False


@contextmanager
def serving(folder: Path, token: str = "", descriptors: int = 1024, seconds: float = 1.0) -> Iterator[Child]:
    stderr = folder / "stderr"
    with stderr.open("w") as errors:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, token, str(descriptors), str(seconds)],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert child.stdout
        yield Child(child.stdout.readline().strip(), child.pid, stderr)
    finally:
        child.kill()
        child.wait()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A server that asks for a token, which no client here has."""
    with serving(tmp_path_factory.mktemp("guarded"), token="t0ken") as child:
        yield child


def until_closed(connection: socket.socket, piece: bytes, most: int, pause: float = 0.0) -> tuple[int, bytes]:
    """Send `piece` again and again; how many bytes were taken until the server closed, and what it said."""
    said: list[bytes] = []

    def read() -> None:
        with suppress(OSError):
            while data := connection.recv(65_536):
                said.append(data)
        connection.close()

    reading = threading.Thread(target=read)
    reading.start()
    sent = 0
    with suppress(OSError):
        while sent < most and reading.is_alive():
            sent += connection.send(piece)
            time.sleep(pause)
    reading.join(15)
    return sent, b"".join(said)


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece", "status"),
    [
        (GET, b"X-Y: " + b"z" * 1_000 + b"\r\n", b"431"),
        (GET, b"a:\r\n", b"431"),
        (GET + b"X-Y: ", b"z" * 10_000, b"431"),
        (GET, b"z" * 10_000, b"431"),
        (b"GET /", b"z" * 10_000, b"414"),
        (b"GET /?", b"z" * 10_000, b"414"),
        (b"", b"\r\n" * 5_000, b"431"),
        (b"", b"\x00\xff" * 5_000, b"400"),
        (POST + b"0\r\n", b"Trailer: " + b"z" * 1_000 + b"\r\n", b""),
    ],
    ids=["headers", "names", "value", "name", "path", "query", "blank lines", "garbage", "trailers"],
)
def test_a_head_without_an_end_is_cut_off_before_it_is_held(
    guarded: Child, head: bytes, piece: bytes, status: bytes
) -> None:
    before = guarded.memory()
    with guarded.connect() as connection:
        connection.sendall(head)
        sent, said = until_closed(connection, piece, 500_000_000)
    assert sent < 50_000_000
    assert not said or said.startswith(b"HTTP/1.1 " + (status or b"401"))
    assert guarded.memory() - before < 30_000_000
    assert guarded.serves("t0ken")


@pytest.mark.parametrize("count", [90, 101])
def test_headers_are_counted(guarded: Child, count: int) -> None:
    headers = {"Authorization": "Bearer t0ken", **{f"X-{i}": "y" for i in range(count)}}
    status = httpx2.get(f"{guarded.url}/metrics", headers=headers).status_code
    assert status == (200 if count < 100 else 431)


@pytest.mark.parametrize("head", [b"", b"GET /met", GET, GET + b"X-Y: z"], ids=["nothing", "line", "headers", "value"])
def test_a_head_that_does_not_arrive_in_time_ends_the_connection(guarded: Child, head: bytes) -> None:
    with guarded.connect() as connection:
        connection.sendall(head)
        _, said = until_closed(connection, b"x", 1_000, pause=0.05) if head else (0, connection.recv(1_000))
    assert said.startswith(b"HTTP/1.1 408")


def test_blank_lines_now_and_then_keep_no_connection(guarded: Child) -> None:
    with guarded.connect() as connection:
        connection.sendall(GET + b"\r\n")
        sent, said = until_closed(connection, b"\r\n", 10_000, pause=0.05)
    assert sent < 1_000
    assert said.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("head", [POST, GET + b"Content-Length: 1000000000\r\n\r\n"], ids=["chunks", "length"])
def test_a_body_behind_a_refusal_is_not_received_for_ever(guarded: Child, head: bytes) -> None:
    before = guarded.memory()
    with guarded.connect() as connection:
        connection.sendall(head)
        sent, said = until_closed(connection, b"1\r\nx\r\n", 10_000_000, pause=0.01)
    assert sent < 10_000
    assert said.startswith(b"HTTP/1.1 401")
    assert guarded.memory() - before < 30_000_000


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    """Its answer has 20 MB; without a bound it waits in the server as long as the client likes."""
    with serving(tmp_path) as child, child.connect() as connection:
        body = b'{"queries": ["river"], "topk": 50}'
        connection.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(3)
        taken = 0
        with suppress(OSError):
            while data := connection.recv(1 << 20):
                taken += len(data)
        assert taken < 19_000_000
        assert child.serves()


def test_a_connection_is_kept_between_requests_and_requests_may_follow_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as child, child.connect() as connection:
        said = b""
        for requests, answers in ((3, 3), (1, 4)):
            connection.sendall((GET + b"\r\n") * requests)
            while said.count(b"retrieval_cache_misses") < answers:
                piece = connection.recv(65_536)
                assert piece
                said += piece
            time.sleep(6)  # longer than a head may take, and than httpx2 and its like keep a connection
    assert said.count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize("reads", [True, False], ids=["read", "not read"])
def test_requests_that_follow_at_once_are_not_taken_in_faster_than_they_are_answered(
    guarded: Child, reads: bool
) -> None:
    before, until = guarded.memory(), time.monotonic() + 4
    connections = [guarded.connect() for _ in range(1 if reads else 10)]
    for connection in connections:
        connection.settimeout(0.1)
    while time.monotonic() < until:
        for connection in connections:
            with suppress(TimeoutError):
                connection.send(b"GET / HTTP/1.1\r\nA:\r\n\r\n" * 4_000)
            with suppress(TimeoutError):
                assert not reads or connection.recv(1 << 20)
    assert guarded.memory() - before < 30_000_000
    assert guarded.serves("t0ken")
    for connection in connections:
        connection.close()


def test_hundreds_of_requests_that_follow_at_once_are_answered_in_their_order(guarded: Child) -> None:
    heads = [b"GET /%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t0ken\r\n\r\n" % n for n in (b"", b"queue_status")]
    with guarded.connect() as connection:
        connection.sendall(b"".join(heads[i % 2] for i in range(502)) + GET + b"Connection: close\r\n\r\n")
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    statuses = [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [404, 200] * 251 + [401]


@pytest.mark.parametrize("cut", [1, 20, 1_000])
def test_requests_with_bodies_may_follow_at_once(guarded: Child, cut: int) -> None:
    body = b'{"queries": ["%s"]}' % (b"x" * 3_000)
    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t0ken\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    data = (head + body) * 60 + GET + b"Connection: close\r\n\r\n"
    with guarded.connect() as connection:
        connection.sendall(data[:-cut])
        time.sleep(0.5)
        connection.sendall(data[-cut:])
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert (said.count(b"HTTP/1.1 200"), said.count(b"HTTP/1.1 401")) == (60, 1)


def test_bodies_that_never_end_leave_places_for_others(tmp_path: Path) -> None:
    with serving(tmp_path, seconds=60) as child:
        slow = list[socket.socket]()
        for _ in range(200):  # each sends its head at once: the first may not wait for the last
            slow.append(child.connect())
            slow[-1].sendall(POST + b"5\r\n[    \r\n")

        def status() -> int:
            return httpx2.get(f"{child.url}/queue_status", timeout=20).status_code

        for _ in range(30):
            if status() == 200:
                break
            time.sleep(0.2)
        late = httpx2.post(f"{child.url}/retrieve", json={"queries": ["a"]}, timeout=20)
        assert (late.status_code, late.headers.get("retry-after")) == (503, "2")
        assert status() == 200
        for connection in slow:
            connection.close()
        assert child.serves_soon()


def test_connections_beyond_the_number_are_told_so(tmp_path: Path) -> None:
    with serving(tmp_path, seconds=60) as child:
        idle = [child.connect() for _ in range(200)]
        with child.connect() as late:
            assert late.recv(1_000).startswith(b"HTTP/1.1 503")
        for connection in idle:
            connection.close()
        assert child.serves()


def test_a_connection_that_waits_for_a_further_request_makes_room(tmp_path: Path) -> None:
    with serving(tmp_path, seconds=60) as child:
        kept = [child.connect() for _ in range(200)]
        for connection in kept:
            connection.sendall(GET + b"\r\n")
            with HTTPResponse(connection) as reply:  # head and body may come apart
                reply.begin()
                assert reply.status == 200
                reply.read()
        assert child.serves()
        kept[0].settimeout(10)
        assert kept[0].recv(1_000) == b""
        for connection in kept:
            connection.close()


@pytest.mark.parametrize("descriptors", [40, 130])
def test_at_the_limit_of_descriptors_it_pauses_says_so_once_and_serves_again(tmp_path: Path, descriptors: int) -> None:
    """Without a bound: 24,000 tracebacks in the log, and no one is served."""
    with serving(tmp_path, descriptors=descriptors) as child:
        idle = [child.connect() for _ in range(300)]
        assert child.serves_soon()  # the idle ones are still open on this side
        for connection in idle:
            connection.close()
        assert child.serves_soon()
        told = child.stderr.read_text()
        assert "Traceback" not in told
        assert len(told.splitlines()) <= 2
