"""Rate at which new weights reach the machines of a Ray cluster (engines/ray/server_hosts.py).

    python benchmarks/publication.py --receivers 1 2 4 --src CHECKOUT/src

One raylet per machine, all on this one, and a scripted server for vLLM. Rank 0 has a file of --megabytes MB of random
bytes in /dev/shm; the driver copies it to every other machine, whose bytes are compared afterwards. The table shows MB
of the file per second, median of --rounds, and CPU seconds per GB of the first rank, of its machine's raylet, and, on
average, of the other machines' raylets and actors.

Not covered: a network; NICs, disks and cores that machines don't share; the gathering and writing on rank 0.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CODE = Path(__file__).parents[1]
_PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
_PARSER.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4])
_PARSER.add_argument("--megabytes", type=int, default=1000)
_PARSER.add_argument("--rounds", type=int, default=3)
_PARSER.add_argument("--src", type=Path, default=CODE / "src", help="another checkout's src")
GIVEN = _PARSER.parse_args()
sys.path[:0] = [str(GIVEN.src), str(CODE / "tests")]
os.environ["PYTHONPATH"] = str(GIVEN.src)  # of Ray's processes

import psutil  # noqa: E402  found by the lines above

from palimpsest.config.load import load_recipe  # noqa: E402
from palimpsest.engines.open import open_engine  # noqa: E402
from support.cluster import AUTHENTICATED, machines, settings  # noqa: E402
from support.vllm_process import pretender  # noqa: E402

os.environ |= AUTHENTICATED  # before Ray is imported

SETTINGS = ("engine.name=ray", "cluster.learners=1", "sampler.name=vllm", "sampler.max_model_len=512")


def sha256(file: Path) -> str:
    with file.open("rb") as read:
        return hashlib.file_digest(read, "sha256").hexdigest()


def raylet_of(node: str) -> psutil.Process:
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet" and any(node in word for word in process.info["cmdline"] or ()):
            return process
    raise LookupError(node)


def copied(found: Any, folder: Path, node: str) -> float:
    """Seconds to copy a new file in `folder` to all servers."""
    from palimpsest.engines.ray.ray_runtime import WrittenWeights

    weights = folder / secrets.token_hex(4)
    weights.mkdir()
    file = weights / "model.safetensors"
    with file.open("wb") as written:
        for _ in range(GIVEN.megabytes):
            written.write(os.urandom(1_000_000))
    before = time.perf_counter()
    places = found._copied(WrittenWeights(node, weights, {file.name: file.stat().st_size}))
    seconds = time.perf_counter() - before
    assert len(places) == len(found._servers)
    assert {sha256(place / file.name) for place in places.values()} == {sha256(file)}
    found._ask("keep", dict.fromkeys(found._servers, (set(),)))
    file.unlink()
    return seconds


def cpu_seconds(raylet: psutil.Process) -> tuple[float, float]:
    """Of a machine's raylet, which sends and receives, and of its workers, which read and write."""
    workers = [process for process in raylet.children() if process.name().startswith("ray::")]
    return sum(raylet.cpu_times()[:2]), sum(sum(process.cpu_times()[:2]) for process in workers)


async def measured(receivers: int, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of each round, and CPU seconds per GB: to read, to send, to receive, to write."""
    with machines([1] * (receivers + 1), store=2_000_000_000) as address:
        more = [f"cluster.address={address}", f"sampler.servers={receivers}", "sampler.folder=/dev/shm"]
        config = load_recipe("memagent-quickstart", [*settings(2), *SETTINGS, *more])
        engine: Any = open_engine(config, objective="policy", folder=folder / "run")
        try:
            found = engine._hosts
            await found.write("1-version-0")
            node = (await asyncio.to_thread(found._write, "2-version-0")).node
            raylets = [raylet_of(each) for each in (node, *(server.node for server in found._servers))]
            before = [cpu_seconds(each) for each in raylets]
            seconds = [await asyncio.to_thread(copied, found, folder, node) for _ in range(GIVEN.rounds)]
            taken = [
                (raylet - sent, workers - worked)
                for (raylet, workers), (sent, worked) in zip(map(cpu_seconds, raylets), before, strict=True)
            ]
            (sends, reads), others = taken[0], taken[1:]
            receives, writes = (statistics.mean(column) for column in zip(*others, strict=True))
            gb = GIVEN.megabytes * GIVEN.rounds / 1000
            return seconds, [each / gb for each in (reads, sends, receives, writes)]
        finally:
            await engine.close()


def main() -> None:
    print("| receivers | MB/s | to all, MB/s | CPU s per GB: read | send | receive | write |")
    print("|---|---|---|---|---|---|---|")
    for receivers in GIVEN.receivers:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            os.environ["PALIMPSEST_VLLM_PYTHON"] = pretender(Path(folder))
            seconds, stages = asyncio.run(measured(receivers, Path(folder)))
        rate = GIVEN.megabytes / statistics.median(seconds)
        cells = [receivers, f"{rate:.0f}", f"{receivers * rate:.0f}", *(f"{each:.2f}" for each in stages)]
        print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
