"""What is asked for, resolved to a configuration."""

from __future__ import annotations

from pathlib import Path

import palimpsest
from palimpsest.jobs.settings import Agent, evaluation_config, run_config


def test_a_recipe_that_reads_files_in_their_order_is_evaluated_on_synthetic_documents() -> None:
    config = evaluation_config(Agent("embedded", recipe="memagent-7b"), data="synthetic")
    assert (config.data.source, config.data.shuffle) == ("synthetic", True)
    assert not run_config("memagent-7b").data.shuffle


def test_a_training_goes_out_from_the_newest_checkpoint_of_a_run_it_names(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    small = {"train.prompts_per_step": 1, "train.group_size": 2, "train.optimizer_steps": 1, "train.steps": 1}
    budgets = {f"policy.options.{name}": 8 for name in ("memory_tokens", "answer_tokens")}
    changes = {"model.path": str(tiny_model_folder), "policy.options.question_tokens": 64, **small, **budgets}
    run = palimpsest.train("memagent-quickstart", changes, out=tmp_path / "first", quiet=True)
    assert run_config("memagent-quickstart", {"model.path": str(run.folder)}).model.path == str(run.checkpoint)
