"""Copies of the packaged model with other contents under the same names and sizes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from palimpsest.config.engine import model_path
from palimpsest.config.schema import ModelConfig

END = 1 << 20  # bytes at either end of the file that stay


def copied_base(folder: Path) -> Path:
    shutil.copytree(model_path(ModelConfig()), folder)
    return folder


def change_the_middle(model: Path) -> None:
    """Zero each tensor between the first and the last MiB."""
    file = model / "model.safetensors"
    before = file.read_bytes()
    tensors = load_file(file)
    header = 8 + int.from_bytes(before[:8], "little")
    for tensor in tensors.values():
        at = before.find(tensor.tobytes()[:4096], header)
        if at >= END and at + tensor.nbytes <= len(before) - END:
            tensor[...] = np.zeros_like(tensor)
    save_file(tensors, file, metadata={"format": "pt"})
    after = file.read_bytes()
    assert len(after) == len(before)
    assert (after[:END], after[-END:]) == (before[:END], before[-END:])
    assert after != before


def rewrite_template(model: Path) -> None:
    _replace(model / "chat_template.jinja", "message['role']", "message['role'][::1]")


def scale_positions(model: Path) -> None:
    _replace(model / "config.json", '"rope_theta": 10000.0', '"rope_theta": 20000.0')


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
