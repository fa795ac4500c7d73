"""What an agent had and wrote at each reading turn, from a trajectory alone.

Policies leave it in the record: the notes of a turn called "read" hold `memory` (text before), `recalled` (text in
sight, or None) and `section` ([start, end) in its prompt); an event `memory` after it holds ids and text of the memory
from there on, an event `recall` what its query found, an event `malformed` why its reply could not be read. Where whole
replies become the memory, readable or not, the event `memory` also holds the text between the tags as `update`.
For a policy that records none of it, as one whose whole reply is the next memory, the reply is the memory after.

Guaranteed: every reading turn has one `Reading`, in order, whatever else is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.text.codec import Codec
from palimpsest.types import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading turn."""

    turn: Turn
    memory_before: str
    memory_after: str
    memory_ids: tuple[int, ...]
    """The memory after, as it enters the next prompt."""
    update: str
    """What its reply gave as its update: the memory after, but where that is the whole reply."""
    changed: bool
    """Whether the turn wrote a memory; False where it left the old one as it was."""
    section: str | None
    """What was read, None where the turn doesn't say."""
    recalled: str
    """The recalled memory in its prompt, "" if there was none."""
    query: str | None
    """What its reply asked for."""
    found: str
    """What the query brought up for the next prompt, "" if nothing."""
    malformed: str | None
    """Why its reply could not be read."""
    gates: Mapping[str, bool] | None
    """`update` and `exit` where the agent decides on them."""


def readings(trajectory: Trajectory, codec: Codec) -> list[Reading]:
    """The reading turns of a trajectory."""
    after: dict[tuple[int, str], Mapping[str, Any]] = {
        (event.step - 1, event.kind): event.detail for event in trajectory.events
    }
    result: list[Reading] = []
    before = ""
    for turn in trajectory.turns:
        if turn.name != "read":
            continue
        reading = _reading(turn, before, after, codec)
        result.append(reading)
        before = reading.memory_after
    return result


def _reading(turn: Turn, before: str, after: Mapping[tuple[int, str], Mapping[str, Any]], codec: Codec) -> Reading:
    notes = turn.notes
    written, recall = after.get((turn.step, "memory")), after.get((turn.step, "recall"))
    kept = (turn.step, "empty_memory_kept") in after
    ids = codec.strip_stop(turn.completion.token_ids) if written is None else tuple(written["token_ids"])
    text = codec.decode(ids) if written is None else str(written["text"])
    before = str(notes.get("memory", before))
    span = notes.get("section")
    return Reading(
        turn=turn,
        memory_before=before,
        memory_after=before if kept else text,
        memory_ids=ids,
        update=text if written is None else str(written.get("update", text)),
        changed=not kept and (written is None or bool(written["changed"])),
        section=None if span is None else codec.decode(turn.prompt_ids[span[0] : span[1]]),
        recalled=str(notes.get("recalled") or ""),
        query=None if recall is None else str(recall["query"]),
        found=str((recall or {}).get("text") or ""),
        malformed=_reason(after.get((turn.step, "malformed"))),
        gates=after.get((turn.step, "gates")),
    )


def _reason(detail: Mapping[str, Any] | None) -> str | None:
    return None if detail is None else str(detail["reason"])
