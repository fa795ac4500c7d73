"""The model inside the package, and the recipe it was made by."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest

from palimpsest.base_model.pretraining import BaseModelConfig, Stage, skill_figures, train_base_model
from palimpsest.config.model import model_path
from palimpsest.config.schema import ModelConfig
from palimpsest.data.synthetic.world import PEOPLE, RELATIONS
from palimpsest.text.codec import Codec

FOLDER = Path(model_path(ModelConfig()))
TINY = BaseModelConfig(
    few_words_steps=2,
    all_words_steps=1,
    ambiguous_steps=2,
    mixture_steps=7,
    polish_steps=3,
    focus_steps=2,
    none_steps=2,
    about_steps=2,
    hidden_size=32,
    intermediate_size=64,
    layers=1,
    heads=2,
)


def test_it_copies_faithfully_and_answers_before_any_rl() -> None:
    figures = skill_figures("embedded", seed=1, count=256)
    assert figures["copy_fidelity_greedy"] >= 0.98
    assert figures["copy_fidelity_sampled"] >= 0.85  # at temperature 1 it names people who are not there
    assert figures["answer_accuracy"] >= 0.6


def test_it_is_a_small_ordinary_folder() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8 * 2**20
    assert {path.suffix for path in FOLDER.iterdir()} <= {".json", ".safetensors", ".jinja"}
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_its_tokenizer_takes_any_text_and_knows_the_world_word_by_word() -> None:
    codec = Codec.load(FOLDER)
    for text in ("naïve 你好 🎉\n\t\r\n x", "\x00", "</memory> <|im_end|> \\boxed{}", "a" * 5000):
        assert codec.decode(codec.encode(text)) == text
    for word in (*PEOPLE, *(value for relation in RELATIONS for value in relation.values)):
        assert len(codec.encode(" " + word)) == len(codec.encode(word)) == 1


def test_the_recipe_gives_the_same_weights_for_the_same_seed(tmp_path: Path) -> None:
    def weights(name: str, **changes: Any) -> str:
        train_base_model(tmp_path / name, dataclasses.replace(TINY, **changes))
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert weights("a") == weights("b")
    assert weights("a") != weights("c", seed=1)


def test_a_stage_ends_by_its_losses_or_its_steps() -> None:
    def stage(until: tuple[float, ...] | None) -> Stage:
        return Stage("ambiguous", 100, lambda _: 1e-3, lambda _: [], (0.5, 0.5), until)

    falling = [[2.0 - step / 50, 1.0] for step in range(100)]  # the mean of the last 50 losses falls below 1.2 at 66
    assert next(n for n in range(101) if stage((1.2, 1.5)).ended(falling[:n])) == 66
    assert not any(stage((1.2, 0.9)).ended(falling[:n]) for n in range(100))
    assert [n for n in range(101) if stage(None).ended(falling[:n])] == [100]
    assert not stage((1.2, 0.9)).learnt(falling), "at its limit of steps"
    assert stage((1.2, 1.5)).learnt(falling[:66])
    assert not stage((1.2, 1.5)).learnt(falling[:40]), "the mean is over 50 steps"


def test_what_was_not_learnt_within_its_steps_is_told(tmp_path: Path) -> None:
    assert train_base_model(tmp_path / "m", TINY)["not_learnt"] == ["ambiguous"]


@pytest.mark.slow
def test_the_recipe_learns_to_copy_random_words(tmp_path: Path) -> None:
    losses: list[float] = []
    others = ("all_words", "ambiguous", "mixture", "polish", "focus", "none", "about")
    config = BaseModelConfig(few_words_steps=240, **{f"{stage}_steps": 0 for stage in others})
    train_base_model(tmp_path / "m", config, lambda _step, _stage, loss: losses.append(loss[0]))
    assert losses[0] > 6
    assert min(losses[-20:]) < 3.0  # 64 words without copying: 4.2 nats
