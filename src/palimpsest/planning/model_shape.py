"""Shape of a decoder: sizes from config.json, weights counted in the headers of its files, or in transformers' class on
the meta device (seconds to import, no memory). Models of the recipes are known, so that their plans load neither.

Guaranteed: the number of weights is exact; a token uses `top_k / experts` of the experts' weights, all of the others;
the states of recurrent layers and of latent or shared attention are those of transformers' cache.
Not covered: sliding windows, which count as the whole context; states outside of the cache (RecurrentGemma, xLSTM).
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.engine import named
from palimpsest.config.load import load_recipe, recipe_names
from palimpsest.engines.protocol import state_bytes
from palimpsest.errors import ModelError
from palimpsest.models.model_files import (
    ADAPTER_SETTINGS,
    EXPERTS,
    LAYER,
    Shapes,
    check_count,
    check_full,
    check_weights,
    count,
    counts_in,
    read_object,
    refusing,
    sections,
)
from palimpsest.models.model_folder import local_folder


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder. `query` and `kv`: heads times head size; `head`: weights of the output projection, as many as
    of the embeddings; `layer`: those of the largest layer; `parameters`: all; `idle`: experts that a token doesn't use.
    """

    layers: int
    width: int
    query: int
    kv: int
    kv_heads: int
    head: int
    tied: bool
    layer: int
    parameters: int
    idle: int = 0
    state: int = 0
    """Elements of a sequence's recurrent states, which have one size."""
    cached: int | None = None
    """Elements of its keys and values per token; None: those of all heads in all layers."""
    apart: bool = False
    """The learner takes segments, since it can't compute a prefix forest of the class exactly."""

    @property
    def embeddings(self) -> int:
        return self.head * (1 if self.tied else 2)

    @property
    def body(self) -> int:
        """Weights that a token uses, without embeddings and output projection."""
        return self.parameters - self.embeddings - self.idle

    @property
    def inner(self) -> float:
        """Width of the three products behind a layer's attention, over the experts that a token uses."""
        return max(0.0, self.body / self.layers - 2 * self.width * (self.query + self.kv)) / (3 * self.width)

    @property
    def attending(self) -> int:
        """Layers with keys and values."""
        return round(self.kv_bytes / (4 * max(1, self.kv))) if self.state else self.layers

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values per token, in bfloat16."""
        return 2 * (2 * self.layers * self.kv if self.cached is None else self.cached)

    def flops(self, tokens: float, pairs: float) -> float:
        """FLOPs of the forward pass of `tokens`, which attend to `pairs` of tokens (rollout/token_costs.py)."""
        return 2 * (self.body + self.head) * tokens + 4 * self.attending * self.query * pairs

    def held(self, tokens: float, number: int = 2) -> float:
        """Bytes of a sequence's keys and values, of `number` bytes each, and of its states, in float32."""
        return tokens * self.kv_bytes * number / 2 + 4 * self.state


KNOWN = {
    "Qwen/Qwen2.5-3B-Instruct": ModelShape(36, 2048, 2048, 256, 2, 311_164_928, True, 77_076_992, 3_085_938_688),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(28, 3584, 3584, 512, 4, 544_997_376, False, 233_057_792, 7_615_616_512),
    "Qwen/Qwen2.5-14B-Instruct": ModelShape(48, 5120, 5120, 1024, 8, 778_567_680, False, 275_268_608, 14_770_033_664),
    "Qwen/Qwen3-0.6B": ModelShape(28, 1024, 2048, 1024, 8, 155_582_464, True, 15_730_944, 596_049_920),
    "Qwen/Qwen3-4B": ModelShape(36, 2560, 4096, 1024, 8, 388_956_160, True, 100_930_816, 4_022_468_096),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelShape(30, 576, 576, 192, 3, 28_311_552, True, 3_540_096, 134_515_008),
}
"""Models of the recipes, from their config.json on the hub."""
_RUN = re.compile(r"runs/([\w.-]+)-seed\d+")
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim", "qk_nope_head_dim", "qk_rope_head_dim")
_USED = ("num_experts_per_tok", "moe_k", "top_k_experts")
RECURRENT = re.compile("mamba|linear_|conv|state_size|attention_hidden")
"""Keys in the config.json of a model with recurrent layers."""
_OTHER_HEADS = re.compile("kv_lora|multi_query|kv_shared")
"""Those of one whose layers keep others than full heads of keys and values."""
_APART = re.compile(
    "bloom|codegen|deepseek_v32|doge|falcon|gemma2|gpt_neo$|gpt_oss|gptj|llama4|mpt|nemotron|recurrent|stablelm|vault"
    "|xlstm"
)
"""Values of `model_type` without an exact prefix forest, besides recurrent ones (docs/reference/models.md)."""
_ROUTED = re.compile(r"\bexperts\.|moe\.(?:in|out)put_linear\.")
"""Names of routed experts' weights; shared experts are others."""


