"""Load on `palimpsest serve --base-url`: episodes and turns per second, and how long /health takes meanwhile.

    python benchmarks/serve_load.py --clients 1 8 64 --before /path/to/another/checkout/src --out serve-load.json

The server queries an endpoint that answers at once, so that only the server's own work is measured. Each client
sends documents of its own, one after the other, over one connection; another process asks for /health every 50 ms.
With `--before`, the servers of both checkouts run in turn under each load. `--document` and `--chunk` are in tokens of
a tokenizer with 151,000 tokens, which the script builds.

Not covered: an embedded model; clients that stream; a network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

VOCABULARY = 151_000
HEALTH_S = 0.05
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def words() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices("aeioubcdfgklmnprstv", k=3 + number % 8)) for number in range(200_000)]


@dataclass(frozen=True, slots=True)
class Row:
    source: str
    clients: int
    document: int
    chunk: int
    episodes: int
    failed: int
    episodes_per_s: float
    turns_per_s: float
    p50_s: float
    p99_s: float
    health: int
    health_p50_ms: float
    health_p99_ms: float
    health_max_ms: float
    cpu_share: float
    """Of one core, by the server."""


def build_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer of `VOCABULARY` tokens with the chat tokens of Qwen."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator((" ".join(words()[at : at + 50]) for at in range(0, len(words()), 50)), trainer)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 131_072}))


def document(seed: str, tokens: int) -> str:
    """About `tokens` tokens: a word has two or so."""
    return " ".join(random.Random(seed).choices(words(), k=int(tokens * 0.53)))


# ---- An endpoint that answers at once ------------------------------------------------------------------------


class Instant(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            found = re.search(rb"content-length: (\d+)", head)
            length = int(found[1]) if found else 0
            if len(self.data) < end + 4 + length:
                return
            body, self.data = self.data[end + 4 : end + 4 + length], self.data[end + 4 + length :]
            self.transport.write(answered(head, body))


def answered(head: bytes, body: bytes) -> bytes:
    said = "Anna sells tea in Rome."
    choice = {"text": said, "message": {"role": "assistant", "content": said}, "finish_reason": "stop", "index": 0}
    if head.startswith(b"get"):
        value: Any = {"data": [{"id": "served", "max_model_len": 131_072}]}
    elif b"/completions" not in head or (b'"prompt":[' in body):
        return b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}"
    else:
        value = {"choices": [choice], "model": "served", "usage": {"completion_tokens": 6}}
    content = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(content) + content


async def serve_endpoint() -> None:
    server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


# ---- Load ----------------------------------------------------------------------------------------------------


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes]:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head.lower())
    assert found
    return int(head.split()[1]), await reader.readexactly(int(found[1]))


def request_of(content: str) -> bytes:
    body = json.dumps({"model": "palimpsest", "messages": [{"role": "user", "content": content}]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


async def client(port: int, name: str, size: int, until: float, done: list[tuple[float, int, int]]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while time.monotonic() < until:
        content = f"<document>{document(f'{name} {number}', size)}</document> Who sells tea?"
        started = time.monotonic()
        status, body = await asked(reader, writer, request_of(content))
        answer = json.loads(body)
        done.append((time.monotonic() - started, status, answer.get("palimpsest", {}).get("turns", 0)))
        number += 1
    writer.close()


async def watch(port: int) -> None:
    """Ask for /health until stdin closes; print the seconds of each."""
    request, ended = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    while not ended.is_set():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        started = time.monotonic()
        await asked(reader, writer, request)
        print(time.monotonic() - started, flush=True)
        writer.close()
        await asyncio.sleep(HEALTH_S)


@contextmanager
def process(command: list[str], source: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Python process and the address that it prints."""
    path = {} if source is None else {"PYTHONPATH": str(source)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **path}
    child = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        found = re.search(r"http://[\w.]+:\d+", child.stdout.readline())
        assert found, command
        yield child, found.group()
    finally:
        child.kill()
        child.wait()


def measured(source: Path, clients: int, options: argparse.Namespace, endpoint: str, tokenizer: Path) -> Row:
    import psutil

    command = ["-m", "palimpsest", "serve", "served", "--base-url", f"{endpoint}/v1", "--tokenizer", str(tokenizer)]
    command += ["--port", "0", "--no-store", "--no-request-log", "--concurrency", "64", f"chunk_size={options.chunk}"]
    with process([*command, "--queue", "1024"], source) as (child, url):
        port = int(url.rpartition(":")[2])
        asyncio.run(client(port, "first", options.chunk, time.monotonic() + 0.1, []))  # imports and caches
        watcher = [sys.executable, __file__, "--watch", str(port)]
        watching = subprocess.Popen(watcher, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        done, before = list[tuple[float, int, int]](), psutil.Process(child.pid).cpu_times()
        started = time.monotonic()

        async def load() -> None:
            until = time.monotonic() + options.seconds
            await asyncio.gather(
                *(client(port, f"{source} {n}", options.document, until, done) for n in range(clients))
            )

        asyncio.run(load())
        seconds, after = time.monotonic() - started, psutil.Process(child.pid).cpu_times()
        shown, _ = watching.communicate("\n")
    health = sorted(1000 * float(line) for line in shown.split())
    times = sorted(each[0] for each in done)
    used = after.user + after.system - before.user - before.system
    return Row(
        str(source),
        clients,
        options.document,
        options.chunk,
        len(done),
        sum(status != 200 for _, status, _ in done),
        round(len(done) / seconds, 2),
        round(sum(turns for *_, turns in done) / seconds, 1),
        round(statistics.median(times), 3),
        round(times[int(0.99 * (len(times) - 1))], 3),
        len(health),
        round(statistics.median(health), 1),
        round(health[int(0.99 * (len(health) - 1))], 1),
        round(health[-1], 1),
        round(used / seconds, 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--document", type=int, default=2000, help="tokens of a document")
    parser.add_argument("--chunk", type=int, default=500, help="tokens of a section")
    parser.add_argument("--seconds", type=float, default=10.0, help="time in which clients send requests")
    parser.add_argument("--before", type=Path, help="src of another checkout")
    parser.add_argument("--tokenizer", type=Path, help="folder; default: one is built")
    parser.add_argument("--out", type=Path, default=Path("serve-load.json"))
    parser.add_argument("--endpoint", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.endpoint:
        return asyncio.run(serve_endpoint())
    if options.watch is not None:
        return asyncio.run(watch(options.watch))
    sources = [*([options.before] if options.before else []), Path(__file__).parents[1] / "src"]
    rows = []
    with tempfile.TemporaryDirectory() as folder, process([__file__, "--endpoint"]) as (_, endpoint):
        if options.tokenizer is None:
            build_tokenizer(Path(folder))
        for clients in options.clients:
            for source in sources:
                row = measured(source, clients, options, endpoint, options.tokenizer or Path(folder))
                rows.append(asdict(row))
                print(json.dumps(rows[-1]), flush=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
