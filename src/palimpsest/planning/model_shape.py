"""Shape of a decoder from its config.json, and its weights per part, without torch.

Guaranteed: exact for Llama, Mistral, Qwen2 and Qwen3; with weights on disk, the sum is exact for every model.
Not covered: mixtures of experts and recurrent layers, which count as dense attention layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.config.engine import named
from palimpsest.config.load import load_recipe, recipe_names
from palimpsest.errors import ModelError
from palimpsest.models.model_files import ADAPTER_SETTINGS, check_count, check_weights, count, read_object, sections
from palimpsest.models.model_folder import local_folder


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder."""

    layers: int
    width: int
    query: int
    """Heads times head size; `kv` is the same for keys."""
    kv: int
    inner: int
    vocab: int
    tied: bool
    extra: int
    """Biases and norms of a layer, next to its matrices."""
    kv_heads: int = 8
    weights: int | None = None
    """Weights in the model's files; None: computed."""

    @property
    def layer(self) -> int:
        """Weights of one layer."""
        return 2 * self.width * (self.query + self.kv) + 3 * self.width * self.inner + self.extra

    @property
    def head(self) -> int:
        """Weights of the output projection; the embeddings have as many."""
        return self.vocab * self.width

    @property
    def embeddings(self) -> int:
        return self.head * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All weights.

        >>> KNOWN["Qwen/Qwen2.5-7B-Instruct"].parameters
        7615616512
        """
        return self.weights or self.embeddings + self.layers * self.layer + self.width

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values per token, in bfloat16."""
        return 4 * self.layers * self.kv


KNOWN = {
    "Qwen/Qwen2.5-3B-Instruct": ModelShape(36, 2048, 2048, 256, 11_008, 151_936, True, 6656, 2),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(28, 3584, 3584, 512, 18_944, 152_064, False, 11_776, 4),
    "Qwen/Qwen2.5-14B-Instruct": ModelShape(48, 5120, 5120, 1024, 13_824, 152_064, False, 17_408),
    "Qwen/Qwen3-4B": ModelShape(36, 2560, 4096, 1024, 9728, 151_936, True, 5376),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelShape(30, 576, 576, 192, 1536, 49_152, True, 1152, 3),
}
"""Models of the recipes, from their config.json on the hub."""
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_RUN = re.compile(r"runs/([\w.-]+)-seed\d+")


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
            raise ModelError(
                f"model {path}: its shape is unknown: download it (hf download {path}), or set model.path to a folder"
            )
        folder = found
    if base := read_object(path, folder / ADAPTER_SETTINGS).get("base_model_name_or_path"):
        return shape_of(str(base))
    shape = shape_from(read_object(path, folder / "config.json"), path)
    return replace(shape, weights=count(check_weights(path, folder))) if [*folder.glob("*.safetensors")] else shape


def shape_from(config: Mapping[str, Any], name: str) -> ModelShape:
    """Shape from a config.json, or from its text model's section. Raises ModelError for missing or invalid sizes."""
    found = next((section for _, section in sections(config) if "num_hidden_layers" in section), {})
    for key in (*_SIZES, "head_dim", "num_key_value_heads"):
        check_count(name, key, found.get(key))
        if key in _SIZES and found.get(key) is None:
            raise ModelError(f"model {name}: config.json lacks {key} of a decoder")
    layers, width, heads, inner, vocab = (found[key] for key in _SIZES)
    size, kv_heads = found.get("head_dim") or width // heads, found.get("num_key_value_heads") or heads
    kind, into = found.get("model_type"), size * (heads + 2 * kv_heads)
    extra = 2 * width + (2 * size if kind == "qwen3" else 0)  # norms
    extra += into if kind == "qwen2" else into + width if found.get("attention_bias") else 0
    extra += 2 * inner + width if found.get("mlp_bias") else 0
    tied = bool(config.get("tie_word_embeddings", found.get("tie_word_embeddings", False)))
    return ModelShape(layers, width, size * heads, size * kv_heads, inner, vocab, tied, extra, kv_heads)
