"""Turn screen: the memory as a difference, the visible texts, and the sampled tokens.

Character offsets count Unicode code points of the accompanying text. Only this turn's pieces are decoded.

Not covered: entropy: the record has log-probabilities of sampled tokens only. `-logprob` is the surprise of a token;
its mean over many tokens estimates the entropy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from palimpsest.events import Event, MemoryUngrounded, of_type
from palimpsest.metrics.reading_trace import Text
from palimpsest.text.display_text import ordinal
from palimpsest.types import RESULT, Span, Turn
from palimpsest.viewer.analysis.episode_timeline import Story, TimelineStep, span_of
from palimpsest.viewer.analysis.event_labels import in_words, marks
from palimpsest.viewer.analysis.memory_diff import Dropped, MemoryDiff, WordOrigin, WordPiece
from palimpsest.viewer.screens.group_screen import Opened

# ---- The tokens that a turn sampled --------------------------------------------------------------------------


def token_view(opened: Opened, rollout: int, turn: int) -> dict[str, Any]:
    """The sampled tokens of a turn. Raises IndexError.

    `tokens` has one row per token: text ("" for all but the last part of a character), log-probability in nats,
    trained, advantage (None: ungraded, or not trained).
    """
    story = opened.story(rollout)
    sampled = turn_at(story.trajectory.turns, turn)
    advantages, grade = opened.advantages, opened.group.grades[rollout]
    completion = sampled.completion
    values = advantages.of_turn(rollout, turn, len(completion.token_ids))
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
        "advantage_is": advantages.what,
        "reward": grade.value,
        "reward_of_turn": grade.per_turn[turn] if grade.per_turn and turn < len(grade.per_turn) else None,
        "reward_of_spans": [
            {"start": one.start, "end": one.end, "value": one.value} for one in grade.spans if one.turn == turn
        ],
        "note": "the record lacks entropy; the surprise of a token is -logprob",
    }


def turn_at(turns: tuple[Turn, ...], turn: int) -> Turn:
    """The turn at an index. Raises IndexError."""
    if not 0 <= turn < len(turns):
        raise IndexError(f"turn {turn}: the episode has {len(turns)}, counted from 0")
    return turns[turn]


def _texts(opened: Opened, ids: tuple[int, ...]) -> list[str]:
    """[T] text of each token; the last of several tokens gets their common character."""
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


# ---- The turn screen -----------------------------------------------------------------------------------------


UNFOUNDED = "unfounded"
"""Origin of kept or moved words that an earlier turn hallucinated."""
_LONGEST = 20_000  # displayed tokens of a prompt without named pieces


def turn_view(opened: Opened, rollout: int, turn: int) -> dict[str, Any]:
    """The API's answer for a turn. Raises IndexError.

    `diff` (None if the turn may write no memory) lists the pieces in reading order, including dropped ones; a kept or
    moved piece has the origin `unfounded` if the turn `since` hallucinated it. `pieces` are the named pieces of the
    prompt, each with its evidence and the `spans` that the memory took, by index in `diff`. `invented` lists the
    sentences hallucinated in this turn, `unfounded` those of earlier turns that the memory still contains, `kept_out`
    the sentences that the policy's rule dropped, with the reason.
    """
    story = opened.story(rollout)
    this = turn_at(story.trajectory.turns, turn)
    sampled = this.completion.token_ids
    number = story.step_at.get(turn)
    step = None if number is None else story.steps[number]
    unfounded = opened.unfounded(rollout)
    diff, since = (None, ()) if number is None else unfounded.marked(number)
    invented = None if number is None else story.invented(number)
    return {
        "turn": turn,
        "turns": len(story.trajectory.turns),
        "name": this.name,
        "role": this.role,
        "trained": this.trained,
        "notes": {name: value for name, value in this.notes.items() if isinstance(value, str | int | float)},
        "marks": marks(story, turn),
        "stop_reason": this.completion.stop_reason.value,
        "policy_version": this.completion.policy_version,
        "prompt_tokens": len(this.prompt_ids),
        "sampled_tokens": len(sampled),
        "events": [{"kind": event.kind, "text": in_words(event)} for event in story.events_after[turn + 1]],
        "memory": None if step is None else _memory_value(story, step),
        "diff": None if diff is None else _part_values(diff, since),
        "counts": None if diff is None else _counts(diff, since),
        "invented": None if invented is None or step is None else _places(story.words(step.after).text, invented),
        "kept_out": _ungrounded(story.events_after[turn + 1]),
        "unfounded": [] if number is None else _held(story, number, unfounded.sentences(number)),
        "evidence": [] if step is None else _evidence(story, step.after),
        "pieces": list(_pieces(story, this, number, diff)),
        "reply": {"text": opened.codec.decode(sampled), "tokens": len(sampled)},
    }


def _ungrounded(happened: Sequence[Event]) -> list[dict[str, str]]:
    events = of_type(happened, MemoryUngrounded)
    return [
        {"text": unit, "reason": why}
        for event in events
        for unit, why in zip(event.dropped, event.reasons, strict=True)
    ]


def _memory_value(story: Story, step: TimelineStep) -> dict[str, Any]:
    return {
        "before": story.words(step.before).text,
        "after": story.words(step.after).text,
        "before_tokens": len(story.words(step.before).ids),
        "after_tokens": len(story.words(step.after).ids),
        "offset": step.offset,
    }


def _part_values(diff: MemoryDiff, since: Sequence[int | None]) -> list[dict[str, Any]]:
    turns = {id(piece): turn for piece, turn in zip(diff.pieces, since, strict=True)}
    return [_part_value(part, turns.get(id(part))) for part in diff.in_order]


def _part_value(part: WordPiece | Dropped, since: int | None) -> dict[str, Any]:
    if isinstance(part, Dropped):
        return {"origin": "dropped", "text": part.text, "tokens": list(part.tokens), "evidence": list(part.evidence)}
    source = part.source
    return {
        "origin": part.origin.value if since is None else UNFOUNDED,
        "since": since,
        "text": part.text,
        "tokens": list(part.tokens),
        "characters": list(part.characters),
        "source": None
        if source is None
        else {"name": source.name, "tokens": list(source.tokens), "characters": list(source.characters)},
    }


def _counts(diff: MemoryDiff, since: Sequence[int | None]) -> dict[str, int]:
    counts = Counter({UNFOUNDED: 0, **{origin.value: 0 for origin in WordOrigin}})
    for piece, turn in zip(diff.pieces, since, strict=True):
        counts[piece.origin.value if turn is None else UNFOUNDED] += piece.words[1] - piece.words[0]
    return {**counts, "dropped": sum(dropped.words[1] - dropped.words[0] for dropped in diff.dropped)}


def _places(text: str, sentences: Sequence[str]) -> list[dict[str, Any]]:
    rows, at = [], 0
    for sentence in sentences:
        start = text.find(sentence, at)
        at = max(at, start + len(sentence))
        rows.append({"text": sentence, "characters": [start, start + len(sentence)] if start >= 0 else None})
    return rows


def _held(story: Story, number: int, sentences: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    text = story.words(story.steps[number].after).text
    return [{**_places(text, [sentence])[0], "turn": turn} for sentence, turn in sentences]


def _evidence(story: Story, text: Text) -> list[dict[str, Any]]:
    shown = story.words(text).text
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(story.evidence):
        places = [span_of(form, shown) for form in one.forms] if one.in_text(text) else []
        rows += [{"number": number, "characters": list(span)} for span in places[:1] if span is not None]
    return rows


def _pieces(story: Story, turn: Turn, number: int | None, diff: MemoryDiff | None) -> Iterator[dict[str, Any]]:
    """The named pieces of a prompt except the memory before; the available prompt text if it names none."""
    sight = dict(story.sight(number)) if number is not None else {}
    if "memory" in turn.spans and number is None:
        sight["memory"] = story.texts.of(turn.piece("memory") or ())
    for name, (start, end) in turn.spans.items():
        if name != "memory":
            sight.setdefault(name, story.texts.of(turn.prompt_ids[start:end]))
    if not turn.spans and "section" not in sight:
        sight["prompt"] = story.texts.of(turn.prompt_ids[:_LONGEST])
    for name, text in sorted(sight.items(), key=lambda it: _rank(it[0], turn)):
        words = story.words(text)
        yield {
            "name": name,
            "label": _label(name, turn),
            "text": words.text,
            "tokens": len(words.ids),
            "spans": [] if diff is None else _taken(diff, name),
            "evidence": _evidence(story, text),
            "whole": name != "prompt" or len(turn.prompt_ids) <= _LONGEST,
        }


def _rank(name: str, turn: Turn) -> tuple[int, int]:
    """Sort key: texts read come first, the question last; newest tool results first."""
    order = {"section": 0, "document": 1, "memory": 2, "recalled": 3, "question": 9}
    start: Span = turn.spans.get(name, (0, 0))
    return (order.get(name, 4), -start[0])


def _label(name: str, turn: Turn) -> str:
    if name.startswith(RESULT):
        return f"Result {name.removeprefix(RESULT)}"
    chunk = turn.notes.get("chunk")
    if name == "section":
        return "Section" if chunk is None else f"Section {ordinal(chunk)}"
    return {"recalled": "Recalled memory", "prompt": "Prompt"}.get(name, name.replace("_", " ").capitalize())


def _taken(diff: MemoryDiff, name: str) -> list[dict[str, Any]]:
    """Positions in a piece of words that the memory took, with their number in `diff`; in the piece's order."""
    rows = [
        {"characters": list(part.source.characters), "tokens": list(part.source.tokens), "part": number}
        for number, part in enumerate(diff.in_order)
        if isinstance(part, WordPiece) and part.source is not None and part.source.name == name
    ]
    return sorted(rows, key=lambda it: it["characters"])
