"""What it costs to measure the memories of recorded groups, beside another checkout of this repository.

    git worktree add /tmp/before cd1397a
    python benchmarks/measures.py --before /tmp/before

The episodes are those of the overwriting agent, played once with replies drawn from the document (no weights). The same
token ids are then measured by both checkouts, each in a process of its own: by this one all rollouts; by the other,
which decoded prompts and matched them with regular expressions, four of each group, as it did in training, and all.
Printed is the median CPU time of five rounds.

Not covered: anything but the memory metrics; a checkout after the one that changed them can't stand in for the other.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS = 5


@dataclass(frozen=True)
class Workload:
    """Episodes to measure."""

    groups: int
    rollouts: int
    chunks: int
    facts_per_chunk: int
    options: dict[str, Any]


SHORT = {"question_tokens": 32, "answer_tokens": 8, "layout": "section_first", "prompts": "short"}
WORKLOADS = {
    "quickstart": Workload(8, 16, 4, 5, {**SHORT, "chunk_size": 36, "memory_tokens": 8, "chunk_boundary": "line"}),
    "long episode": Workload(1, 1, 1024, 5, {**SHORT, "chunk_size": 36, "memory_tokens": 8, "chunk_boundary": "line"}),
    "published budgets": Workload(1, 16, 92, 30, {}),
}
"""By name: a step of memagent-quickstart; an episode of 1,024 chunks; chunks of 5,000 and memories of 1,024 tokens."""


def recorded(work: Workload) -> list[dict[str, Any]]:
    """Groups as plain data, which every checkout can read."""
    from palimpsest.config.data import SyntheticConfig
    from palimpsest.config.schema import PolicyConfig
    from palimpsest.data.synthetic.documents import SyntheticSource
    from palimpsest.memory.registry import build_policy
    from palimpsest.text.codec import Codec

    codec = Codec.load(base_model())
    data = SyntheticConfig(chunks=work.chunks, facts_per_chunk=work.facts_per_chunk)
    problems = SyntheticSource(data, seed=0, split="train").problems(step=0, count=work.groups)
    policy = build_policy(PolicyConfig(name="overwrite", options=work.options))
    return [
        {
            "id": problem.id,
            "question": problem.question,
            "answers": list(problem.answers),
            "metadata": {"evidence": list(problem.metadata["evidence"])},
            "episodes": [_played(policy, problem, codec, rollout) for rollout in range(work.rollouts)],
        }
        for problem in problems
    ]


def _played(policy: Any, problem: Any, codec: Any, rollout: int) -> list[dict[str, Any]]:
    """The turns of an episode whose replies are sentences of the document, one in five made up."""
    from palimpsest.config.schema import SamplingConfig
    from palimpsest.rollout.episode import play
    from palimpsest.text.sentences import sentences
    from palimpsest.types import Completion, SamplingParams, StopReason

    facts = sentences(problem.context)

    class Copyist:
        max_context = 1_000_000

        async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, **_: Any) -> Completion:
            rng = random.Random(params.seed)
            ids: list[int] = []
            while len(ids) < params.max_tokens:
                fact = rng.choice(facts)
                ids += codec.encode(" " + (fact if rng.random() < 0.8 else fact[::-1]))
            ids = ids[: params.max_tokens]
            return Completion(tuple(ids), (0.0,) * len(ids), StopReason.LENGTH)

    given: dict[str, Any] = {"sampler": Copyist(), "codec": codec, "sampling": SamplingConfig()}
    episode = play(problem, policy=policy, key=(0,), group_id="g", rollout=rollout, **given)
    return [
        {
            "prompt_ids": turn.prompt_ids,
            "token_ids": turn.completion.token_ids,
            "name": turn.name,
            "spans": {name: list(span) for name, span in turn.spans.items()},
        }
        for turn in asyncio.run(episode).turns
    ]


def base_model() -> str:
    import palimpsest

    return str(Path(str(palimpsest.__file__)).parent / "assets" / "base-model")


def worker(path: str) -> None:
    """Measure the recorded groups with whatever `palimpsest` is imported, and print seconds."""
    from palimpsest.text.codec import Codec
    from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn

    codec = Codec.load(base_model())

    def group_of(row: dict[str, Any]) -> Group:
        def turn(step: int, each: dict[str, Any]) -> Turn:
            ids = tuple(each["token_ids"])
            completion = Completion(ids, (0.0,) * len(ids), StopReason.LENGTH)
            spans = {name: tuple(span) for name, span in each["spans"].items()}
            named: dict[str, Any] = {"spans": spans} if "spans" in Turn.__dataclass_fields__ else {}
            return Turn(tuple(each["prompt_ids"]), completion, step, each["name"], {}, **named)

        episodes = tuple(
            Trajectory(row["id"], "g", number, tuple(turn(*each) for each in enumerate(turns)), Outcome.ANSWERED)
            for number, turns in enumerate(row["episodes"])
        )
        problem = Problem(row["id"], row["question"], tuple(row["answers"]), None, row["metadata"])
        return Group(problem, episodes, (Grade(1.0),) * len(episodes))

    groups = [group_of(row) for row in json.loads(Path(path).read_text())]
    result = {}
    for name, measure in measures(codec).items():
        seconds = []
        for _ in range(ROUNDS):
            start = time.process_time()
            figures = [measure(group) for group in groups]
            seconds.append(time.process_time() - start)
        result[name] = {"seconds": median(seconds), "copy_fidelity": figures[0]["copy_fidelity"]}
    print(json.dumps(result))


def measures(codec: Any) -> dict[str, Callable[[Any], dict[str, Any]]]:
    """How this checkout measures a group's memories, by name."""
    try:
        from palimpsest.metrics.memory_metrics import memory_metrics
        from palimpsest.metrics.reading_trace import Texts
    except ModuleNotFoundError:  # the checkout before
        old: Any = importlib.import_module("palimpsest.train.metrics")
        return {
            "four a group": lambda group: (
                old.memory_metrics(group, codec, rollouts=4) | old.reply_metrics(group, codec)
            ),
            "all": lambda group: old.memory_metrics(group, codec) | old.reply_metrics(group, codec),
        }
    return {"all": lambda group: memory_metrics(group, Texts(codec))}


def measured(source: Path, recorded_at: str) -> dict[str, Any]:
    """What the worker prints with the package in `source`."""
    env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, __file__, "--worker", recorded_at], env=env, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compared(before: Path | None, names: Sequence[str]) -> dict[str, Any]:
    here = Path(__file__).resolve().parents[1] / "src"
    result: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "groups.json"
            path.write_text(json.dumps(recorded(WORKLOADS[name])))
            result[name] = {"after": measured(here, str(path))}
            if before is not None:
                result[name]["before"] = measured(before / "src", str(path))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="folder of a checkout of cd1397a")
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append", help="default: all")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
    else:
        print(json.dumps(compared(options.before, options.workload or list(WORKLOADS)), indent=1))


if __name__ == "__main__":
    main()
