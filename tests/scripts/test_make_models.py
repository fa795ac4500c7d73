"""The base model inside the package, and the script that makes it: scripts/make_models.py."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from make_models import BaseModelConfig, train
from model_skills import Skills
from palimpsest.config.engine import model_path
from palimpsest.config.schema import ModelConfig
from palimpsest.data.synthetic.world import PEOPLE, RELATIONS
from palimpsest.text.codec import Codec
from support.facts import read_facts

STAGES = ("few_words", "all_words", "ambiguous", "mixture", "polish", "focus", "none", "about")
SIZE: dict[str, int] = {"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2}


def test_a_tiny_model_is_trained_from_nothing_and_loads(tmp_path: Path) -> None:
    steps = {f"{stage}_steps": 2 for stage in STAGES}
    report = train(tmp_path / "made", BaseModelConfig(**SIZE, **steps))
    assert report["steps"] == 16
    assert report["not_learnt"] == ["ambiguous"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    ids = Codec.load(tmp_path / "made").encode(" Anna drinks")
    assert model(torch.tensor([ids])).logits.isfinite().all()


def test_the_shipped_tokenizer_takes_any_text_and_knows_the_world_word_by_word() -> None:
    codec = Codec.load(model_path(ModelConfig()))
    for text in ("naïve 你好 🎉\n\t\r\n x", "\x00", "</memory> <|im_end|> \\boxed{}", "a" * 5000):
        assert codec.decode(codec.encode(text)) == text
    for word in (*PEOPLE, *(value for relation in RELATIONS for value in relation.values)):
        assert len(codec.encode(" " + word)) == len(codec.encode(word)) == 1


def test_what_the_base_model_writes_does_not_depend_on_the_question(tiny_codec: Any) -> None:
    """Relevance is left to RL: the evidence is written no more often than any other fact on the page."""
    skills = Skills(tiny_codec)
    rng = random.Random(0)
    relevant = relevant_written = 0
    other_written = 0.0
    for _ in range(3000):
        example = skills.read(rng)
        prompt = tiny_codec.decode(example.prompt_ids)
        written = set(read_facts("- " + tiny_codec.decode(example.completion_ids)))
        question = prompt.split("Problem: ")[1].split("\n")[0]
        section, memory = prompt.split("Section:\n")[1].split("\n")[0], prompt.split("Memory:")[1].split("\n")[0]
        # Facts of the memory are left out: now and then memories are copied entirely.
        facts = set(read_facts(section)) - set(read_facts("- " + memory))
        named = {f for f in facts if next(r for r in RELATIONS if r.name == f[1]).question.format(s=f[0]) == question}
        if named and facts - named:  # compared within one page: the number of written facts depends on the page
            relevant += 1
            relevant_written += len(named & written)
            other_written += len((facts - named) & written) / len(facts - named)
    assert relevant > 300
    assert abs(relevant_written - other_written) / relevant < 0.06
