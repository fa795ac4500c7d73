"""Shapes and counts of weights, against transformers' own models and the hub's figures."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import ModelError
from palimpsest.planning.cost import operations
from palimpsest.planning.model_shape import KNOWN, ModelShape, shape_from, shape_of
from support.architectures import CASES, built, configured

SIZES = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32_000,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129_280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("config", "weights", "active"),
    [
        pytest.param(QWEN3_30B_A3B, 30_532_122_624, 3.35e9, marks=pytest.mark.slow),
        (MIXTRAL_8X7B, 46_702_792_704, 12.88e9),
        (DEEPSEEK_V3, 671_026_404_352, 37.55e9),
    ],
    ids=["qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"],
)
def test_all_experts_are_counted_and_the_used_ones_compute(
    config: dict[str, Any], weights: int, active: float, tmp_path: Path
) -> None:
    """The hub's figures; a folder with nothing but its config.json."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = shape_of(str(tmp_path))
    assert shape.parameters == weights
    assert shape.body + shape.embeddings == pytest.approx(active, rel=1e-3)


DECODERS = [name for name, case in CASES.items() if "encoder" not in case.refused and name not in ("Qwen2VL", "Gemma3")]


@cache
def tiny_shape(name: str) -> ModelShape:
    return shape_from(configured(name).to_dict(), name)


@pytest.mark.parametrize("name", DECODERS)
def test_every_class_has_the_weights_that_transformers_makes(name: str) -> None:
    from transformers import AutoModelForCausalLM

    config = configured(name)
    model = AutoModelForCausalLM.from_config(config)
    shape = tiny_shape(name)
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    layers = [weight for key, weight in model.named_parameters() if ".experts." in key]
    assert shape.idle == sum(weight.numel() for weight in layers) * (1 - used_share(config))


def used_share(config: Any) -> float:
    """Of a mixture's experts, those that a token uses."""
    names = {key: getattr(config, key, None) for key in ("num_local_experts", "num_experts", "n_routed_experts")}
    experts = next((number for number in names.values() if number), 1)
    return (getattr(config, "num_experts_per_tok", None) or 1) / experts


MIXTURES = ["Mixtral", "Qwen2Moe", "Qwen3Moe", "Phimoe", "GraniteMoe", "Glm4Moe", "DeepseekV3", "Ernie4_5_Moe"]