def shape_of(path: str) -> ModelShape:
    """Shape of `model.path`: a folder, an adapter's base model, a cached or known hub id, or a shipped recipe's run
    before its start. Raises ModelError."""
    folder, run = Path(named(path)), _RUN.fullmatch(path)
    if not folder.is_dir():
        if run is not None and run[1] in recipe_names():
            return shape_of(load_recipe(run[1]).model.path)
        if path in KNOWN:
            return KNOWN[path]
        if (found := local_folder(path)) is None:
            fix = f"download it (hf download {path}), or set model.path to a folder"
            raise ModelError(f"model {path}: its shape is unknown: {fix}")
        folder = found
    if base := read_object(path, folder / ADAPTER_SETTINGS).get("base_model_name_or_path"):
        return shape_of(str(base))
    config = read_object(path, folder / "config.json")
    check_full(path, config)
    return shape_from(config, path, check_weights(path, folder) if [*folder.glob("*.safetensors")] else None)


def shape_from(config: Mapping[str, Any], name: str, weights: Shapes | None = None) -> ModelShape:
    """Shape from a config.json, or its text model's section, and its weights; None: those that transformers makes.

    Raises ModelError for missing or invalid sizes, and for a class that transformers doesn't have.
    """
    deque(counts_in(name, config), maxlen=0)
    found = next((section for _, section in sections(config) if all(section.get(key) for key in _SIZES)), None)
    state, cached = 0, None
    if found is None or weights is None or _is_computed(found):
        if not config.get("model_type"):
            raise ModelError(f"model {name}: config.json lacks model_type, or {', '.join(_SIZES)} of a decoder")
        found, made, state, cached = _built(config, name)
        weights = weights or made
    for key in (*_SIZES, *_OPTIONAL, *_USED):
        value = found.get(key)
        check_count(name, key, None if key in _USED and value == 0 else value)
    layers, width, heads, vocab = (found.get(key) or 0 for key in _SIZES)  # heads: none in a recurrent model
    size = (found.get("qk_nope_head_dim") or 0) + (found.get("qk_rope_head_dim") or 0)
    size, kv_heads = size or found.get("head_dim") or width // max(1, heads), found.get("num_key_value_heads") or heads
    used, experts = (next((found[key] for key in keys if found.get(key)), 1) for keys in (_USED, EXPERTS))
    check_count(name, "num_experts", experts)
    routed = count([shape for weight, shape in weights.items() if _ROUTED.search(weight)])
    idle = routed - routed * used // experts if used < experts else 0
    heads_apart = sum(shape == (vocab, width) for shape in weights.values()) > 1
    tied = bool(config.get("tie_word_embeddings", found.get("tie_word_embeddings", not heads_apart)))
    sizes = Counter[str]()  # by layer
    for weight, shape in weights.items():
        if place := LAYER.search(weight):
            sizes[weight[: place.end()]] += math.prod(shape)
    largest, total = max(sizes.values(), default=0), count(weights)
    queries, keys = size * heads, size * kv_heads
    head, cached = vocab * width, None if cached == 2 * layers * keys else cached
    apart = state > 0 or bool(_APART.match(str(found.get("model_type"))))
    return ModelShape(layers, width, queries, keys, kv_heads, head, tied, largest, total, idle, state, cached, apart)


def _is_computed(sizes: Mapping[str, Any]) -> bool:
    """True if transformers' cache decides what a sequence keeps: it has states, or others than full heads."""
    return any(RECURRENT.search(key) or _OTHER_HEADS.search(key) for key in sizes)


def _built(config: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], Shapes, int, int | None]:
    """Sizes of the text model by transformers' names, shapes of its weights, and `state` and `cached` of its shape."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    described = {key: value for key, value in config.items() if key != "auto_map"}
    with refusing(f"model {name}: transformers makes no decoder from its config.json"), torch.device("meta"):
        text = AutoConfig.for_model(**described).get_text_config()
        wide = {"attn_implementation": "eager", "dtype": torch.float32}
        model = AutoModelForCausalLM.from_config(text, trust_remote_code=False, **wide)
        own = text.to_dict()
        found = {name: own.get(key) for name, key in text.attribute_map.items()} | own
        found |= {key: getattr(text, key, None) for key in _SIZES}
        shapes = {weight: tuple(value.shape) for weight, value in model.named_parameters()}
        if not _is_computed(found):  # a forward pass takes most of the time
            return found, shapes, 0, None
        if model._can_set_experts_implementation():
            model.set_experts_implementation("batched_mm")  # others read the router's values
        with suppress(Exception), torch.no_grad():  # a forward pass that reads values, as GPT-2's
            state, cached = state_bytes(model, torch.zeros((1, 2), dtype=torch.long))
            return found, shapes, state // 4, cached // 4
        return found, shapes, 0, None
