"""CPU time of the driver of a run with vLLM servers: per turn while it samples, then for credit, plan and records.

    python benchmarks/driver.py --json
    python benchmarks/driver.py --src /path/to/another/checkout/src      the same of another version

MemAgent's training step in the shape of `memagent-7b`: prompts of about 5,000 tokens, completions of 650. The servers
speak vLLM's protocol on loopback, each in a process, and complete every prompt at once with random tokens, so only the
driver's own work is measured: `turns_per_s` is the number of turns over the CPU seconds of the driver's process.

Not covered: Ray's actors between the driver and servers; publication; several machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

DISTINCT = 64
"""Completions that a server has."""


# ---- A server ----------------------------------------------------------------------------------------------------


def serve(port_file: Path, tokens: int, stop: int) -> None:
    """Complete every prompt at once; the port is written into `port_file`."""
    draw, version = random.Random(1), b"default"
    completions = cycle([_completion(draw, tokens + draw.randint(-60, 60), stop) for _ in range(DISTINCT)])

    def reply_to(path: str, body: bytes) -> bytes:
        nonlocal version
        match path:
            case "/inference/v1/generate" if b'"logprobs":0' in body[-400:]:
                asked = re.search(rb'"request_id":"(\w+)"', body)
                assert asked is not None
                return next(completions).replace(b"@ID@", asked[1], 1).replace(b"@VERSION@", version, 1)
            case "/inference/v1/generate":
                top = [{"token_id": id_, "logprob": -1.0 - id_} for id_ in range(10)]
                return orjson.dumps({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]})
            case "/update_weight_version":
                version = orjson.loads(body)["new_version"].encode()
            case "/v1/models":
                return orjson.dumps({"data": [{"root": "somewhere", "max_model_len": 1 << 20}]})
        return orjson.dumps({"success": True, "weight_version": version.decode()})

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All requests of one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                content = reply_to(head.split(maxsplit=2)[1].decode().partition("?")[0], body)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))
                await writer.drain()
                if b"connection: close" in head:
                    writer.close()

    async def forever() -> None:
        listening = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20, backlog=4096)
        port_file.write_text(str(listening.sockets[0].getsockname()[1]))
        await listening.serve_forever()

    asyncio.run(forever())


def _completion(draw: random.Random, tokens: int, stop: int) -> bytes:
    """An answer of /inference/v1/generate of vLLM 0.32 to logprobs=0, with placeholders: the log-probability of every
    sampled token is there twice, with as many digits as a float32 has in JSON."""
    ids = [*(draw.randrange(1000, 2700) for _ in range(tokens - 1)), stop]
    chosen = [{"token_id": id_, "logprob": float(np.float32(-draw.random())), "rank": 1} for id_ in ids]
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "stop_reason": stop,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": [{"version": "@VERSION@", "start": 0, "end": len(ids)}],
        "logprobs": {"content": [{**token, "top_logprobs": [token]} for token in chosen]},
    }
    usage = {"prompt_tokens": 10, "total_tokens": 10 + tokens, "completion_tokens": tokens} | {
        "prompt_tokens_details": {"cached_tokens": 8, "created_cache_tokens": None, "multimodal_tokens": None},
        "completion_tokens_details": None,
    }
    answer = {"request_id": "generate-tokens-@ID@", "model": "policy", "created": 0, "usage": usage}
    unset = ["prompt_logprobs", "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics"]
    unset += ["kv_transfer_params", "ec_transfer_params"]
    return orjson.dumps({**answer, **dict.fromkeys(unset), "output_mode": "tokens", "choices": [choice]})


@contextmanager
def servers(count: int, tokens: int, stop: int) -> Iterator[list[str]]:
    """Addresses of running servers."""
    with tempfile.TemporaryDirectory() as folder:
        ports = [Path(folder) / str(number) for number in range(count)]
        command = [sys.executable, __file__, "--tokens", str(tokens), "--stop", str(stop), "--port-file"]
        processes = [subprocess.Popen([*command, str(port)]) for port in ports]
        try:
            while not all(port.is_file() and port.read_text() for port in ports):
                time.sleep(0.05)
            yield [f"http://127.0.0.1:{port.read_text()}" for port in ports]
        finally:
            for process in processes:
                process.kill()
                process.wait()


# ---- The driver --------------------------------------------------------------------------------------------------


def documents(codec: Any, count: int, tokens: int) -> Iterator[str]:
    draw = random.Random(0)
    words = ("river", "castle", "walked to the", "old mill", "and found", "a letter", "from Rome")
    ids = codec.encode(". ".join(" ".join(draw.choice(words) for _ in range(200)) for _ in range(tokens // 200)))
    while len(ids) < tokens:
        ids = [*ids, *ids]
    text = codec.decode(ids[:tokens])
    yield from (f"Item {number}. {text}" for number in range(count))


async def measure(given: argparse.Namespace) -> dict[str, float]:
    from palimpsest.config.engine import SamplerConfig
    from palimpsest.config.load import load_recipe
    from palimpsest.credit.assign import assign
    from palimpsest.engines.protocol import Limits
    from palimpsest.engines.ray.rank_batches import plan
    from palimpsest.engines.vllm.engine import VllmSampler
    from palimpsest.memory.registry import build_policy
    from palimpsest.reward.grading import build_reward
    from palimpsest.rollout.group import Player
    from palimpsest.rollout.trajectory_file import encode_groups
    from palimpsest.text.codec import Codec
    from palimpsest.types import Problem

    config = load_recipe("memagent-7b", ["model.path=embedded", "model.dtype=float32"])
    codec = Codec.load(config.model)
    texts = documents(codec, given.problems, given.chunks * 5000)
    problems = [Problem(f"p{i}", f"Who found letter {i}?", ("Anna",), text) for i, text in enumerate(texts)]
    with servers(given.servers, given.tokens, codec.stop_ids[0]) as urls, tempfile.TemporaryDirectory() as folder:
        settings = SamplerConfig(name="vllm", urls=tuple(urls))
        sampler = VllmSampler(
            settings, Limits(codec.vocab_size, 1 << 20), mode="raw_logprobs", dtype="float32", logs=Path(folder)
        )
        await sampler.load_weights(Path(folder), 0)
        grader = build_reward(config.reward, codec)
        player = Player(build_policy(config.policy), sampler, codec, config.sampling, grader, given.group)
        await player.batch(problems[:1], key=(0, "warm-up"))
        wall, cpu = time.perf_counter(), time.process_time()
        groups = await player.batch(problems, key=(0, "train", 1))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        await sampler.close()
    played = [trajectory for group in groups for trajectory in group.trajectories]
    assert all(trajectory.outcome.value == "answered" for trajectory in played), played[0].events
    turns = [turn for trajectory in played for turn in trajectory.turns]
    figures = {
        "episodes": len(played),
        "turns": len(turns),
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns) / len(turns),
        "completion_tokens": sum(len(turn.completion.token_ids) for turn in turns) / len(turns),
        "turns_per_s": len(turns) / cpu,
        "turns_per_wall_s": len(turns) / wall,
    }
    marks = [time.process_time()]
    steps = assign(groups, config.credit, min(16, given.problems), (0, "dcpo", 1))
    marks.append(time.process_time())
    plan(steps, 8, number=1, micro_batch_tokens=16384, max_context=32768, skips_silent=False)
    marks.append(time.process_time())
    encode_groups(groups)
    marks.append(time.process_time())
    names = ("credit_s", "plan_s", "records_s")
    return figures | {name: end - start for name, (start, end) in zip(names, pairwise(marks), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--group", type=int, default=16, help="episodes per problem")
    parser.add_argument("--chunks", type=int, default=6, help="chunks of 5,000 tokens per document")
    parser.add_argument("--tokens", type=int, default=650, help="tokens of a completion, on average")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--src", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--port-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.port_file:
        serve(given.port_file, given.tokens, given.stop)
        return
    sys.path.insert(0, str(given.src))
    from palimpsest.app.python_calls import finish

    figures = finish(lambda: measure(given))
    print(
        json.dumps(figures) if given.json else "\n".join(f"{name:18} {value:9.2f}" for name, value in figures.items())
    )


if __name__ == "__main__":
    main()