@pytest.mark.parametrize("name", MIXTURES)
def test_weights_on_disk_give_the_same_shape_as_the_configuration(name: str, tmp_path: Path) -> None:
    built(name).save_pretrained(tmp_path)
    stored = shape_of(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    made = shape_of(str(tmp_path))
    assert stored.parameters == pytest.approx(made.parameters, rel=1e-3)  # a router's counters are in the file alone
    assert replace(stored, parameters=0, layer=0) == replace(made, parameters=0, layer=0)
    assert stored.idle > 0


CACHED = [name for name in DECODERS if CASES[name].apart == "has layers of linear_attention"]
STATELESS = ["DeepseekV2", "DeepseekV32", "Falcon", "Gemma3nText", "Qwen3"]
CACHED += ["Rwkv", "FalconH1", "Lfm2", *STATELESS]


@pytest.mark.parametrize("name", CACHED)
def test_states_and_keys_of_a_sequence_are_those_of_transformers_cache(name: str, tmp_path: Path) -> None:
    """Of a sequence of 7 tokens on a CPU, in float64, by the shape of a stored model."""
    import torch

    from palimpsest.engines.protocol import state_of

    model = built(name)
    with torch.no_grad():
        _, cache = state_of(model(input_ids=torch.arange(7)[None], use_cache=True))
    model.save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    assert shape.state + 7 * shape.kv_bytes // 2 == elements(cache)
    assert (shape.state > 0) == (name not in STATELESS)


@pytest.mark.parametrize("name", DECODERS)
def test_classes_are_trained_by_segments_as_the_learner_does(name: str) -> None:
    shape = tiny_shape(name)
    assert shape.apart == (CASES[name].layout == "segments")
    assert operations(shape, 100) > operations(shape, 0) >= 0 or not shape.query or shape.state


@pytest.mark.parametrize("name", ["Gemma2", "Gemma3Text", "Cohere", "Starcoder2", "Qwen2"])
def test_embeddings_are_tied_where_the_weights_are_if_the_configuration_is_silent(name: str, tmp_path: Path) -> None:
    model = built(name)
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert shape_of(str(tmp_path)).tied == model.config.tie_word_embeddings


@pytest.mark.parametrize("stored", [True, False])
def test_quantised_weights_are_an_error(stored: bool, tmp_path: Path) -> None:
    built("Qwen2").save_pretrained(tmp_path)
    if not stored:
        (tmp_path / "model.safetensors").unlink()
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ModelError, match="quantised"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize("key", ["num_experts_per_tok", "num_local_experts"])
@pytest.mark.parametrize("value", ["2", [2], -2, 1.5, float("inf")])
def test_numbers_of_experts_that_are_none_are_errors_with_weights_too(key: str, value: object, tmp_path: Path) -> None:
    model = built("Mixtral")
    weights = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    with pytest.raises(ModelError, match=r"config\.json has num_"):
        shape_from({**model.config.to_dict(), key: value}, "tiny", weights)


def test_a_mixtures_class_without_experts_is_dense() -> None:
    """Granite 4's dense models have 0 of both."""
    config = configured("GraniteMoeHybrid").to_dict()
    assert shape_from({**config, "num_local_experts": 0, "num_experts_per_tok": 0}, "tiny").idle == 0


def elements(state: Any) -> int:
    """Numbers in all tensors of a cache."""
    import torch

    if isinstance(state, torch.Tensor):
        return state.numel() if state.ndim else 0
    if isinstance(state, list | tuple):
        return sum(map(elements, state))
    return sum(map(elements, (state if isinstance(state, dict) else getattr(state, "__dict__", {})).values()))


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
def test_parts_are_those_of_the_model_that_transformers_builds(
    kind: str, more: dict[str, object], tied: bool, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, tie_word_embeddings=tied, **SIZES, **more)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    assert shape == shape_from(json.loads((tmp_path / "config.json").read_text("utf-8")), "tiny")
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    weights = dict(model.named_parameters())
    assert shape.layer == sum(weight.numel() for name, weight in weights.items() if ".layers.0." in name)
    assert shape.embeddings == sum(weight.numel() for weight in weights.values() if weight.shape[0] == 320)
    assert (shape.query, shape.kv) == tuple(weights[f"model.layers.0.self_attn.{p}_proj.weight"].shape[0] for p in "qk")
    assert shape.inner == pytest.approx(80, rel=0.06)  # norms and biases are in it


def qwen(kind: str, tied: bool, *sizes: int, **more: int) -> dict[str, Any]:
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    return {
        "model_type": kind,
        "tie_word_embeddings": tied,
        **dict(zip((*keys, "vocab_size"), sizes, strict=True)),
        **more,
    }


HUB = {
    "Qwen/Qwen2.5-3B-Instruct": qwen("qwen2", True, 36, 2048, 16, 2, 11_008, 151_936),
    "Qwen/Qwen2.5-7B-Instruct": qwen("qwen2", False, 28, 3584, 28, 4, 18_944, 152_064),
    "Qwen/Qwen2.5-14B-Instruct": qwen("qwen2", False, 48, 5120, 40, 8, 13_824, 152_064),
    "Qwen/Qwen3-0.6B": qwen("qwen3", True, 28, 1024, 16, 8, 3072, 151_936, head_dim=128),
    "Qwen/Qwen3-4B": qwen("qwen3", True, 36, 2560, 32, 8, 9728, 151_936, head_dim=128),
    "HuggingFaceTB/SmolLM2-135M-Instruct": qwen("llama", True, 30, 576, 9, 3, 1536, 49_152),
}


OFTEN = ("Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M-Instruct")  # 28 layers take a second
KINDS = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in HUB]


@pytest.mark.parametrize("name", KINDS)
def test_a_known_shape_is_that_of_its_configuration_on_the_hub(name: str) -> None:
    assert shape_from(HUB[name], name) == KNOWN[name]


def test_known_shapes_have_the_weights_on_the_hub() -> None:
    assert KNOWN.keys() == HUB.keys()
    assert [shape.parameters for shape in KNOWN.values()] == [
        3_085_938_688,
        7_615_616_512,
        14_770_033_664,
        596_049_920,
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


@pytest.mark.parametrize("value", [0, -2, 0.5, True, "8", [0], float("nan"), 10**30])
@pytest.mark.parametrize("key", [*SIZES, "head_dim", "moe_intermediate_size"])
def test_a_size_that_is_none_is_an_error_that_names_it(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"config.json has {key}="):
        shape_from({"model_type": "llama", **SIZES, key: value}, "tiny")


@pytest.mark.parametrize("value", [2**16 + 1, 10**9, "8", True])
def test_a_number_of_experts_that_would_build_too_much_is_an_error(value: object) -> None:
    with pytest.raises(ModelError, match=r"config\.json has num_local_experts="):
        shape_from({**MIXTRAL_8X7B, "num_local_experts": value}, "tiny")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"num_hidden_layers": 2}, "hidden_size"),
        ({"model_type": "no_such_class", **SIZES}, "no_such_class"),
        ({"model_type": "t5", **SIZES}, "makes no decoder"),
        ({"model_type": "llama", **SIZES, "hidden_size": [48]}, "makes no decoder"),
    ],
)
def test_a_config_that_describes_no_decoder_is_an_error(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=reason):
        shape_of(str(tmp_path))


def test_a_dense_model_has_no_idle_weights() -> None:
    shape = ModelShape(2, 8, 8, 4, 2, head=80, tied=False, layer=100, parameters=360)
    assert (shape.idle, shape.embeddings, shape.body) == (0, 160, 200)
