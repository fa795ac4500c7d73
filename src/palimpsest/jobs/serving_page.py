"""An episode that a server keeps, as one page of the viewer, which opens without a server."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import DataError
from palimpsest.rollout.record import encode_groups, trajectory_from_json
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Problem, Question
from palimpsest.view.answers import Answers
from palimpsest.view.export import MOST_BYTES, collect
from palimpsest.view.inline_page import single_page
from palimpsest.view.page_files import page_files
from palimpsest.view.sources import Library


def episode_page(record: Mapping[str, Any], codec: Codec) -> bytes:
    """The page of what the store keeps of an episode that has ended. Raises DataError for one beyond `MOST_BYTES`."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-view-") as made:  # readable by its owner alone
        tokenizer, path = Path(made) / "tokenizer", Path(made) / f"{record['id']}.jsonl.zst"
        tokenizer.mkdir()
        codec.save(tokenizer)
        path.write_bytes(encode_groups([_group(record)]))
        library = Library([path])
        (source,) = library.sources()
        found = collect(Answers(library, tokenizer=str(tokenizer)), source, [(0, 0)])
        page = single_page(page_files(), found.answers, f"{record['id']} · palimpsest").data
    if len(page) > MOST_BYTES:
        raise DataError(
            f"episode {record['id']}: its page would take {len(page) / 1e6:.1f} MB, {MOST_BYTES / 1e6:.0f} are the "
            "most; take its turns from /v1/episodes"
        )
    return page


def _group(record: Mapping[str, Any]) -> Group:
    """The episode alone, which nobody graded."""
    name, result = record["id"], record["result"]
    played = {"problem_id": name, "group_id": name, "rollout": 0, "events": [], "turns": record["turns"]}
    ended = {"outcome": result["outcome"], "answer": result["content"], "answers": result.get("answers", ())}
    problem = Problem.asking(name, [Question(each, ()) for each in record["questions"]])
    return Group(problem, (trajectory_from_json(played | ended),), (Grade(None, "served: nobody graded it"),))
