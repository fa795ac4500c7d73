"""The same turns on other engines: transformers' `generate`, its continuous batching, and vLLM's CPU build.

A plan is a list of episodes, an episode a list of (prompt ids, completion length). Every engine gets the same prompts
and samples exactly that many tokens for each, so the work is equal; only the order in which a turn becomes
possible (after the one before it in its episode) is given. Each is called in the way that suits it best.

Covered: one warm-up of a few turns before the clock starts; log-probabilities of the sampled tokens are asked for
where an engine can give them.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Plan = Sequence[Sequence[tuple[Sequence[int], int]]]


def transformers_generate(model: Any, plan: Plan) -> float:
    """Seconds of `generate`, turn by turn: all episodes that still have a turn t form one left-padded batch."""
    import torch

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
        turn([episode[0] for episode in plan][:4])
        started = time.perf_counter()
        for index in range(max(map(len, plan))):
            turn([episode[index] for episode in plan if len(episode) > index])
        return time.perf_counter() - started


def transformers_continuous(model: Any, plan: Plan) -> float:
    """Seconds of continuous batching: the next turn of an episode is added as soon as the one before is done."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    longest = max(len(p) + n for episode in plan for p, n in episode)
    config = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=2 * len(plan) * (longest // 32 + 1),
        max_batch_tokens=4096,
        return_logprobs=True,
        seed=0,
    )
    generation = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=64)
    seconds = 0.0
    before = model.config._attn_implementation
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=config
    ) as manager:
        for part in ([episode[:1] for episode in plan[:4]], plan):
            started = time.perf_counter()
            _drive_continuous(manager, part)
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


def vllm(python: str, model_folder: str, plan: Plan, repeats: int = 1, timeout_s: float = 240.0) -> float:
    """Best seconds of vLLM in a process of its own, with the interpreter `python`; start-up is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps({"model": model_folder, "plan": plan, "repeats": repeats}))
        script = Path(__file__).with_name("vllm_worker.py")
        run = subprocess.run(
            [python, str(script), str(path)], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    lines = [line for line in run.stdout.splitlines() if line.startswith('{"seconds"')]
    if run.returncode or not lines:
        tail = (run.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"vLLM failed under {python}: {tail}")
    return float(json.loads(lines[-1])["seconds"])
