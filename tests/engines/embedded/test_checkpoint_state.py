"""A learner.json of another shape makes a checkpoint unusable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.engines.embedded.checkpoint_state import FACTS, CheckpointFacts, read_facts

COMPLETE = {"format": 1, "version": 5, "grad_skipped": 2, "reference": None}


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    facts = CheckpointFacts(2, 5, 2, "digest")
    (tmp_path / FACTS).write_text(facts.to_json())
    assert read_facts(tmp_path) == facts


@pytest.mark.parametrize(
    "stored",
    [
        [],
        5,
        None,
        {},
        *({key: value for key, value in COMPLETE.items() if key != missing} for missing in COMPLETE),
        COMPLETE | {"more": 1},
        COMPLETE | {"format": 3},
        COMPLETE | {"format": "1"},
        COMPLETE | {"version": "5"},
        COMPLETE | {"version": -1},
        COMPLETE | {"version": True},
        COMPLETE | {"version": 5.0},
        COMPLETE | {"grad_skipped": None},
        COMPLETE | {"reference": 7},
    ],
)
def test_facts_of_another_shape_are_rejected_with_the_file(tmp_path: Path, stored: Any) -> None:
    (tmp_path / FACTS).write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"learner\.json"):
        read_facts(tmp_path)
