"""Tokens per second of the embedded sampler, transformers and vLLM on the same turns of one MemAgent-shaped batch.

    python benchmarks/rollout.py
    PALIMPSEST_VLLM_PYTHON=/opt/vllm/bin/python python benchmarks/rollout.py
    python benchmarks/rollout.py --recipe memagent-smollm2 --chunks 4 4 16 16 --group 4

64 episodes in groups of 16 read documents of 1 to 16 chunks (paragraphs, if the recipe has files); their turns stop
early, at different lengths. One run produces a plan: the turns of each episode as (prompt ids, completion length).
Every engine then replays the plan, a turn after the previous one of its episode, and samples exactly that many tokens
for each prompt.

Each engine has a separate process with one thread, and its fastest calling convention. Rounds alternate and the median
of each engine counts. Each has a warm-up; prefix caches are empty at the start of a round; log-probabilities are
requested from engines that support them. `ratio_transformers` is ours over the better of the two transformers paths;
without $PALIMPSEST_VLLM_PYTHON, the interpreter of an environment with vLLM, its figures are null.

Not covered: start-up of any engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from palimpsest.config.engine import PYTHON, model_path
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.file_source import build_source
from palimpsest.engines.embedded.compute import set_threads
from palimpsest.engines.embedded.model_loading import load_model
from palimpsest.engines.embedded.sampling.sampler import EmbeddedSampler
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.episode import play
from palimpsest.types import Problem, SamplingParams

Plan = Sequence[Sequence[tuple[Sequence[int], int]]]


# ---- engines: seconds of one round --------------------------------------------------------------------------------


def ours(model: Any, config: Any, plan: Plan) -> float:
    """The embedded sampler."""
    engine = config.engine
    sampler = EmbeddedSampler(
        model,
        max_num_seqs=engine.max_num_seqs,
        cache_tokens=engine.cache_tokens,
    )

    async def episode(index: int, turns: Sequence[tuple[Sequence[int], int]]) -> None:
        for turn, (prompt, length) in enumerate(turns):
            await sampler.generate(prompt, SamplingParams(max_tokens=length, seed=index * 1000 + turn))

    async def replay() -> None:
        await asyncio.gather(*(episode(i, turns) for i, turns in enumerate(plan)))

    started = time.perf_counter()
    asyncio.run(replay())
    return time.perf_counter() - started


def transformers_generate(model: Any, config: Any, plan: Plan) -> float:
    """`generate`, turn by turn: all episodes that still have a turn t form one left-padded batch."""

    def turn(batch: list[tuple[Sequence[int], int]]) -> None:
        width = max(len(p) for p, _ in batch)
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p, _ in batch])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in batch])
        longest = max(n for _, n in batch)
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=longest,
            min_new_tokens=longest,
            pad_token_id=0,
            eos_token_id=None,
        )

    with torch.inference_mode():
        started = time.perf_counter()
        for index in range(max(map(len, plan))):
            turn([episode[index] for episode in plan if len(episode) > index])
        return time.perf_counter() - started


def transformers_continuous(model: Any, config: Any, plan: Plan) -> float:
    """Continuous batching: the next turn of an episode starts right after the previous one."""
    longest = max(len(p) + n for episode in plan for p, n in episode)
    batching = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=2 * len(plan) * (longest // 32 + 1),
        max_batch_tokens=4096,
        return_logprobs=True,
        seed=0,
    )
    generation = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=64)
    before = model.config._attn_implementation
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching
    ) as manager:
        _drive_continuous(manager, [episode[:1] for episode in plan[:4]])
        started = time.perf_counter()
        _drive_continuous(manager, plan)
        seconds = time.perf_counter() - started
    model.set_attn_implementation(before)
    return seconds


def _drive_continuous(manager: Any, plan: Plan) -> None:
    position: dict[str, tuple[int, int]] = {}

    def add(episode: int, turn: int) -> None:
        prompt, length = plan[episode][turn]
        key = manager.add_request(input_ids=list(prompt), max_new_tokens=length)
        position[key] = (episode, turn)

    for episode in range(len(plan)):
        add(episode, 0)
    while position:
        result = manager.get_result(timeout=60)
        if result is None:
            raise RuntimeError("continuous batching stopped answering")
        if result.is_finished():
            episode, turn = position.pop(result.request_id)
            if turn + 1 < len(plan[episode]):
                add(episode, turn + 1)


ENGINES: dict[str, Callable[[Any, Any, Plan], float]] = {
    "ours": ours,
    "transformers": transformers_generate,
    "transformers_cb": transformers_continuous,
}


# ---- a process for each -------------------------------------------------------------------------------------------


@contextmanager
def worker(command: Sequence[str], task: Mapping[str, Any]) -> Iterator[Callable[[], float]]:
    """A process with a loaded, warm engine; each call runs the plan once and returns the seconds.

    It reads a line of JSON, its task, then an empty line per round, and answers each with a line of JSON.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def seconds(line: str = "") -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = next((said for said in process.stdout if said.startswith('{"')), None)  # libraries print, too
            if answer is None:
                raise RuntimeError(f"{' '.join(command)} ended without an answer")
            return float(json.loads(answer)["seconds"])

        try:
            seconds(json.dumps(task))
            yield seconds
        finally:
            process.kill()


