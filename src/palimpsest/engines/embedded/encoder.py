"""Text to vectors with any Hugging Face encoder, for dense retrieval (retrieval/dense.py).

`PRESETS` are after the model cards of E5 (arXiv 2212.03533) and BGE (arXiv 2309.07597). Every vector is scaled to
length one.

Guaranteed: weights are read only from safetensors and no code from the folder runs; up to rounding, a text's vector
does not depend on its neighbours in the batch.
Not covered: use from several threads at once; encoders whose card asks for more than pooling (a projection, say).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from palimpsest.engines.embedded.model_loading import pick_device
from palimpsest.errors import ConfigError, ModelError, nearest
from palimpsest.models.model_files import refusing
from palimpsest.models.model_folder import open_model, open_tokenizer
from palimpsest.provenance import sha256s


@dataclass(frozen=True, slots=True)
class EncoderPreset:
    """Pooling and prefixes of an encoder."""

    pooling: Literal["mean", "first"] = "mean"
    query_prefix: str = ""
    passage_prefix: str = ""
    max_tokens: int = 512
    """Longer texts are cut at the end."""


PRESETS = {
    "e5": EncoderPreset("mean", "query: ", "passage: "),
    "bge": EncoderPreset("first", "Represent this sentence for searching relevant passages: "),
    "plain": EncoderPreset(),
}


def reading_of(encoder: str, preset: str = "auto", **changes: Any) -> EncoderPreset:
    """A preset, overridden by every value in `changes` other than None; `auto` chooses by the encoder's name.

    >>> reading_of("intfloat/e5-base-v2").query_prefix, reading_of("my/model", max_tokens=64).max_tokens
    ('query: ', 64)
    """
    if preset == "auto":
        name = Path(encoder).name.lower()
        preset = next((choice for choice in ("e5", "bge") if choice in name.replace("_", "-").split("-")), "plain")
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: choose auto, {', '.join(PRESETS)}{nearest(preset, PRESETS)}")
    return replace(PRESETS[preset], **{name: value for name, value in changes.items() if value is not None})


class TextEncoder:
    """A loaded encoder; `tools.dense.Encoder`."""

    def __init__(self, path: str, reading: EncoderPreset, *, device: str = "auto") -> None:
        """`path`: folder or hub id. Raises ModelError if it can't be used."""
        self._tokenizer, self._model, folder = _load(path)
        self._reading, self._device = reading, pick_device(device)
        self._model.to(self._device)
        window = getattr(self._model.config, "max_position_embeddings", reading.max_tokens)
        # RoBERTa's positions begin after the padding id
        offset = (self._model.config.pad_token_id or 0) + 1 if "roberta" in self._model.config.model_type else 0
        if reading.max_tokens > window - offset:
            raise ModelError(f"{path}: takes {window - offset} tokens, not {reading.max_tokens}; lower --max-tokens")
        files = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("tokenizer.json"))
        digest = hashlib.sha256("".join(sha256s(files)).encode()).hexdigest()
        self.identity = asdict(reading) | {"weights": digest}

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> np.ndarray:
        """[B, D] float32, each row of length one."""
        prefix = self._reading.query_prefix if kind == "query" else self._reading.passage_prefix
        batch = self._tokenizer(
            [prefix + text for text in texts],
            padding=True,
            truncation=True,
            max_length=self._reading.max_tokens,
            return_tensors="pt",
        ).to(self._device)
        hidden_B_T_D = self._model(**batch).last_hidden_state.float()
        if self._reading.pooling == "first":
            pooled_B_D = hidden_B_T_D[:, 0]
        else:
            mask_B_T_1 = batch["attention_mask"].unsqueeze(-1)
            pooled_B_D = (hidden_B_T_D * mask_B_T_1).sum(1) / mask_B_T_1.sum(1)
        vectors: np.ndarray = torch.nn.functional.normalize(pooled_B_D, dim=-1).cpu().numpy()
        return vectors


def _load(path: str) -> tuple[Any, Any, Path]:
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    loader: Any = AutoModel
    logging.disable_progress_bar()
    open_tokenizer(path)
    folder, _ = open_model(path)
    with refusing(f"--encoder {path}: not loadable"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        with torch.random.fork_rng():
            model, report = loader.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))  # which is not used
    if missing:  # transformers would use random numbers instead
        raise ModelError(f"--encoder {path}: weight {missing[0]} is missing; save the model again")
    tokenizer.padding_side = "right"  # the first token must be first
    return tokenizer, model.eval().requires_grad_(False), folder
