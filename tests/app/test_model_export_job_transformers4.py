"""Exports give the same logits, ids and conversations in transformers 4.57 ($PALIMPSEST_TRANSFORMERS4_PYTHON)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, Qwen2Config

from palimpsest.app.model_card import OLDEST
from palimpsest.app.model_export_job import _add_older_layout, export
from support.architectures import CASES, SMALL, built, configured
from support.models import build_tokenizer

PYTHON = os.environ.get("PALIMPSEST_TRANSFORMERS4_PYTHON")
IDS = [3, 7, 11, 5, 9, 8, 20, 30, 40, 50] * 5
TEXT = "the pet of Boris <|box|>is a cat.<|im_end|> or"
CONVERSATION = [{"role": "user", "content": "the color?"}, {"role": "assistant", "content": "blue"}]
LATER = {"Ministral3", "Gemma4Text", "Afmoe", "Cwm", "NanoChat"}  # 4.57 doesn't have these classes
OTHER = {"Apertus"}  # 4.57 computes its activation with other rounding, whatever the layout
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SCALED: dict[str, tuple[type, dict[str, Any]]] = {
    "theta": (Qwen2Config, {"rope_theta": 1e6}),
    "theta, tied": (Qwen2Config, {"rope_theta": 1e6, "tie_word_embeddings": True}),
    "yarn": (Qwen2Config, {"rope_theta": 1e6, "rope_scaling": YARN}),
    "yarn without its window": (Qwen2Config, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    "linear": (Qwen2Config, {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "dynamic": (Qwen2Config, {"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "llama3": (LlamaConfig, {"rope_theta": 5e5, "rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "neox": (GPTNeoXConfig, {"rotary_pct": 1.0, "rotary_emb_base": 1e6}),
}
SUPPORTED = sorted(name for name, case in CASES.items() if not case.refused)
COMMON = [name for name in SUPPORTED if name not in LATER | OTHER]
READ = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
logging.set_verbosity_error()
ids, text, conversation, *folders = json.loads(sys.stdin.read())
for folder in folders:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].tolist()
    read = tokenizer(text)["input_ids"]
    shown = tokenizer.decode(read, skip_special_tokens=True)
    chat = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    print(json.dumps([str(model.dtype), logits, read, shown, chat]))
"""


def in_old_layout(folder: Path, name: str) -> Path:
    """A model as transformers 4 saved it."""
    config, changes = SCALED[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tied = changes.get("tie_word_embeddings", False)
        AutoModelForCausalLM.from_config(config(**SMALL, tie_word_embeddings=tied)).save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text())
    del described["rope_parameters"], described["dtype"]
    (folder / "config.json").write_text(json.dumps(described | changes | {"torch_dtype": "float32"}))
    build_tokenizer().save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    kind = "Qwen2Tokenizer" if config is Qwen2Config else "PreTrainedTokenizerFast"
    old = {"tokenizer_class": kind, "additional_special_tokens": ["<|box|>"], "add_bos_token": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | old))
    return folder


def of_class(folder: Path, name: str) -> Path:
    """A model of a supported class, with another base of the rotary positions than its default."""
    built(name).float().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    rebase(folder / "config.json")
    return folder


def rebase(file: Path) -> None:
    def changed(described: dict[str, Any]) -> dict[str, Any]:
        return {key: value * 7 if key == "rope_theta" else value for key, value in described.items()}

    file.write_text(json.dumps(json.loads(file.read_text(), object_hook=changed)))


def read_by(python: str, *folders: Path) -> list[Any]:
    """Dtype, logits, ids, decoded text and rendered conversation of each folder."""
    request = json.dumps([IDS, TEXT, CONVERSATION, *map(str, folders)])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", READ], input=request, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_same(read: list[list[Any]]) -> None:
    (dtype, logits, *texts), *rest = read
    for other in rest:
        assert other[0] == dtype
        assert other[2:] == texts
        assert torch.allclose(torch.tensor(other[1]), torch.tensor(logits), atol=1e-4, rtol=1e-4)


def facts(described: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what an export may change."""
    changed = ("_name_or_path", "dtype", "transformers_version")
    return {k: facts(v) if isinstance(v, dict) else v for k, v in described.items() if k not in changed}


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_older_layout_changes_nothing_for_the_installed_transformers(name: str, tmp_path: Path) -> None:
    configured(name).save_pretrained(tmp_path)
    rebase(tmp_path / "config.json")
    before = facts(AutoConfig.from_pretrained(tmp_path).to_dict())
    _add_older_layout(tmp_path, None)
    after = facts(AutoConfig.from_pretrained(tmp_path).to_dict())
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_an_export_of_gpt_neox_has_the_names_of_its_older_class(share: float, tmp_path: Path) -> None:
    older: dict[str, Any] = {**SMALL, "rotary_pct": share, "rotary_emb_base": 5e4}
    GPTNeoXForCausalLM(GPTNeoXConfig(**older)).save_pretrained(tmp_path / "in")
    build_tokenizer().save_pretrained(tmp_path / "in")
    described = json.loads((export(tmp_path / "in", tmp_path / "out").path / "config.json").read_text())
    assert (described["rotary_pct"], described["rotary_emb_base"]) == (share, 5e4)
    read: Any = GPTNeoXConfig.from_pretrained(tmp_path / "out").rope_parameters
    assert (read["partial_rotary_factor"], read["rope_theta"]) == (share, 5e4)


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="no $PALIMPSEST_TRANSFORMERS4_PYTHON, a Python with transformers 4.57")
class TestInTransformers4:
    def test_the_version_is_the_one_that_the_card_names(self) -> None:
        words = [str(PYTHON), "-c", "import transformers; print(transformers.__version__)"]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == OLDEST

    @pytest.mark.parametrize("name", SCALED)
    def test_an_export_is_read_like_its_source(self, name: str, tmp_path: Path) -> None:
        source = in_old_layout(tmp_path / "source", name)
        exported = export(source, tmp_path / "out").path
        assert_same([*read_by(str(PYTHON), source, exported), *read_by(sys.executable, exported)])

    def test_an_export_of_an_export_too(self, tmp_path: Path) -> None:
        first = export(in_old_layout(tmp_path / "source", "yarn"), tmp_path / "first").path
        second = export(first, tmp_path / "second", dtype="bfloat16").path
        (_, _, *old), (_, _, *new) = read_by(str(PYTHON), first, second)
        assert old == new
        assert_same([*read_by(str(PYTHON), second), *read_by(sys.executable, second)])

    def test_every_supported_class_of_both_versions_gives_the_same_logits(self, tmp_path: Path) -> None:
        folders = [export(of_class(tmp_path / f"{name}-source", name), tmp_path / name).path for name in COMMON]
        for name, old, new in zip(
            COMMON, read_by(str(PYTHON), *folders), read_by(sys.executable, *folders), strict=True
        ):
            assert torch.allclose(torch.tensor(old[1]), torch.tensor(new[1]), atol=1e-4, rtol=1e-4), name
            assert old[2:] == new[2:], name
