"""Runs under an interpreter with TRL: a worker (worker.py) that trains its GRPOTrainer on a task's prompts.

A round is a whole training and answers with the best step's seconds. Imports nothing of palimpsest, so that the
environment needs TRL alone.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any


def measured(task: dict[str, Any]) -> float:
    """Seconds of the best step but the first, which warms up."""
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    count = len(task["texts"])
    config = GRPOConfig(
        output_dir=task["folder"],
        per_device_train_batch_size=count * task["group"],
        num_generations=task["group"],
        gradient_accumulation_steps=1,
        max_completion_length=task["tokens"],
        generation_kwargs={"min_new_tokens": task["tokens"]},
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-6,
        max_steps=task["steps"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        disable_tqdm=True,
    )
    stamps: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            stamps.append(time.perf_counter())

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            stamps.append(time.perf_counter())

    def reward(completions: list[str], **kwargs: Any) -> list[float]:
        return [float(i % 2) for i in range(len(completions))]

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32, trust_remote_code=False),
        processing_class=AutoTokenizer.from_pretrained(task["model"], trust_remote_code=False),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": task["texts"] * task["steps"]}),
        callbacks=[Clock()],
    )
    trainer.train()
    return min(after - before for before, after in pairwise(stamps[1:]))


if __name__ == "__main__":
    task = json.loads(sys.stdin.readline())
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"seconds": measured(task)}), flush=True)
