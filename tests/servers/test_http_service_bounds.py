"""Hostile clients of a server process: memory stays bounded and other clients are served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

TOKEN = "t0ken"
SOURCE = Path(__file__).parents[2] / "src"
CHILD = """
import sys
from palimpsest.servers.http_service import bound
from palimpsest.servers.retrieval_server import RetrievalService, serve
from palimpsest.tools.tool import PassageIndex
service = RetrievalService(PassageIndex([{"text": "river"}]), token=sys.argv[1])
with bound("127.0.0.1", 0) as listening:
    serve(service, listening, lambda url: print(url, flush=True))
"""


@dataclass
class Child:
    url: str
    pid: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", httpx2.URL(self.url).port), timeout=10)

    def memory(self) -> int:
        """Resident bytes, the most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))

    def serves(self) -> bool:
        headers, body = {"Authorization": f"Bearer {TOKEN}"}, {"queries": ["nothing of it"]}
        reply = httpx2.post(f"{self.url}/retrieve", json=body, headers=headers, timeout=20)
        return bool(reply.json() == {"result": [[]]})


@pytest.fixture(scope="module")
def guarded() -> Iterator[Child]:
    """A server that asks for a token."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, TOKEN],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout
        yield Child(child.stdout.readline().strip(), child.pid)
    finally:
        child.kill()
        child.wait()


def send_until_closed(connection: socket.socket, piece: bytes, most: int) -> tuple[int, bytes]:
    """Send `piece` repeatedly; the number of bytes sent until the server closed, and its reply."""
    received: list[bytes] = []

    def read() -> None:
        with suppress(OSError):
            while data := connection.recv(65_536):
                received.append(data)
        connection.close()

    reading = threading.Thread(target=read)
    reading.start()
    sent = 0
    with suppress(OSError):
        while sent < most and reading.is_alive():
            sent += connection.send(piece)
    reading.join(15)
    return sent, b"".join(received)


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece", "status"),
    [
        (GET, b"X-Y: " + b"z" * 1_000 + b"\r\n", b"400"),
        (GET, b"a:\r\n", b"400"),
        (GET + b"X-Y: ", b"z" * 10_000, b"400"),
        (GET, b"z" * 10_000, b"400"),
        (b"GET /", b"z" * 10_000, b"400"),
        (b"", b"\r\n" * 5_000, b"400"),
        (b"", b"\x00\xff" * 5_000, b"400"),
        (POST + b"0\r\n", b"Trailer: " + b"z" * 1_000 + b"\r\n", b"40"),  # 401 for the whole request, or 400
    ],
    ids=["headers", "names", "value", "name", "path", "blank lines", "garbage", "trailers"],
)
def test_a_head_without_an_end_is_cut_off_before_it_is_held(
    guarded: Child, head: bytes, piece: bytes, status: bytes
) -> None:
    before = guarded.memory()
    with guarded.connect() as connection:
        connection.sendall(head)
        sent, received = send_until_closed(connection, piece, 500_000_000)
    assert sent < 50_000_000
    assert not received or received.startswith(b"HTTP/1.1 " + status)
    assert guarded.memory() - before < 30_000_000
    assert guarded.serves()


@pytest.mark.parametrize("reads", [True, False], ids=["read", "not read"])
def test_requests_that_follow_at_once_are_not_taken_in_faster_than_they_are_answered(
    guarded: Child, reads: bool
) -> None:
    before, until = guarded.memory(), time.monotonic() + 2
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
    assert guarded.serves()
    for connection in connections:
        connection.close()


def test_hundreds_of_requests_that_follow_at_once_are_answered_in_their_order(guarded: Child) -> None:
    heads = [b"GET /%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t0ken\r\n\r\n" % n for n in (b"", b"queue_status")]
    with guarded.connect() as connection:
        connection.sendall(b"".join(heads[i % 2] for i in range(502)) + GET + b"Connection: close\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    statuses = [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]
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
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert (received.count(b"HTTP/1.1 200"), received.count(b"HTTP/1.1 401")) == (60, 1)
