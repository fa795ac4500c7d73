"""Episodes in the forms of other tools, a JSON object per line: Harbor's ATIF-v1.7, and traces of verifiers 0.4.

ATIF (Agent Trajectory Interchange Format):

    step of source user     text that the next prompt has after the one before; the whole prompt after an edit of the
                            context, with `extra.segment`
    step of source agent    a reply, with prompt and reply ids and log-probabilities in `metrics`, and in `extra` the
                            turn's name, role and events; those before the first reply are in the root's `extra`

Traces, which `read_episodes` of verifiers reads; their branches are the segments (rollout/segments.py):

    node without parent     the first prompt, and each that does not continue the one before
    node `sampled`          a reply: its ids, all trainable, and their log-probabilities
    other nodes             what the next prompt adds

Guaranteed: the same record gives the same bytes; every sampled token is in one step and in one node. A reader that
replays ATIF's steps gets the text of one segment; the ids of each reply hold for all.
Not covered: calls as `tool_calls`: they are part of the replies' text. Prompts of long documents make long lines.
verifiers rounds log-probabilities to four decimals when it writes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from palimpsest._version import __version__
from palimpsest.text.codec import Codec
from palimpsest.text.json_text import storable
from palimpsest.types import Group, Trajectory, Turn

VERSION = "ATIF-v1.7"
EpisodeForm = Callable[[Group, int, Codec, str], dict[str, Any]]
"""(group, index of the episode, codec, name of the model) -> an episode in a form of another tool."""


def atif(group: Group, index: int, codec: Codec, model: str) -> dict[str, Any]:
    """Episode `index` of a group."""
    trajectory, grade = group.trajectories[index], group.grades[index]
    steps = [{"step_id": number, **step} for number, step in enumerate(_steps(trajectory, codec), 1)]
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
        "extra": {
            "outcome": trajectory.outcome.value,
            "answer": trajectory.answer,
            "problem": group.problem.id,
            "reward": grade.value,
            "reason": grade.reason,
            "breakdown": dict(grade.breakdown),
            "events": _events(trajectory, 0),
        },
    }
    stored: dict[str, Any] = storable(made, [])
    return stored


def added(trajectory: Trajectory) -> Iterator[tuple[Turn, tuple[int, ...], bool]]:
    """Each turn with the ids that its prompt adds to the turn before, and whether it continues that one."""
    before = tuple[int, ...]()
    for index, turn in enumerate(trajectory.turns):
        follows = index > 0 and turn.prompt_ids[: len(before)] == before
        yield turn, turn.prompt_ids[len(before) :] if follows else turn.prompt_ids, follows
        before = (*turn.prompt_ids, *turn.completion.token_ids)


def _steps(trajectory: Trajectory, codec: Codec) -> Iterator[dict[str, Any]]:
    segment = -1
    for turn, new, follows in added(trajectory):
        segment += not follows
        yield {"source": "user", "message": codec.decode(new), "extra": {"segment": segment}}
        yield {"source": "agent", **_reply(trajectory, turn, codec)}


def _reply(trajectory: Trajectory, turn: Turn, codec: Codec) -> dict[str, Any]:
    completion = turn.completion
    metrics = {
        "prompt_tokens": len(turn.prompt_ids),
        "completion_tokens": len(completion.token_ids),
        "prompt_token_ids": list(turn.prompt_ids),
        "completion_token_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
    }
    extra = {
        "turn": turn.name,
        "role": turn.role,
        "stop_reason": completion.stop_reason.value,
        "events": _events(trajectory, turn.step + 1),
    }
    text = codec.decode(completion.token_ids, control=False)
    return {"message": text, "metrics": metrics, "llm_call_count": 1, "extra": extra}


def _events(trajectory: Trajectory, before_turn: int) -> list[dict[str, Any]]:
    happened = (event for event in trajectory.events if event.before_turn == before_turn)
    return [{"kind": event.kind, **event.detail} for event in happened]


# ---- Traces of verifiers -------------------------------------------------------------------------------------


TRACES = "traces.jsonl"
"""The name that verifiers reads."""
TRACE_VERSION = 1


def verifiers_episode(group: Group, index: int, codec: Codec, model: str) -> dict[str, Any]:
    """Episode `index` of a group, with its one trace."""
    trajectory, grade, problem = group.trajectories[index], group.grades[index], group.problem
    nodes, calls = list[dict[str, Any]](), list[dict[str, Any]]()
    for turn, new, follows in added(trajectory):
        message = {"role": "user", "content": codec.decode(new)}
        parent = len(nodes) - 1 if follows else None
        nodes.append({"parent": parent, "message": message, "token_ids": list(new), "mask": [False] * len(new)})
        ids = list(turn.completion.token_ids)
        reply = {"role": "assistant", "content": codec.decode(ids, control=False)}
        sampled = {"sampled": True, "mask": [True] * len(ids), "logprobs": list(turn.completion.logprobs)}
        nodes.append({"parent": len(nodes) - 1, "message": reply, "token_ids": ids, **sampled})
        usage = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(ids)}
        reason = turn.completion.stop_reason.value
        calls.append({"node": len(nodes) - 1, "model": model, "finish_reason": reason, "usage": usage})
    about = {"id": problem.id, "prompt": problem.question, "answers": list(problem.answers)}
    task = {"type": "palimpsest", "data": about}
    trace = {
        "version": TRACE_VERSION,
        "task": task,
        "agent": {"config": {"model": model}, "name": "palimpsest"},
        "nodes": nodes,
        "calls": calls,
        "rewards": {"reward": {"score": grade.value}} if grade.graded else {},
        "metrics": dict(grade.breakdown),
        "info": {"answer": trajectory.answer, "reason": grade.reason},
        "is_completed": trajectory.outcome.gradable,
        "ok": grade.graded,
        "stop_condition": trajectory.outcome.value,
    }
    made = {"env": {"id": "palimpsest"}, "task": task, "group": {"id": trajectory.group_id}, "ok": grade.graded}
    stored: dict[str, Any] = storable({**made, "traces": [trace]}, [])
    return stored
