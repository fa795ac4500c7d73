"""Notes: every code has a text, is used, and comes with its values."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from string import Formatter

import pytest

from palimpsest.notes import NOTES, Note
from palimpsest.runs.jsonl_rows import read_rows
from support.fakes import small_config
from support.training import train

SOURCE = Path(__file__).resolve().parents[1] / "src" / "palimpsest"
USED = {
    code for path in SOURCE.rglob("*.py") for code in re.findall(r'[\[( {]"(\w+)"', path.read_text()) if code in NOTES
}


@pytest.mark.parametrize("code", NOTES)
def test_every_code_is_used_and_makes_a_line_of_its_values(code: str) -> None:
    assert code in USED
    fields = {name: spec for _, name, spec, _ in Formatter().parse(NOTES[code]) if name}
    note = Note(code, **{name: 12 if spec else "X" for name, spec in fields.items()})
    assert (note.code, set(note.values)) == (code, set(fields))
    assert "\n" not in note
    assert "{" not in note


def test_a_note_keeps_code_and_values_in_copies_and_other_processes() -> None:
    note = Note("curriculum_grows", step=3, before=1, after=2)
    for other in (copy.deepcopy(note), pickle.loads(pickle.dumps(note))):
        assert (other, other.code, other.values) == (note, note.code, note.values)
    assert note.to_json() == {"code": note.code, "values": {"step": 3, "before": 1, "after": 2}, "text": str(note)}


def test_the_events_of_a_run_hold_code_and_values_of_its_warnings(tmp_path: Path) -> None:
    train(tmp_path, small_config(max_steps=2))
    train(tmp_path, small_config(max_steps=4, episode_timeout_s=9.0), resume=True)
    (event,) = [row for row in read_rows(tmp_path / "events.jsonl") if row.get("code") == "config_changed_later"]
    assert event["values"] == {"change": "train.episode_timeout_s: None -> 9.0"}
    assert event["message"] == Note(event["code"], **event["values"])
