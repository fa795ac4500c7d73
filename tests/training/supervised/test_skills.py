"""Lessons of the base model: what is written stands in sight, whatever is asked, and what else might have been."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest
import torch

from palimpsest.base_model.pretraining import losses
from palimpsest.data.synthetic.world import read_fact
from palimpsest.training.supervised.skills import Example, Skills
from support.agents import base_codec

EMPTY = " none"


@cache
def skills() -> Skills:
    return Skills(base_codec())


def text(example: Example) -> tuple[str, str]:
    codec = base_codec()
    written = tuple(example.completion_ids)
    assert written[-1] in codec.stop_ids
    return codec.decode(example.prompt_ids), codec.decode(written[:-1])


def sentences(said: str) -> list[str]:
    return [f"{part}." for part in said.strip().removesuffix(".").split(". ")] if said != EMPTY else []


@pytest.mark.parametrize("skill", ["read_or_none", "about"])
def test_what_is_written_stands_in_sight(skill: str) -> None:
    rng = random.Random(0)
    empty = 0
    for _ in range(300):
        prompt, said = text(getattr(skills(), skill)(rng))
        empty += said == EMPTY
        assert all(sentence in prompt for sentence in sentences(said))
    assert 20 < empty < 200


def test_about_says_all_that_is_in_sight_of_the_name_and_nothing_else() -> None:
    rng = random.Random(1)
    for _ in range(300):
        prompt, said = text(skills().about(rng))
        name = prompt.split("Name: ")[1].split("\n")[0]
        memory = prompt.split("Memory:")[1].split("\n")[0].removeprefix(EMPTY)
        section = prompt.split("Section:\n-")[1].split("\n")[0]
        facts = [f"{part.strip()}." for part in f"{memory} {section}".split(".")]
        there = [fact for fact in facts if read_fact(fact) and fact.startswith(f"{name} ")]
        assert sorted(set(sentences(said))) == sorted(set(there)), prompt


def test_a_memory_to_answer_from_may_hold_eight_facts() -> None:
    rng = random.Random(2)
    counts = {text(skills().answer_long(rng))[0].split("Memory:")[1].count(".") for _ in range(300)}
    assert {1, 8} <= counts
    assert (
        max(text(skills().answer(rng))[0].split("Memory:")[1].count(".") for _ in range(100)) <= 4
    )  # and the prompt's


def test_choices_are_where_sentences_begin_and_hold_what_began() -> None:
    rng = random.Random(3)
    codec = base_codec()
    for _ in range(200):
        example = skills().read_or_none(rng)
        prompt, _ = text(example)
        starts = [0]
        for place, token in enumerate(example.completion_ids[:-2]):
            if codec.decode([token]).endswith("."):
                starts.append(place + 1)
        assert sorted(example.choices) == starts
        for place, allowed in example.choices.items():
            assert example.completion_ids[place] in allowed
            names = {codec.decode([token]) for token in allowed} - {EMPTY, codec.decode([skills().end])}
            assert all(f"{name} " in prompt for name in names)


def test_the_loss_of_choices_is_minus_log_of_their_mass_by_a_plain_loop() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    vocab = base_codec().vocab_size
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocab, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    ).double()
    rng = random.Random(4)
    examples = [skills().read_or_none(rng) for _ in range(3)]
    likelihood, choice = losses(model, examples)
    masses, trained = [], []
    for example in examples:
        ids = [*example.prompt_ids, *example.completion_ids]
        shares = model(torch.tensor([ids])).logits[0].detach().softmax(-1)
        before = len(example.prompt_ids) - 1
        trained += [-math.log(shares[before + i, token]) for i, token in enumerate(example.completion_ids)]
        for place, allowed in example.choices.items():
            masses.append(-math.log(sum(float(shares[before + place, token]) for token in allowed)))
    assert choice is not None
    assert choice.item() == pytest.approx(sum(masses) / len(masses), rel=1e-9)
    assert likelihood.item() == pytest.approx(sum(trained) / len(trained), rel=1e-9)
    assert losses(model, [skills().about(rng)])[1] is None
