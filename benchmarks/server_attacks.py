"""Attacks by clients that exhaust a server: pipelined requests without end.

    python benchmarks/server_attacks.py --seconds 20
    python benchmarks/server_attacks.py --seconds 20 --servers serve --attacks unread40

    pipelined   one connection that reads its responses, without the key; `serve`, `view` and `retrieval serve`
    unread20    20 connections that pipeline requests and never read, without the key; and `unread40`

Closed connections are reopened. One row per attack: bytes sent, the server's CPU seconds, its resident memory before
and at its highest, and the latency of another client's concurrent requests with the key (5 s each at most; requests
without an answer are counted). A last line per server: of 502 pipelined requests on one connection, those answered in
order.

Not covered: attacks from several machines, and through a proxy.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "tests")]

from support.serving_process import serving_process  # noqa: E402  found by the line above

KEY = "a-key-nobody-else-has"
GETS = b"GET / HTTP/1.1\r\nA:\r\n\r\n" * 4000
PATIENCE = 5.0
"""Seconds for an answer to the other client."""
Address = tuple[str, int]


@dataclass(frozen=True)
class Attack:
    connections: int = 1
    reads: bool = True


SERVERS = ("serve", "view", "retrieval")
ATTACKS = {
    "pipelined": Attack(),
    "unread20": Attack(connections=20, reads=False),
    "unread40": Attack(connections=40, reads=False),
}


@contextmanager
def server(kind: str, folder: Path) -> Iterator[tuple[Address, int, str]]:
    """(address, process, a path that answers 200 with the key) of a server that requires `KEY`."""
    os.environ["ATTACKED_KEY"] = KEY
    corpus = folder / "passages.jsonl"
    corpus.write_text('{"id": "1", "contents": "Anna sells tea."}\n')
    words, prefix, path = {
        "serve": (
            ["serve", "embedded", "--store", str(folder / "store"), "--server-key-env", "ATTACKED_KEY"],
            "/v1",
            "/v1/models",
        ),
        "view": (["view", str(folder), "--follow", "--server-key-env", "ATTACKED_KEY"], "/", "/api/runs"),
        "retrieval": (["retrieval", "serve", str(corpus), "--server-key-env", "ATTACKED_KEY"], "", "/queue_status"),
    }[kind]
    with serving_process([*words, "--port", "0"], prefix, stderr=subprocess.DEVNULL) as (url, child):
        parts = urlsplit(url)
        yield (parts.hostname or "", parts.port or 0), child.pid, path


def resident_mb(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmRSS"))


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def latency(address: Address, path: str) -> float | None:
    """Seconds to an answer of 200; None without one."""
    began = time.perf_counter()
    with closing(HTTPConnection(*address, timeout=PATIENCE)) as client, suppress(OSError):
        client.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
        if client.getresponse().status == 200:
            return time.perf_counter() - began
    return None


class Flood(threading.Thread):
    """One connection of an attack until `until`."""

    def __init__(self, address: Address, until: float, attack: Attack) -> None:
        super().__init__(daemon=True)
        self.address, self.until, self.attack, self.sent = address, until, attack, 0

    def run(self) -> None:
        while time.monotonic() < self.until:
            with suppress(OSError), socket.create_connection(self.address, timeout=5) as connection:
                connection.settimeout(0.2)
                if self.attack.reads:
                    threading.Thread(target=self._read, args=(connection,), daemon=True).start()
                self._send(connection)
            time.sleep(0.05)

    def _send(self, connection: socket.socket) -> None:
        rest = GETS
        while time.monotonic() < self.until:
            with suppress(TimeoutError):
                count = connection.send(rest)
                self.sent, rest = self.sent + count, rest[count:]
            rest = rest or GETS

    def _read(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while time.monotonic() < self.until:
                with suppress(TimeoutError):
                    if not connection.recv(65_536):
                        connection.shutdown(socket.SHUT_RDWR)  # the sender sees it too
                        return


def row(kind: str, name: str, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder, server(kind, Path(folder)) as (address, process, path):
        before, cpu = resident_mb(process), cpu_seconds(process)
        until, attack = time.monotonic() + seconds, ATTACKS[name]
        floods = [Flood(address, until, attack) for _ in range(attack.connections)]
        for flood in floods:
            flood.start()
        time.sleep(min(1.0, seconds / 4))
        highest, waits = before, list[float | None]()
        while time.monotonic() < until:
            waits.append(latency(address, path))
            highest = max(highest, resident_mb(process))
            time.sleep(0.1)
        cpu = cpu_seconds(process) - cpu
    answered = sorted(each for each in waits if each is not None)
    times = f"{statistics.median(answered) * 1e3:,.0f} | {answered[-1] * 1e3:,.0f}" if answered else "- | -"
    sent, share = sum(flood.sent for flood in floods) / 1e6, f"{len(answered)} of {len(waits)}"
    return f"| {kind} | {name} | {sent:.1f} | {cpu:.1f} | {before} | {highest} | {times} | {share} |"


def in_order(kind: str, count: int = 502) -> int:
    """Number of ordered responses to `count` pipelined requests with alternating statuses."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address, _, path = stack.enter_context(server(kind, folder))
        connection = stack.enter_context(socket.create_connection(address))
        key = f"Authorization: Bearer {KEY}\r\n"
        heads = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{key * (i % 2)}\r\n" for i in range(count)]
        heads.append(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        connection.settimeout(60)
        connection.sendall("".join(heads).encode())
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    statuses = [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:]]
    return sum(status == (401, 200)[i % 2] for i, status in enumerate(statuses[:count]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one attack")
    parser.add_argument("--servers", nargs="+", default=list(SERVERS), choices=SERVERS)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    options = parser.parse_args()
    print("| server | attack | MB sent | CPU s | MB before | MB highest | median ms | greatest ms | answered |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in options.servers:
        for name in options.attacks:
            print(row(kind, name, options.seconds), flush=True)
        print(f"{kind}: {in_order(kind)} of 502 pipelined requests answered in order", flush=True)


if __name__ == "__main__":
    main()
