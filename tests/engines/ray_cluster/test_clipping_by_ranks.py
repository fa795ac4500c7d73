"""The norm of gradients of which ranks hold shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clipped import clip_copies_that_differ, clip_divided
from support.processes import run_ranks


@pytest.mark.slow
def test_gradients_of_layers_that_ranks_divide_are_clipped_by_the_norm_of_all(tmp_path: Path) -> None:
    run_ranks(4, tmp_path, clip_divided)


@pytest.mark.slow
def test_ranks_whose_copies_of_a_gradient_differ_clip_by_one_norm_or_skip_together(tmp_path: Path) -> None:
    run_ranks(4, tmp_path, clip_copies_that_differ)
