"""Episodes as traces of verifiers 0.4 (`traces.jsonl`), which its `read_episodes` and prime-rl read.

    node without parent     the first prompt, and each that does not continue the one before: a new branch
    node `sampled`          a reply: its ids, all trainable, and their log-probabilities
    other nodes             what the next prompt adds

A trace's branches are the trajectory's segments (rollout/segments.py).

Not covered: messages of one prompt as several nodes; calls as `tool_calls`. verifiers rounds log-probabilities to four
decimals when it writes them again.
"""

from __future__ import annotations

from typing import Any

from palimpsest.text.codec import Codec
from palimpsest.text.json_text import storable
from palimpsest.types import Group
from palimpsest.viewer.export.atif import added

FILE = "traces.jsonl"
"""The name that verifiers reads."""
VERSION = 1


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
    graded, outcome = grade.value is not None, trajectory.outcome.value
    trace = {
        "version": VERSION,
        "task": task,
        "agent": {"config": {"model": model}, "name": "palimpsest"},
        "nodes": nodes,
        "calls": calls,
        "rewards": {"reward": {"score": grade.value}} if graded else {},
        "metrics": dict(grade.breakdown),
        "info": {"answer": trajectory.answer, "reason": grade.reason},
        "is_completed": trajectory.outcome.gradable,
        "ok": graded,
        "stop_condition": outcome,
    }
    made = {"env": {"id": "palimpsest"}, "task": task, "group": {"id": trajectory.group_id}, "ok": graded}
    stored: dict[str, Any] = storable({**made, "traces": [trace]}, [])
    return stored
