"""Which figures of an evaluation have published ones beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from palimpsest.app.evaluate.evaluation_plan import published_beside
from palimpsest.config.load import load_recipe


@pytest.mark.parametrize(("policy", "has_some"), [("overwrite", True), ("closed_book", False)])
def test_what_reads_no_document_has_no_published_figure_of_agents_beside_it(policy: str, has_some: bool) -> None:
    size = SimpleNamespace(size=50)
    summary = SimpleNamespace(name="eval_50", sizes=(size,), metrics={"sub_em": 0.5, "em": 0.5})
    row = SimpleNamespace(policy=policy, data="eval_50", summary=summary)
    evaluation: Any = SimpleNamespace(config=load_recipe("memagent-quickstart"), rows=(row,), samples=())
    assert bool(published_beside(cast(Any, evaluation))) is has_some
