"""The tokens that a turn sampled: text, log-probability, whether they are trained, advantage.

The record holds the sampler's log-probability of each token that was drawn, nothing of those that weren't. So there is
no entropy here; `-logprob` is the surprise of a token, whose mean over many tokens estimates it. What the advantages
are, `advantage_is` says (view/advantages.py).
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from palimpsest.types import Turn
from palimpsest.view.opened import Opened


def token_view(opened: Opened, rollout: int, turn: int) -> dict[str, Any]:
    """What one turn sampled. Raises IndexError.

    `tokens` has a row for each: text ("" for a part of a character but the last), log-probability in nats, trained,
    advantage (None: ungraded, or not trained).
    """
    story = opened.story(rollout)
    sampled = turn_at(story.trajectory.turns, turn)
    given, grade = opened.advantages, opened.group.grades[rollout]
    completion = sampled.completion
    values = given.of_turn(rollout, turn, len(completion.token_ids))
    rows = zip(_texts(opened, completion.token_ids), completion.token_ids, completion.logprobs, values, strict=True)
    controls = opened.codec.control_ids
    return {
        "turn": turn,
        "tokens": [
            {
                "text": text,
                "id": id_,
                "logprob": logprob,
                "trained": sampled.trained,
                "advantage": value if sampled.trained else None,
                "control": id_ in controls,
            }
            for text, id_, logprob, value in rows
        ],
        "mean_logprob": fmean(completion.logprobs) if completion.logprobs else None,
        "advantage_is": given.what,
        "reward": grade.value,
        "reward_of_turn": grade.per_turn[turn] if grade.per_turn and turn < len(grade.per_turn) else None,
        "reward_of_spans": [
            {"start": one.start, "end": one.end, "value": one.value} for one in grade.spans if one.turn == turn
        ],
        "entropy": None,
        "note": "entropy is not recorded; the surprise of a token is -logprob",
    }


def turn_at(turns: tuple[Turn, ...], turn: int) -> Turn:
    """The turn of an index. Raises IndexError."""
    if not 0 <= turn < len(turns):
        raise IndexError(f"turn {turn}: the episode has {len(turns)}, counted from 0")
    return turns[turn]


def _texts(opened: Opened, ids: tuple[int, ...]) -> list[str]:
    """[T] text of each token; a character of several tokens stands at the last of them."""
    texts: list[str] = []
    open_ids: list[int] = []
    for id_ in ids:
        if id_ in opened.codec.control_ids:
            texts.append(opened.codec.decode([id_]))
            continue
        open_ids.append(id_)
        text = opened.texts.spelling.text(open_ids) if len(open_ids) > 1 else opened.texts.spelling.piece(id_)
        if text.endswith("\ufffd") and len(open_ids) < 4:
            texts.append("")
            continue
        texts.append(text)
        open_ids = []
    if open_ids and texts and not texts[-1]:
        texts[-1] = opened.texts.spelling.text(open_ids)
    return texts
