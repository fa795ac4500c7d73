"""The reference is written for every public module."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from api_docs import public_modules, write


@pytest.mark.slow
def test_every_public_module_has_a_page(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of constructors' annotations that are known in another module only
        write(tmp_path)
    pages = {str(path.relative_to(tmp_path).with_suffix("")).replace("/", ".") for path in tmp_path.rglob("*.html")}
    assert set(public_modules()) <= pages
    assert "segments_of" in (tmp_path / "palimpsest/rollout/segments.html").read_text("utf-8")
