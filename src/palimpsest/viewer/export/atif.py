"""Episodes in Harbor's Agent Trajectory Interchange Format (ATIF-v1.7), a JSON object per line.

    step of source user     text that the next prompt has after the one before; the whole prompt after an edit of the
                            context, with `extra.segment`
    step of source agent    a reply, with prompt and reply ids and log-probabilities in `metrics`, and in `extra` the
                            turn's name, role and events

A reader that replays steps gets the text of one segment (rollout/segments.py); the ids of each reply hold for all.

Guaranteed: the same record gives the same bytes; every sampled token is in one step.
Not covered: calls as `tool_calls`: they are part of the replies' text. Prompts of long documents make long lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from palimpsest._version import __version__
from palimpsest.text.codec import Codec
from palimpsest.text.json_text import storable
from palimpsest.types import Group, Trajectory, Turn

VERSION = "ATIF-v1.7"


def atif(group: Group, index: int, codec: Codec, model: str) -> dict[str, Any]:
    """Episode `index` of a group."""
    trajectory, grade = group.trajectories[index], group.grades[index]
    steps = [{"step_id": number, **step} for number, step in enumerate(_steps(trajectory, codec), 1)]
    about = {"reward": grade.value, "reason": grade.reason, "breakdown": dict(grade.breakdown)}
    extra = {"outcome": trajectory.outcome.value, "answer": trajectory.answer, "problem": group.problem.id, **about}
    made = {
        "schema_version": VERSION,
        "session_id": trajectory.group_id,
        "trajectory_id": f"{trajectory.group_id}/{trajectory.rollout}",
        "agent": {"name": "palimpsest", "version": __version__, "model_name": model},
        "steps": steps or [{"step_id": 1, "source": "user", "message": group.problem.question}],
        "final_metrics": {
            "total_prompt_tokens": trajectory.prompt_tokens,
            "total_completion_tokens": trajectory.sampled_tokens,
            "total_steps": max(1, len(steps)),
        },
        "extra": extra,
    }
    stored: dict[str, Any] = storable(made, [])
    return stored


def _steps(trajectory: Trajectory, codec: Codec) -> Iterator[dict[str, Any]]:
    before, segment = tuple[int, ...](), 0
    for index, turn in enumerate(trajectory.turns):
        follows = index > 0 and turn.prompt_ids[: len(before)] == before
        segment += not follows and index > 0
        new = turn.prompt_ids[len(before) :] if follows else turn.prompt_ids
        yield {"source": "user", "message": codec.decode(new), "extra": {"segment": segment}}
        yield {"source": "agent", **_reply(trajectory, turn, codec)}
        before = (*turn.prompt_ids, *turn.completion.token_ids)


def _reply(trajectory: Trajectory, turn: Turn, codec: Codec) -> dict[str, Any]:
    completion = turn.completion
    happened = [event for event in trajectory.events if event.before_turn == turn.step + 1]
    events = [{"kind": event.kind, **event.detail} for event in happened]
    metrics = {
        "prompt_tokens": len(turn.prompt_ids),
        "completion_tokens": len(completion.token_ids),
        "prompt_token_ids": list(turn.prompt_ids),
        "completion_token_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
    }
    extra = {"turn": turn.name, "role": turn.role, "stop_reason": completion.stop_reason.value, "events": events}
    text = codec.decode(completion.token_ids, control=False)
    return {"message": text, "metrics": metrics, "llm_call_count": 1, "extra": extra}
