"""What `palimpsest serve` costs and stands: a server in a process of its own on the model inside the package, and real
requests over loopback. One figure a call:

    python benchmarks/serving.py first-byte
    python benchmarks/serving.py throughput
    python benchmarks/serving.py long --tokens 200000
    python benchmarks/serving.py lengths --plot cost.png
    python benchmarks/serving.py questions
    python benchmarks/serving.py leaks

first-byte   milliseconds from a streamed request to the first byte of its body, one begun every `--every` seconds,
             while `--episodes` others run; and to the first byte of /health
throughput   `--episodes` episodes asked of the server at once, beside `palimpsest.evaluate` on the same problems with
             as many at once; both write down what they play, their replies are compared, rounds alternate, and
             `ratio` is the median time of the evaluation over that of the server
long         one document from its upload to its answer, and the server's resident memory (`VmRSS`, `VmHWM`) meanwhile;
             `mb_per_100k_tokens` is the slope of a straight line through the samples of the second half
lengths      seconds, tokens and turns of one document after the other, alone on the server
questions    prompt tokens that the model computed for `--questions` questions on one document: asked one after the
             other, all at once, and in one request (`palimpsest.questions`), which is one reading
leaks        resident memory, descriptors and threads of the server after each of `--rounds` rounds of malformed bodies,
             requests at once, and clients that never end their request

Documents are the synthetic ones. Not covered: a server with other work, clients on other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from palimpsest import evaluate
from palimpsest.bench.served import CHAT, PARAGRAPH_TOKENS, Served, asked, body, document, malformed, served
from palimpsest.data.synthetic.documents import make_problem

Figures = dict[str, Any]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


# ---- first-byte -------------------------------------------------------------------------------------------------


def first_byte(options: argparse.Namespace) -> Figures:
    with served(options.model, "--concurrency", str(2 * options.episodes)) as server:
        return asyncio.run(_first_byte(server, options))


async def _first_byte(server: Served, options: argparse.Namespace) -> Figures:
    async with server.client() as client:
        load = [asyncio.create_task(_kept_reading(client, options.load, each)) for each in range(options.episodes)]
        while await asyncio.to_thread(server.metric, "episodes_running") < options.episodes:
            await asyncio.sleep(0.2)
        health, streams, running = list[float](), list[asyncio.Task[float]](), list[int]()
        for number in range(options.probes):
            content = body(document(4 * PARAGRAPH_TOKENS, 1000 + number), stream=True)
            streams.append(asyncio.create_task(_streamed(client, content)))
            await asyncio.sleep(options.every)
            began = time.perf_counter()
            await client.get("/health")
            health.append(time.perf_counter() - began)
            if number % 10 == 0:
                running.append(await asyncio.to_thread(server.metric, "episodes_running"))
        times = [1000 * seconds for seconds in await asyncio.gather(*streams)]
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    figures = {f"p{round(100 * share)}_ms": round(percentile(times, share), 1) for share in (0.5, 0.9, 0.99)}
    figures |= {"greatest_ms": round(max(times), 1), "health_p99_ms": round(1000 * percentile(health, 0.99), 1)}
    return {"episodes": options.episodes, "fewest_running": min(running), "probes": options.probes, **figures}


async def _kept_reading(client: httpx2.AsyncClient, tokens: int, number: int) -> None:
    """One document after the other."""
    while True:
        await asked(client, body(document(tokens, number)))
        number += 100_000


async def _streamed(client: httpx2.AsyncClient, content: Figures) -> float:
    """Seconds to the first byte; the stream is read to its end."""
    began, seconds = time.perf_counter(), 0.0
    async with client.stream("POST", CHAT, json=content) as answer:
        async for _ in answer.aiter_raw():
            seconds = seconds or time.perf_counter() - began
    return seconds


# ---- throughput -------------------------------------------------------------------------------------------------


def throughput(options: argparse.Namespace) -> Figures:
    problems = [
        make_problem(0, "eval", number, chunks=max(1, options.tokens // PARAGRAPH_TOKENS))
        for number in range(options.episodes)
    ]
    seconds: dict[str, list[float]] = {"evaluation": [], "server": []}
    slots = f"engine.batch_slots={options.at_once}"  # as many episodes an evaluation plays at once
    words = ("--concurrency", str(options.at_once), "--set", slots)
    with tempfile.TemporaryDirectory() as name, served(options.model, *words) as server:
        for number in range(options.rounds):
            evaluation = evaluate(
                options.model,
                problems,
                overrides=[slots],
                baselines=False,
                quiet=True,
                out=Path(name) / str(number),
            )
            seconds["evaluation"].append(evaluation.seconds)
            contents = [body(each.context or "", each.question, seed=number) for each in problems]
            for content in contents:
                content["palimpsest"]["raw"] = True  # as an evaluation has it
            began = time.perf_counter()
            told = asyncio.run(_all_at_once(server, contents))
            seconds["server"].append(time.perf_counter() - began)
            replies = {sample.id: sample.answer for sample in evaluation}
            assert [each["content"] for each in told] == [replies[each.id] for each in problems], "the replies differ"
    medians = {side: statistics.median(each) for side, each in seconds.items()}
    figures = {f"{side}_s": [round(each, 2) for each in of] for side, of in seconds.items()}
    sizes = {"episodes": options.episodes, "at_once": options.at_once, "turns": sum(each["turns"] for each in told)}
    return {**sizes, **figures, "ratio": round(medians["evaluation"] / medians["server"], 3)}


async def _all_at_once(server: Served, contents: Sequence[Figures]) -> list[Figures]:
    async with server.client() as client:
        return await asyncio.gather(*(asked(client, each) for each in contents))


# ---- long -------------------------------------------------------------------------------------------------------


def long(options: argparse.Namespace) -> Figures:
    words = [word for setting in options.set for word in ("--set", setting)]
    with served(options.model, *words) as server:
        text = document(options.tokens)
        begun_mb, began = server.memory_mb(), time.perf_counter()
        files, purpose = {"file": ("long.txt", text.encode())}, {"purpose": "user_data"}
        sent = httpx2.post(f"{server.url}/v1/files", files=files, data=purpose, timeout=600, trust_env=False).json()
        samples, told = _read_streamed(server, sent["id"])
        seconds = time.perf_counter() - began
        peak, ended = server.memory_mb("VmHWM"), server.memory_mb()
        time.sleep(options.rest)
        tokens = told["request_tokens"]
        later = [(share * tokens / 1e5, mb) for share, mb in samples if share > 0.5]
        slope = statistics.linear_regression(*zip(*later, strict=True)).slope if len(later) > 2 else None
        return {
            "tokens": tokens,
            "megabytes_of_text": round(len(text) / 1e6, 2),
            "outcome": told["outcome"],
            "turns": told["turns"],
            "seconds": round(seconds, 1),
            "tokens_per_s": round(tokens / seconds),
            "memory_mb": {
                "before": round(begun_mb),
                "at_tenths": [round(next((mb for at, mb in samples if at >= n / 10), 0)) for n in range(1, 10)],
                "peak": round(peak),
                "at_the_end": round(ended),
                f"{options.rest:g} s later": round(server.memory_mb()),
            },
            "mb_per_100k_tokens": None if slope is None else round(slope, 2),
        }


def _read_streamed(server: Served, file_id: str) -> tuple[list[tuple[float, float]], Figures]:
    """(share of the document that was read, resident MB) every second, and what the end of the stream says."""
    own = {"file_ids": [file_id], "question": "What does Anna drink?"}
    message = {"role": "user", "content": own["question"]}
    content = {"model": "palimpsest", "messages": [message], "palimpsest": own, "stream": True}
    content["stream_options"] = {"include_usage": True}
    samples, last, told = list[tuple[float, float]](), 0.0, Figures()
    with httpx2.stream("POST", server.url + CHAT, json=content, timeout=None, trust_env=False) as answer:
        for line in answer.iter_lines():
            if (place := re.search(r'"section (\d+) of (\d+)', line)) and time.monotonic() - last > 1:
                last = time.monotonic()
                samples.append((int(place[1]) / int(place[2]), server.memory_mb()))
                if len(samples) % 60 == 0:
                    print(f"section {place[1]} of {place[2]}, {samples[-1][1]:.0f} MB", file=sys.stderr, flush=True)
            elif line.startswith("data: {") and ('"outcome"' in line or '"choices":[]' in line):
                event = json.loads(line[6:])
                told |= event.get("palimpsest", {}) | ({"usage": event["usage"]} if event.get("usage") else {})
    return samples, told


# ---- lengths, questions -----------------------------------------------------------------------------------------


def lengths(options: argparse.Namespace) -> Figures:
    rows = []
    with served(options.model) as server:
        asyncio.run(_all_at_once(server, [body(document(200, 1))]))  # the first request imports and allocates
        for tokens in options.tokens:
            before, began = server.metric("engine_computed_prompt_tokens_total"), time.perf_counter()
            (told,) = asyncio.run(_all_at_once(server, [body(document(tokens))]))
            seconds = time.perf_counter() - began
            computed = server.metric("engine_computed_prompt_tokens_total") - before
            row = {"tokens": told["request_tokens"], "turns": told["turns"], "seconds": round(seconds, 2)}
            rows.append(row | {"prompt_tokens_computed": computed, "tokens_sampled": told["tokens_sampled"]})
    if options.plot:
        from palimpsest.report.plots import plot_scaling  # after `--help`: matplotlib

        plot_scaling([[row["turns"], row["tokens"], row["seconds"]] for row in rows], options.plot, "turns")
    return {"documents": rows}


def questions(options: argparse.Namespace) -> Figures:
    text = document(options.tokens)
    problems = [make_problem(7, "eval", number, chunks=1) for number in range(options.questions)]
    asks = [body(text, each.question) for each in problems]
    whole = asks[0]["palimpsest"] | {"question": None, "questions": [each.question for each in problems]}
    ways: dict[str, list[list[Figures]]] = {
        "one_after_the_other": [[{**each, "seed": 1}] for each in asks],
        "at_once": [[{**each, "seed": 2} for each in asks]],
        "in_one_request": [[{**asks[0], "palimpsest": whole, "seed": 3}]],
    }
    figures: Figures = {"questions": options.questions}
    with served(options.model) as server:
        for way, turns in ways.items():
            before, began = server.metric("engine_computed_prompt_tokens_total"), time.perf_counter()
            told = [each for contents in turns for each in asyncio.run(_all_at_once(server, contents))]
            figures["document_tokens"] = told[0]["request_tokens"]
            figures[way] = {
                "prompt_tokens": sum(each["tokens_in"] for each in told),
                "computed": server.metric("engine_computed_prompt_tokens_total") - before,
                "seconds": round(time.perf_counter() - began, 2),
            }
    return figures


# ---- leaks ------------------------------------------------------------------------------------------------------


def leaks(options: argparse.Namespace) -> Figures:
    rounds = list[Figures]()
    with served(options.model) as server:
        before = _held(server)
        for number in range(options.rounds):
            statuses = asyncio.run(_hostile_round(server, options, number))
            time.sleep(options.rest)  # connections end, episodes that were left are cancelled
            rounds.append(_held(server) | {"statuses": statuses})
            print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    return {"before": before, "rounds": rounds}


def _held(server: Served) -> Figures:
    folder = Path(f"/proc/{server.process}")
    opened, threads = len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))
    return {"memory_mb": round(server.memory_mb(), 1), "descriptors": opened, "threads": threads}


async def _hostile_round(server: Served, options: argparse.Namespace, number: int) -> Figures:
    """How many answers of each status came, by kind of request."""
    drawn, gate = random.Random(number), asyncio.Semaphore(64)
    async with server.client() as client:

        async def status(content: bytes) -> int:
            async with gate:
                answer = await client.post(CHAT, content=content)
            told = answer.json()
            assert answer.status_code == 200 or set(told["error"]) == {"message", "type", "param", "code"}, told
            return answer.status_code

        texts = [document(200, 1000 * number + each) for each in range(options.requests)]
        whole = [json.dumps(body(text)).encode() for text in texts]
        slow = asyncio.gather(*(_slow(server, each % 2 == 0) for each in range(options.slow)))
        wrong = await asyncio.gather(*(status(malformed(drawn, whole[0])) for _ in range(options.malformed)))
        answers = await asyncio.gather(*(asyncio.create_task(_status(client, each)) for each in whole))
    assert all(400 <= code < 500 for code in wrong), sorted(set(wrong))
    return {"malformed": _counted(wrong), "requests": _counted(answers), "slow": _counted(await slow)}


async def _status(client: httpx2.AsyncClient, content: bytes) -> int:
    return (await client.post(CHAT, content=content)).status_code


async def _slow(server: Served, in_head: bool) -> int:
    """The status that a client gets which sends a byte a second, of its head or of its body; 0: it was closed."""
    address = httpx2.URL(server.url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    length = "" if in_head else "Content-Length: 999999\r\n\r\n"
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: {address.host}\r\n{length}".encode())
    answer = asyncio.create_task(reader.readline())
    for _ in range(15):
        if (await asyncio.wait((answer,), timeout=1))[0]:
            break
        with suppress(ConnectionError):
            writer.write(b"a")
    writer.close()
    line = answer.result() if answer.done() else b""
    answer.cancel()
    return int(line.split()[1]) if line else 0


def _counted(statuses: Sequence[int]) -> dict[str, int]:
    return {str(code): statuses.count(code) for code in sorted(set(statuses))}


FIGURES: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "first-byte": first_byte,
    "throughput": throughput,
    "long": long,
    "lengths": lengths,
    "questions": questions,
    "leaks": leaks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="figure", required=True)
    known: dict[str, dict[str, Any]] = {
        "first-byte": {"episodes": 64, "probes": 200, "every": 0.5, "load": 20_000},
        "throughput": {"episodes": 128, "at-once": 64, "tokens": 1000, "rounds": 3},
        "long": {"tokens": 200_000, "rest": 20.0},
        "lengths": {},
        "questions": {"questions": 20, "tokens": 4000},
        "leaks": {"rounds": 4, "malformed": 1000, "requests": 200, "slow": 50, "rest": 12.0},
    }
    for figure, numbers in known.items():
        kind = kinds.add_parser(figure)
        kind.add_argument("--model", default="embedded")
        for name, default in numbers.items():
            kind.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    kinds.choices["long"].add_argument("--set", action="append", default=[], help="of `palimpsest serve`")
    lengths_given = kinds.choices["lengths"]
    lengths_given.add_argument("--tokens", type=int, nargs="+", default=[1000, 4000, 16_000, 64_000])
    lengths_given.add_argument("--plot", help="a PNG")
    options = parser.parse_args()
    figures = FIGURES[options.figure](options)
    print(json.dumps({**figures, "load": round(os.getloadavg()[0], 1)}, indent=1))


if __name__ == "__main__":
    main()