def work(name: str) -> None:
    """The worker's side, for an engine of this interpreter."""
    task = json.loads(sys.stdin.readline())
    config, plan = RunConfig.model_validate(task["config"]), task["plan"]
    set_threads(1)
    model, engine = load_model(config.model).requires_grad_(False), ENGINES[name]
    if engine is not ours:
        model.set_attn_implementation("sdpa")  # transformers' own
    engine(model, config, [episode[:2] for episode in plan[:4]])
    print(json.dumps({"seconds": 0.0}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"seconds": engine(model, config, plan)}), flush=True)


# ---- the plan and its figures -------------------------------------------------------------------------------------


async def record(engine: Engine, config: Any, chunks: Sequence[int], group: int) -> Plan:
    """Run the batch with the recipe's policy; turns that stop early remain short."""
    policy = build_policy(config.policy)

    def drawn(step: int, count: int) -> Problem:
        data = config.data.model_copy(update={"documents": count if config.data.documents else None})
        return build_source(data, config.seed, split="train").problems(step=step, count=1, size=count)[0]

    async def episode(problem: Problem, number: int, rollout: int) -> list[tuple[list[int], int]]:
        trajectory = await play(
            problem,
            policy=policy,
            sampler=engine.sampler,
            codec=engine.codec,
            sampling=config.sampling,
            key=(config.seed, "bench"),
            group_id=str(number),
            rollout=rollout,
        )
        return [(list(turn.prompt_ids), len(turn.completion.token_ids)) for turn in trajectory.turns]

    problems = [drawn(step, count) for step, count in enumerate(chunks)]
    return await asyncio.gather(*(episode(p, n, r) for n, p in enumerate(problems) for r in range(group)))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    named = {"model.path": options.model, "policy.options.layout": options.layout}
    config = load_recipe(options.recipe, {key: value for key, value in named.items() if value is not None})
    plan = asyncio.run(record(open_engine(config, objective=None), config, options.chunks, options.group))
    task = {"config": config.model_dump(mode="json"), "model": model_path(config.model), "plan": plan}
    commands = {name: [sys.executable, __file__, "--worker", name] for name in ENGINES}
    if python := os.environ.get(PYTHON):
        commands["vllm"] = [python, str(Path(__file__).with_name("vllm_worker.py"))]
    rounds: dict[str, list[float]] = {name: [] for name in commands}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(worker(command, task)) for name, command in commands.items()}
        for _ in range(options.rounds):
            for name, play_round in workers.items():
                rounds[name].append(play_round())
    return figures(plan, {name: statistics.median(each) for name, each in rounds.items()})


def figures(plan: Plan, seconds: Mapping[str, float]) -> dict[str, Any]:
    tokens = sum(length for turns in plan for _, length in turns)
    result: dict[str, Any] = {"episodes": len(plan), "turns": sum(map(len, plan)), "sampled_tokens": tokens}
    for name in (*ENGINES, "vllm"):
        result[f"{name}_tokens_per_s"] = tokens / seconds[name] if name in seconds else None
    better = min(seconds["transformers"], seconds["transformers_cb"])
    result["ratio_transformers"] = better / seconds["ours"]
    result["ratio_vllm"] = seconds["vllm"] / seconds["ours"] if "vllm" in seconds else None
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="memagent-quickstart")
    parser.add_argument("--model", help="default: the recipe's")
    parser.add_argument("--layout", choices=["memory_first", "section_first"], help="default: the recipe's")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 6, 11, 16], help="of each group's document")
    parser.add_argument("--group", type=int, default=16, help="episodes per document")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=list(ENGINES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
    else:
        print(json.dumps(measured(options), indent=1))


if __name__ == "__main__":
    main()
