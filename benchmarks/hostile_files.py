"""Hostile files in a run's folder, in a recipe, in a model's tokenizer: are they bounded, named and never believed?

    python benchmarks/hostile_files.py --trials 50

Each trial writes one random file and reads it in a separate process, killed after --limit seconds:

    merges      config.yaml of nested merge keys (up to 12 levels of up to 10) and a sound run: the viewer lists both
    links       one file of a run is a link to another run's, which has a secret: neither the viewer nor an
                export shows it
    formats     an episode whose record has an unknown format: it is named and not shown
    keys        a recipe of up to 30,000 keys: rejected in a message of at most 10,000 characters
    cut, pad    tokenizer.json with truncation or padding: a template has the tokens it had without
    growth      tokenizer.json with steps that lengthen text: rejected, or it has at most 300 MB

One row per kind: trials, numbers held, wrong and killed; maximum additional CPU seconds and MB of a trial. The exit
status is 1 if any trial was not held.

Not covered: regular expressions of a tokenizer (SECURITY.md).
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import multiprocessing
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zstandard

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "tests")]

from palimpsest.app.viewer_job import export  # noqa: E402
from palimpsest.config.engine import model_path  # noqa: E402
from palimpsest.config.load import load_recipe  # noqa: E402  found by the line above
from palimpsest.errors import ConfigError, DataError, ModelError  # noqa: E402
from palimpsest.rollout.trajectory_file import group_lines  # noqa: E402
from palimpsest.text.codec import Codec  # noqa: E402
from palimpsest.viewer.records.sources import Library, NotThere  # noqa: E402
from palimpsest.viewer.screens.viewer_api import ViewerApi  # noqa: E402
from support.view_folders import group, run_folder  # noqa: E402

GROWTH_MB = 300
SECRET = "hunter2"
TEMPLATE = "You are given a problem and a section of an article. " * 40
FORMATS: tuple[Any, ...] = (0, 3, 99, -1, "2", None, [2], True, 2.0, 1e30, {"format": 2}, "", 1 << 70)


def merges(draw: random.Random, folder: Path) -> bool:
    levels, width = draw.randint(2, 12), draw.randint(2, 10)
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{k{i}: 1, <<: [{','.join([f'*a{i - 1}'] * width)}]}}" for i in range(1, levels)]
    for name in ("bomb", "sound"):
        run_folder(folder / name, [{"step": 1, "reward/mean": 0.5}])
    (folder / "bomb" / "config.yaml").write_text("\n".join(lines) + "\n")
    return {each["name"] for each in ViewerApi(Library([folder])).get("/api/runs")["runs"]} == {"bomb", "sound"}


def links(draw: random.Random, folder: Path) -> bool:
    inside, outside = (
        run_folder(folder / name, [{"step": 1, "note": word}], records={1: [group(word)]}, config=f"name: {word}\n")
        for name, word in (("run", "plain"), ("outside", SECRET))
    )
    name = draw.choice(["config.yaml", "metrics.jsonl", "events.jsonl", "trajectories/step-000001.jsonl.zst"])
    (outside / "events.jsonl").write_text(json.dumps({"kind": SECRET}) + "\n")
    (inside / name).unlink()
    (inside / name).symlink_to(outside / name)
    return SECRET in shown(outside, folder / "outside") and SECRET not in shown(inside, folder / "inside")


def shown(run: Path, target: Path) -> str:
    """Text of a run in the viewer and in its export to `target`."""
    answers, seen = ViewerApi(Library([run])), list[str]()
    for address in ("", "/metrics", "/events", "/steps/1/episodes", "/steps/1/groups/0"):
        try:
            seen.append(str(answers.get(f"/api/runs/{run.name}{address}")))
        except (NotThere, DataError) as error:
            seen.append(str(error))
    try:
        text = export([run], target.with_suffix(".html"))[0].path.read_text("utf-8")
    except (NotThere, DataError) as error:
        text = str(error)
    packed = re.search(r'id="answers">([^<]*)</script>', text)
    seen.append(gzip.decompress(base64.b64decode(packed[1])).decode() if packed else text)
    return "\n".join(seen)


def formats(draw: random.Random, folder: Path) -> bool:
    lines = [group_lines(group(name, (0.0,))) for name in ("tea", "ale")]
    at, other = draw.randrange(2), json.dumps(draw.choice(FORMATS)).encode()
    lines[at] = lines[at].replace(b'"format":2', b'"format":' + other, 1)
    run = run_folder(folder / "run")
    (run / "trajectories" / "step-000001.jsonl.zst").write_bytes(b"".join(map(zstandard.compress, lines)))
    seen = ViewerApi(Library([run])).get("/api/runs/run/steps/1/episodes")
    return [row["id"] for row in seen["rows"]] == ([] if at == 0 else ["tea"]) and bool(seen["torn"])


def keys(draw: random.Random, folder: Path) -> bool:
    count, kind = draw.randint(1_000, 30_000), draw.choice(["top", "section", "anchors"])
    indent = "  " if kind == "section" else ""
    lines = [f"{indent}k{i}: {f'&a{i} ' if kind == 'anchors' else ''}{i}" for i in range(count)]
    lines = ["train:", *lines] if kind == "section" else lines
    file = folder / "recipe.yaml"
    file.write_text("\n".join(lines) + "\n")
    try:
        load_recipe(str(file), [])
    except ConfigError as error:
        return len(str(error)) < 10_000
    return False  # none of the keys is one of palimpsest's


def changed(folder: Path, **entries: Any) -> Path:
    """A copy of the model inside the package whose tokenizer.json has other entries."""
    source = Path(model_path(load_recipe("memagent-quickstart", []).model))
    shutil.copytree(source, folder / "model", ignore=shutil.ignore_patterns("manifest.json"))
    file = folder / "model" / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **entries}))
    return folder / "model"


def same_template(folder: Path) -> bool:
    plain = Codec.load(Path(model_path(load_recipe("memagent-quickstart", []).model))).encode_trusted(TEMPLATE)
    return Codec.load(folder).encode_trusted(TEMPLATE) == plain


def cut(draw: random.Random, folder: Path) -> bool:
    strategy = draw.choice(["LongestFirst", "OnlyFirst", "OnlySecond"])
    entry = {"direction": draw.choice(["Left", "Right"]), "max_length": draw.randint(1, 300), "strategy": strategy}
    return same_template(changed(folder, truncation={**entry, "stride": 0}))


def pad(draw: random.Random, folder: Path) -> bool:
    strategy: Any = draw.choice(["BatchLongest", {"Fixed": draw.choice([64, 4096, 10**8, 10**12])}])
    entry = {"strategy": strategy, "direction": draw.choice(["Left", "Right"]), "pad_id": 0, "pad_type_id": 0}
    entry |= {"pad_token": "<|endoftext|>", "pad_to_multiple_of": draw.choice([None, 8, 10**8])}
    return same_template(changed(folder, padding=entry))


def growth(draw: random.Random, folder: Path) -> bool:
    letter, times, count = draw.choice("aeiou "), draw.choice([2, 10, 100]), draw.randint(4, 12)
    longer: dict[str, Any] = {"type": "Replace", "pattern": {"String": letter}, "content": letter * times}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    part = draw.choice(["normalizer", "pre_tokenizer", "decoder"])
    steps = [level if part == "pre_tokenizer" else longer] * count
    model = changed(folder, **{part: {"type": "Sequence", part.replace("_", "") + "s": steps}})
    try:
        codec = Codec.load(model)
    except ModelError as error:
        return part in str(error)
    return isinstance(codec.decode(codec.encode(TEMPLATE[:100])), str)


KINDS: dict[str, Callable[[random.Random, Path], bool]] = {
    each.__name__: each for each in (merges, links, formats, keys, cut, pad, growth)
}


@dataclass(frozen=True)
class Trial:
    verdict: str
    """held, wrong or killed"""
    cpu_s: float
    grown_mb: float


def child(kind: str, key: str, end: Connection) -> None:
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        held = KINDS[kind](random.Random(key), Path(folder))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    end.send(Trial("held" if held and grown < GROWTH_MB else "wrong", time.process_time() - started, grown))


def tried(kind: str, key: str, limit: float) -> Trial:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(kind, key, theirs))
    process.start()
    theirs.close()
    try:
        trial = ours.recv() if ours.poll(limit) else Trial("killed", limit, 0.0)
    except EOFError:
        trial = Trial("wrong", 0.0, 0.0)  # an unexpected error: print its traceback
    process.kill()
    process.join()
    return trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a trial")
    given = parser.parse_args()
    bad = 0
    print("| file | trials | held | wrong | killed | most CPU seconds | most MB |\n|---|---|---|---|---|---|---|")
    for kind in KINDS:
        trials = [tried(kind, f"{given.seed}:{kind}:{number}", given.limit) for number in range(given.trials)]
        held, wrong, killed = (sum(each.verdict == word for each in trials) for word in ("held", "wrong", "killed"))
        cpu, grown = max(each.cpu_s for each in trials), max(each.grown_mb for each in trials)
        print(f"| {kind} | {len(trials)} | {held} | {wrong} | {killed} | {cpu:.1f} | {grown:.0f} |", flush=True)
        bad += wrong + killed
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
