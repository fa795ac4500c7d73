"""Another memory for a recorded episode: the reply that writes it, and which prompts show it.

Guaranteed: a text that says what was remembered, white space around it aside, changes nothing; an empty one is the
policy's own empty memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from palimpsest.errors import ConfigError
from palimpsest.events import Recalled, of_type
from palimpsest.jobs.replay_origin import Origin
from palimpsest.measures.texts import Texts
from palimpsest.measures.trace import readings
from palimpsest.memory.parts.tagged import TaggedPolicy
from palimpsest.memory.policy import Teachable
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, StopReason, Trajectory, Turn

_SHOWN = ("memory", "other_heads")
"""Pieces of a prompt that show memories."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What a turn is to remember."""

    text: str
    """With the space before it that the recorded memory has; "" for nothing."""
    ids: tuple[int, ...]
    """[T] as prompts show it."""
    reply: Completion
    """Of the turn before; no use at turn 0, before which there is none."""
    changes: bool
    """Whether it says something else than what was remembered."""

    def is_in(self, turn: Turn) -> bool:
        """Whether a prompt shows it; an empty one, where it is all that the memory is."""
        pieces = [ids for name in _SHOWN if (ids := turn.piece(name)) is not None]
        if not self.text:
            return any(ids in ((), self.ids) for ids in pieces)
        return any(holds(ids, self.ids) for ids in pieces)


def edited(memory: str, recorded: Trajectory, origin: Origin, turn: int, codec: Codec) -> Edit:
    """`memory` as what `turn` of a recorded episode is to remember. Raises ConfigError where it can't."""
    policy, name = origin.policy.teachable(), origin.config.policy.name
    known = _remembered(recorded, turn, codec)
    if policy is None or (turn == 0 and not origin.policy.takes_memory):
        raise ConfigError(f"--memory: {name} tells no form in which its memory could be written; leave it out")
    if turn and recorded.turns[turn - 1].piece("section") is None:
        raise ConfigError(f"--memory: the turn before {turn} writes no memory; give another --turn, or leave it out")
    empty = codec.encode(policy.texts.empty_memory)
    if memory.strip() == codec.decode(known).strip() or (not memory.strip() and list(known) == empty):
        text = "" if not memory.strip() else codec.decode(known)
        return Edit(text, tuple(known), recorded.turns[max(turn - 1, 0)].completion, changes=False)
    text = _as_written(memory, codec.decode(known)) if memory.strip() else ""
    if not text and turn == 0:
        return Edit(
            "", tuple(empty), recorded.turns[0].completion, changes=True
        )  # an episode without a memory begins so
    ids = codec.encode(text) if text else _nothing(policy, empty)
    return Edit(text, tuple(ids), _writing(ids, recorded, origin, policy, turn, codec), changes=True)


def holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    """Whether `part` stands in `ids` as it is.

    >>> holds((1, 2, 3), (2, 3)), holds((1, 2, 3), (1, 3))
    (True, False)
    """
    size = len(part)
    return any(tuple(ids[at : at + size]) == tuple(part) for at in range(len(ids) - size + 1))


def _remembered(recorded: Trajectory, turn: int, codec: Codec) -> Sequence[int]:
    """[T] what the turn before wrote, of several heads the one it rewrote; of turn 0 what it shows.

    Raises ConfigError.
    """
    piece = recorded.turns[turn].piece("memory")
    if piece is None:
        raise ConfigError(
            f"--memory: turn {turn} ({recorded.turns[turn].name}) shows no memory that could be changed; leave it out, "
            "or give another --turn"
        )
    if turn == 0:
        return piece
    before = recorded.turns[turn - 1]
    written = (each.written for each in readings(recorded, Texts(codec)) if each.turn is before)
    return next((text.ids or codec.encode(text.text) for text in written), piece)


def _as_written(memory: str, known: str) -> str:
    """`memory` with the space before it that the `known` one has, where it has none of its own.

    >>> _as_written("Anna", " none"), _as_written(" Anna", "none")
    (' Anna', ' Anna')
    """
    lead = known[: len(known) - len(known.lstrip())] if memory == memory.lstrip() else ""
    return lead + memory


def _nothing(policy: Teachable, empty: Sequence[int]) -> Sequence[int]:
    """[T] what stands for an empty memory: the policy's text for it, or nothing where that is longer than a memory.

    Raises ConfigError where an empty reply leaves the memory as it is.
    """
    if 0 < len(empty) <= policy.memory_tokens:
        return empty
    if policy.may_keep:
        raise ConfigError(
            "--memory is empty, and by policy.options.empty_memory=keep an empty reply leaves the memory as it is; "
            "give a text"
        )
    return ()


def _writing(
    ids: Sequence[int], recorded: Trajectory, origin: Origin, policy: Teachable, turn: int, codec: Codec
) -> Completion:
    """A reply of the turn before that writes `ids` in the policy's form. Raises ConfigError where they are too many."""
    if len(ids) > policy.memory_tokens:
        raise ConfigError(
            f"--memory has {len(ids)} tokens, policy.options.memory_tokens={policy.memory_tokens}; shorten it"
        )
    reply = _reply(policy, ids, recorded, turn, codec)
    if isinstance(origin.policy, TaggedPolicy) and len(reply) > origin.policy.written_tokens:
        raise ConfigError(
            f"--memory: the reply that writes it has {len(reply)} tokens, policy.options.reply_tokens="
            f"{origin.policy.written_tokens}; shorten it"
        )
    version = recorded.turns[turn - 1].completion.policy_version
    return Completion(tuple(reply), (0.0,) * len(reply), StopReason.STOP, version)


def _reply(policy: Teachable, ids: Sequence[int], recorded: Trajectory, turn: int, codec: Codec) -> list[int]:
    """With the query that the recorded reply asked for, if it did."""
    asked = of_type((event for event in recorded.events if event.before_turn == turn), Recalled)
    return policy.reply(codec, ids, codec.encode(asked[0].query) if asked else None)
