"""learner.json of another shape makes a checkpoint unusable, with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import OptimConfig
from palimpsest.engines.embedded.checkpoint_state import FACTS, CheckpointFacts, read_facts
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.errors import CheckpointError

WHOLE = {"format": 1, "version": 5, "grad_skipped": 2, "reference": None}


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
        *({key: value for key, value in WHOLE.items() if key != left_out} for left_out in WHOLE),
        WHOLE | {"more": 1},
        WHOLE | {"format": 3},
        WHOLE | {"format": "1"},
        WHOLE | {"version": "5"},
        WHOLE | {"version": -1},
        WHOLE | {"version": True},
        WHOLE | {"version": 5.0},
        WHOLE | {"grad_skipped": None},
        WHOLE | {"reference": 7},
    ],
)
def test_facts_of_another_shape_are_refused_by_their_file(tmp_path: Path, stored: Any) -> None:
    (tmp_path / FACTS).write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"learner\.json"):
        read_facts(tmp_path)


def test_a_checkpoint_with_such_facts_is_unusable(tmp_path: Path, tiny_model: Any) -> None:
    learner = ForestLearner(tiny_model, optim=OptimConfig())
    learner.save(tmp_path)
    learner.load(tmp_path)
    (tmp_path / "learner" / FACTS).write_text(json.dumps(WHOLE | {"version": "5"}))
    with pytest.raises(CheckpointError, match=r"version='5' is not a whole number from 0; use an older one"):
        learner.load(tmp_path)
