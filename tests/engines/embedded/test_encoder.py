"""Vectors of texts compared with a plain float64 computation."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from palimpsest.engines.embedded.encoder import PRESETS, EncoderPreset, TextEncoder, reading_of
from palimpsest.errors import ConfigError, ModelError
from support.models import bert_vector, save_bert
from support.records import one_line_error

WORDS = ("the", "capital", "of", "italy", "france", "is", "rome", "paris", "query", "passage", ":", "river")
TEXTS = ["rome is the capital of italy", "paris", "the river of france is the river of paris", ""]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"), WORDS)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", ["query", "passage"])
def test_vectors_equal_a_plain_float64_computation(bert: Path, preset: str, kind: Literal["query", "passage"]) -> None:
    reading = reading_of(str(bert), preset, max_tokens=32)
    vectors = TextEncoder(str(bert), reading, device="cpu").encode(TEXTS, kind)
    prefix = reading.query_prefix if kind == "query" else reading.passage_prefix
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(vector, bert_vector(bert, WORDS, prefix + text, reading.pooling), atol=2e-6)


def test_a_preset_is_taken_from_the_name_and_can_be_changed() -> None:
    assert reading_of("intfloat/e5-base-v2") == PRESETS["e5"] == EncoderPreset("mean", "query: ", "passage: ")
    assert reading_of("BAAI/bge-small-en-v1.5").pooling == "first"
    assert reading_of("models/me5a") == PRESETS["plain"]
    assert reading_of("x", "bge", query_prefix="", pooling="mean") == EncoderPreset()
    with pytest.raises(ConfigError, match=r"--preset bgge: choose .*did you mean bge"):
        reading_of("x", "bgge")


def test_an_unusable_encoder_is_rejected_in_one_line(bert: Path, tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "no tokenizer"), (bert, "takes 64 tokens, not 512")):
        assert reason in one_line_error(ModelError, TextEncoder, str(path), EncoderPreset(), device="cpu")
