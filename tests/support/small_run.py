"""Overrides of runs that take seconds on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def small_run(model: Path, **changes: Any) -> dict[str, Any]:
    """Overrides of memagent-quickstart; `changes` name keys of `train`."""
    return {
        "model.path": str(model),
        "data.curriculum": None,
        "data.synthetic.chunks": 2,
        "data.synthetic.starts": None,  # its facts are longer than these memories
        "policy.options": {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8},
        "train": {"max_steps": 2, "batch_size": 1, "num_minibatches": 1, "group_size": 2, "save_steps": 1} | changes,
        "logging.report_to": ["jsonl"],
    }


def small_evaluation(model: Path, out: Path, chunks: str = "2") -> list[str]:
    """`palimpsest eval` of four documents per length, as words of a command."""
    budgets = ["chunk_size=64", "memory_tokens=8", "question_tokens=64", "answer_tokens=8"]
    return ["eval", str(model), "--chunks", chunks, "--limit", "4", "--no-baselines", *budgets, "--out", str(out)]
