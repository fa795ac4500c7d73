"""What would keep a checkpoint from being written is found before the first step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.engines.embedded.learner import check_savable
from palimpsest.errors import ModelError
from support.small_run import small_run


@pytest.mark.parametrize(
    ("wrong", "saved"),
    [
        ({"temperature": 0.6, "top_p": 0.9}, {"do_sample": True, "temperature": 0.6, "top_p": 0.9}),
        ({"length_penalty": 2.0, "num_beams": 1}, {}),
    ],
)
def test_a_generation_config_that_cannot_be_written_again_is_mended_before_training(
    wrong: dict[str, Any], saved: dict[str, Any], tiny_model_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model_folder, tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "pad_token_id": 0, **wrong}))
    run = palimpsest.train("memagent-quickstart", small_run(model, max_steps=1), out=tmp_path / "run", quiet=True)
    written = json.loads((run.checkpoint / "generation_config.json").read_text())
    assert written.items() >= ({"eos_token_id": [2], "pad_token_id": 0} | saved).items()
    assert run.evaluate(chunks=2, limit=1, quiet=True).samples


@pytest.mark.parametrize("wrong", [{"cache_implementation": "nonsense"}, {"num_return_sequences": 4}])
def test_one_that_transformers_does_not_open_is_refused(
    wrong: dict[str, Any], tiny_model_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model_folder, tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ModelError, match="not loadable"):
        palimpsest.train("memagent-quickstart", small_run(model), out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_saved_is_refused_before_training(tiny_model: Any, tiny_tokenizer: Any) -> None:
    check_savable(tiny_model, tiny_tokenizer)

    class Unwritable:
        def save_pretrained(self, folder: str) -> None:
            raise OverflowError("too much\nof it")

    with pytest.raises(ModelError, match=r"model: not saveable \(OverflowError: too much of it\)"):
        check_savable(tiny_model, Unwritable())
