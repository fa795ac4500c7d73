"""Replays turns on vLLM for rollout.py, under an interpreter that has vLLM. Imports nothing of palimpsest."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.update(
    OMP_NUM_THREADS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
)


def drive(engine: Any, plan: list[list[tuple[list[int], int]]], round_name: str) -> float:
    """Seconds until every turn is sampled; each turn starts right after the previous one of its episode."""
    from vllm import SamplingParams, TokensPrompt

    position = {}

    def add(episode: int, turn: int) -> None:
        prompt, length = plan[episode][turn]
        key = f"{round_name}-{episode}-{turn}"
        params = SamplingParams(
            temperature=1.0,
            max_tokens=length,
            min_tokens=length,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            seed=episode * 1000 + turn,
        )
        engine.add_request(key, TokensPrompt(prompt_token_ids=prompt), params)
        position[key] = (episode, turn)

    started = time.perf_counter()
    for episode in range(len(plan)):
        add(episode, 0)
    while position:
        for output in engine.step():
            if output.finished:
                episode, turn = position.pop(output.request_id)
                if turn + 1 < len(plan[episode]):
                    add(episode, turn + 1)
    return time.perf_counter() - started


def main() -> None:
    from vllm import LLM

    task = json.loads(sys.stdin.readline())
    engine = LLM(
        model=task["model"],
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=128,
        max_num_batched_tokens=8192,
        max_model_len=1024,
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
        distributed_executor_backend="uni",
        seed=0,
    ).llm_engine
    drive(engine, [episode[:2] for episode in task["plan"]], "warm")
    print(json.dumps({"seconds": 0.0}), flush=True)
    for number, _ in enumerate(sys.stdin):
        if not engine.reset_prefix_cache():
            raise RuntimeError("can't empty the prefix cache between rounds")
        print(json.dumps({"seconds": drive(engine, task["plan"], f"round{number}")}), flush=True)


if __name__ == "__main__":
    main()
