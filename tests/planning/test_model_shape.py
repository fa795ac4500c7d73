"""Shapes and counts of weights, against transformers' own models and the hub's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palimpsest.errors import ModelError
from palimpsest.planning.model_shape import KNOWN, shape_from, shape_of

SIZES = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("llama", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
        ("mistral", {"head_dim": 16}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 24}),
        ("qwen3", {"head_dim": 8, "attention_bias": True}),
    ],
)
def test_weights_are_those_of_the_model_that_transformers_builds(
    kind: str, more: dict[str, object], tied: bool, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, tie_word_embeddings=tied, **SIZES, **more)
    model = AutoModelForCausalLM.from_config(config)
    real = sum(weight.numel() for weight in model.parameters())
    config.save_pretrained(tmp_path)
    assert shape_from(json.loads((tmp_path / "config.json").read_text("utf-8")), "tiny").parameters == real
    model.save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    assert (shape.parameters, shape.weights) == (real, real)
    layer = sum(weight.numel() for name, weight in model.named_parameters() if ".layers.0." in name)
    assert shape.layer == layer


def test_known_shapes_have_the_weights_that_their_hub_pages_state() -> None:
    assert [shape.parameters for shape in KNOWN.values()] == [
        3_085_938_688,
        7_615_616_512,
        14_770_033_664,
        4_022_468_096,
        134_515_008,
    ]
    assert KNOWN["Qwen/Qwen2.5-7B-Instruct"].kv_bytes == 57_344  # 28 layers, 4 heads of 128, keys and values of 2 bytes


def test_a_shipped_recipes_run_before_its_start_has_the_recipes_model() -> None:
    assert shape_of("runs/memagent-14b-seed0") == KNOWN["Qwen/Qwen2.5-14B-Instruct"]


def test_an_adapter_has_the_shape_of_its_base(tmp_path: Path) -> None:
    settings = {"base_model_name_or_path": "Qwen/Qwen3-4B", "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    assert shape_of(str(tmp_path)) == KNOWN["Qwen/Qwen3-4B"]


@pytest.mark.parametrize("path", ["nobody/no-such-model-7b", "no-folder", "runs/other-seed0"])
def test_an_unknown_model_is_an_error_that_names_the_ways_out(path: str) -> None:
    with pytest.raises(ModelError, match=r"download it .*model\.path"):
        shape_of(path)


@pytest.mark.parametrize("value", [0, -2, 0.5, True, "8", [8], float("nan"), 10**30])
@pytest.mark.parametrize("key", [*SIZES, "head_dim"])
def test_a_size_that_is_none_is_an_error_that_names_it(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"config.json has {key}="):
        shape_from({**SIZES, key: value}, "tiny")


def test_a_config_without_sizes_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}')
    with pytest.raises(ModelError, match="hidden_size"):
        shape_of(str(tmp_path))
