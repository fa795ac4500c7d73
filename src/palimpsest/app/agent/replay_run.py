"""Replay of a recorded episode from one of its turns, unchanged or with an edited memory.

Earlier turns stay as recorded. Later turns are sampled with the recorded draw keys: with the original weights and
memory the episode reproduces the recorded tokens. An edit replaces the previous turn's reply with one in the policy's
form that writes the given text (`Teachable.reply`), which enters the memory verbatim (`StopReason.GIVEN`). Policy and
prompts are unchanged. A text that differs from the memory only by surrounding white space changes nothing. An empty
text means the policy's empty memory.

Guaranteed: the record is read-only; a turn whose prompt differs from the recorded one raises an error; the result names
the weights and the origin of the document.
Not covered: editing the memory of a policy without `teachable` (agents with tools, `full_context`, custom policies).
Floating-point sums may differ in their last bits, as the batch differs; very rarely this picks another token.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.agents.open_agent import OpenAgent, with_agent
from palimpsest.app.agent.recorded_origin import EpisodeOrigin, RecordedEpisode, locate_episode, origin_of, read_episode
from palimpsest.app.evaluate.regrading import UNSET_URL
from palimpsest.app.python_calls import blocking
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError, DataError, ModelError, RunError
from palimpsest.events import DocumentTruncated, Event, ReadingEnded, Recalled, Replayed, of_type
from palimpsest.memory.overwrite import Document, OverwritePolicy
from palimpsest.memory.policy import Teachable
from palimpsest.memory.recall import RecallPolicy
from palimpsest.metrics.reading_trace import GroupTexts, last_memory, readings
from palimpsest.reward.grading import build_reward, closing, graded
from palimpsest.rollout.episode import failure
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.folder_guard import refuse_inside
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import ordinal
from palimpsest.types import Completion, Grade, Group, Problem, StopReason, Trajectory, Turn

# ---- Edited memory: the reply that writes it, and the prompts that show it -----------------------------------


@dataclass(frozen=True, slots=True)
class Edit:
    """The memory that a turn gets."""

    text: str
    """Includes the recorded memory's leading space; "" for an empty memory."""
    ids: tuple[int, ...]
    """[T] tokens in prompts."""
    reply: Completion | None
    """Reply of the turn before; None at turn 0 and for an unchanged memory."""
    changes: bool
    """It differs from the recorded memory."""

    def is_in(self, turn: Turn) -> bool:
        """True if a prompt shows it; for an empty edit, if the whole memory is empty."""
        ids = turn.piece("memory")
        if ids is None or not self.text:
            return ids in ((), self.ids)
        places = range(len(ids) - len(self.ids) + 1)
        return any(ids[at : at + len(self.ids)] == self.ids for at in places)


def edited(memory: str, recorded: Trajectory, origin: EpisodeOrigin, turn: int, codec: Codec) -> Edit:
    """`memory` as the memory of `turn` in a recorded episode. Raises ConfigError if impossible."""
    policy, name, memory = origin.policy.teachable(), origin.config.policy.name, memory if memory.strip() else ""
    if policy is None or (turn == 0 and not origin.policy.takes_memory):
        raise ConfigError(f"--memory: {name} has no memory that can be edited; omit --memory")
    if turn and recorded.turns[turn - 1].piece("section") is None:
        raise ConfigError(f"--memory: turn {turn} writes no memory; use another --turn, or omit --memory")
    tokens = _remembered(recorded, turn, codec)
    empty, was = codec.encode(policy.texts.empty_memory), codec.decode(tokens)
    if memory.strip() == was.strip() or (not memory and list(tokens) == empty):
        return Edit(memory and was, tuple(tokens), None, changes=False)
    if memory and memory == memory.lstrip():  # the space before it is the model's
        memory = was[: len(was) - len(was.lstrip())] + memory
    ids = codec.encode(memory) if memory else empty if turn == 0 or len(empty) <= policy.memory_tokens else []
    reply = _writing(ids, recorded, origin, policy, turn, codec) if turn or memory else None
    return Edit(memory, tuple(ids), reply, changes=True)


def _remembered(recorded: Trajectory, turn: int, codec: Codec) -> Sequence[int]:
    """[T] memory that the turn before wrote; at turn 0, the memory it shows. Raises ConfigError."""
    piece = recorded.turns[turn].piece("memory")
    if piece is None:
        raise ConfigError(
            f"--memory: turn {ordinal(turn)} ({recorded.turns[turn].name}) shows no memory; give another --turn"
        )
    written = (read for read in readings(recorded, GroupTexts(codec)) if turn and read.turn is recorded.turns[turn - 1])
    return next((read.memory_after.ids or codec.encode(read.memory_after.text) for read in written), piece)


def _writing(
    ids: Sequence[int], recorded: Trajectory, origin: EpisodeOrigin, policy: Teachable, turn: int, codec: Codec
) -> Completion:
    """Reply of the turn before that writes `ids` in the policy's form. Raises ConfigError for too many tokens."""
    if len(ids) > policy.memory_tokens:
        raise ConfigError(
            f"--memory has {len(ids)} tokens, policy.options.memory_tokens={policy.memory_tokens}; shorten it"
        )
    reply = _reply(policy, ids, recorded, turn, codec)
    if isinstance(origin.policy, RecallPolicy) and len(reply) > origin.policy.written_tokens:
        raise ConfigError(
            f"--memory: the reply that writes it has {len(reply)} tokens, policy.options.reply_tokens="
            f"{origin.policy.written_tokens}; shorten it"
        )
    version = recorded.turns[max(turn - 1, 0)].completion.policy_version
    return Completion(tuple(reply), (0.0,) * len(reply), StopReason.GIVEN, version)


def _reply(policy: Teachable, ids: Sequence[int], recorded: Trajectory, turn: int, codec: Codec) -> list[int]:
    searches = of_type((event for event in recorded.events if event.before_turn == turn), Recalled)
    return policy.reply(codec, ids, codec.encode(searches[0].query) if searches else None)


# ---- Replay from a turn --------------------------------------------------------------------------------------


OUT = "replays"


@dataclass(frozen=True, slots=True)
class End:
    """End of an episode."""

    memory: str | None
    """The last memory; None for a policy without any."""
    answer: str | None
    outcome: str
    value: float | None
    reason: str | None
    """Reason for a missing value."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Both ends of an episode."""

    recorded: End
    replayed: End
    turn: int
    memory: str | None
    """The requested memory, "" for the policy's empty memory; None: the recorded one."""
    given: bool
    """`memory` differs from the recorded one: it counts as input, never as the agent's."""
    first_seen: int | None
    """The first turn whose prompt shows `memory`; None without an edit, or for an empty one that no prompt shows."""
    parts_at: int | None
    """The first replayed turn with a different reply; None: all are equal."""
    weights: str
    model: str
    """Folder of the weights; its tokenizer decodes both ends."""
    document: str
    path: Path
    """Record file of two rollouts: the recorded and the replayed one."""

    def to_json(self) -> dict[str, Any]:
        """Output of `palimpsest replay --json`."""
        return {**asdict(self), "path": str(self.path)}


async def replay_async(
    episode: str,
    *,
    turn: int | None = None,
    memory: str | None = None,
    step: int | None = None,
    group: int | None = None,
    rollout: int | None = None,
    model: str | None = None,
    out: str | Path = OUT,
) -> Replay:
    """Re-run an episode from a turn, optionally with another `memory`, and compare the ends.

    - `episode`: a record file, a run or an evaluation, with `#GROUP/ROLLOUT` or the viewer's link; or with `step`,
      `group`, `rollout`, positions from 0
    - `turn`: the first sampled turn, from 0; `memory` replaces the memory written before it, "" for an empty one
    - `model`: other weights; the default is the weights that sampled the episode, or the nearest checkpoint
    - `out`: a folder for a record file of both

    Raises ConfigError, DataError or RunError with a message that names key, value and fix.
    """
    location = locate_episode(episode, step=step, group=group, rollout=rollout, turn=turn)
    recorded = read_episode(location)
    first = _checked(recorded, location.turn)
    origin = origin_of(recorded, model)
    refuse_inside(Path(out), location.owners(), "--out")

    async def work(agent: OpenAgent) -> Replay:
        return await _replayed(recorded, origin, agent, first, memory, Path(out))

    try:
        return await with_agent(origin.config, work)
    except ModelError as error:
        raise ModelError(str(error) if model else f"{error}; if it moved, set --model") from None


replay = blocking(replay_async)


def _checked(episode: RecordedEpisode, turn: int | None) -> int:
    if turn is None:
        raise ConfigError("the turn to replay from is missing; set --turn, 1 for the first")
    if not 0 <= turn < len(episode.trajectory.turns):
        raise ConfigError(f"--turn {ordinal(turn)}: the episode has turns 1 to {len(episode.trajectory.turns)}")
    if any(of_type(trajectory.events, Replayed) for trajectory in episode.group.trajectories):
        raise ConfigError(f"{episode.location.file}: is a replay; replay its original episode")
    return turn


async def _replayed(
    episode: RecordedEpisode, origin: EpisodeOrigin, agent: OpenAgent, first: int, memory: str | None, out: Path
) -> Replay:
    recorded, codec = episode.trajectory, agent.engine.codec
    turns = list(recorded.turns[:first])
    problem, prepare, document = _with_document(episode.group.problem, recorded, origin, codec)
    edit = None if memory is None else edited(memory, recorded, origin, first, codec)
    if edit is not None and edit.changes:
        if first == 0:
            problem = replace(problem, memory=edit.text)
        elif edit.reply is not None:
            turns[-1] = replace(turns[-1], completion=edit.reply)
    trajectory = await _play(problem, origin, agent, turns, prepare, recorded)
    _refuse_other_prompts(recorded, trajectory, first)
    first_shown = None if edit is None else _first_shown(edit, trajectory, first)
    text = None if edit is None else edit.text
    replacement = text if edit is not None and edit.changes else None
    mark = Replayed(f"{recorded.group_id}, rollout {recorded.rollout}", first, replacement)
    marked = replace(trajectory, events=(*trajectory.events, Event(mark, first)))  # graders see the edit
    grade = await _graded(problem, marked, origin, agent.engine)
    played, grades = (replace(recorded, rollout=0), replace(marked, rollout=1)), (episode.grade, grade)
    return Replay(
        recorded=_end(recorded, episode.grade, codec),
        replayed=_end(trajectory, grade, codec),
        turn=first,
        memory=text,
        given=replacement is not None,
        first_seen=first_shown,
        parts_at=_diverges_at(recorded, trajectory, first),
        weights=origin.weights,
        model=origin.config.model.path,
        document=document,
        path=_written(out / _name(episode, first, text), encode_groups([Group(episode.group.problem, played, grades)])),
    )


async def _play(
    problem: Problem,
    origin: EpisodeOrigin,
    agent: OpenAgent,
    turns: Sequence[Turn],
    prepare: Callable[[], Any] | None,
    recorded: Trajectory,
) -> Trajectory:
    return await agent.play(
        problem,
        origin.policy,
        "replay",
        sampling=origin.config.sampling if origin.training else origin.config.eval_sampling,
        key=origin.key,
        group_id=recorded.group_id,
        rollout=recorded.rollout,
        prepare=prepare,
        recorded=turns,
    )


def _with_document(
    problem: Problem, trajectory: Trajectory, origin: EpisodeOrigin, codec: Codec
) -> tuple[Problem, Callable[[], Any] | None, str]:
    sections = _sections(trajectory)
    if sections and isinstance(origin.policy, OverwritePolicy) and _read_to_the_end(trajectory):
        tokens = sum(map(len, sections))
        cuts = of_type(trajectory.events, DocumentTruncated)
        document = Document(cuts[0].tokens if cuts else tokens, sections)
        context = codec.decode([i for section in sections for i in section])
        return replace(problem, context=context), lambda: document, "the document is from the recorded prompts"
    if (full := origin.find_problem(problem)) is not None:
        return full, None, "the document is from the episode's data"
    if not trajectory.turns[0].spans.keys() & {"section", "document"} and _needs_none(problem, origin, codec):
        return problem, None, "it reads no document"
    raise DataError(
        f"problem {problem.id}: its record lacks the whole document, and so does its data "
        f"(data.train_files={origin.config.data.train_files}); restore the data"
    )


def _sections(trajectory: Trajectory) -> list[tuple[int, ...]]:
    """The sections of the prompts, in order; each once, however often it was read."""
    by_chunk = dict[Any, tuple[int, ...]]()
    for turn in trajectory.turns:
        if (section := turn.piece("section")) is not None:
            by_chunk.setdefault(turn.notes.get("chunk", turn.step), section)
    return list(by_chunk.values())


def _needs_none(problem: Problem, origin: EpisodeOrigin, codec: Codec) -> bool:
    try:
        origin.policy.admit(problem, codec)
    except DataError:
        return False
    return True


def _read_to_the_end(trajectory: Trajectory) -> bool:
    unread = sum(event.unread for event in of_type(trajectory.events, ReadingEnded))
    return not unread and trajectory.turns[-1].piece("section") is None


def _first_shown(edit: Edit, trajectory: Trajectory, first: int) -> int | None:
    """First turn whose prompt shows the edited memory. Raises ConfigError if none does."""
    shown = next((at for at in range(first, len(trajectory.turns)) if edit.is_in(trajectory.turns[at])), None)
    if shown is None and edit.text:
        ended = failure(trajectory) or trajectory.outcome
        raise ConfigError(f"--memory: no prompt from turn {ordinal(first)} on shows it ({ended}); give another --turn")
    return shown


def _refuse_other_prompts(recorded: Trajectory, trajectory: Trajectory, first: int) -> None:
    """Raise RunError if the prompt of a recorded turn differs, ConfigError if the turn is missing."""
    for at, turn in enumerate(recorded.turns[:first]):
        if at >= len(trajectory.turns):
            raise ConfigError(f"turn {ordinal(at)} can't be repeated: {failure(trajectory) or trajectory.outcome}")
        if trajectory.turns[at].prompt_ids != turn.prompt_ids:
            raise RunError(
                f"turn {ordinal(at)}: its prompt differs from the recorded one, so the model's tokenizer, the policy "
                "or the document has changed; set --model to the recorded model"
            )


async def _graded(problem: Problem, trajectory: Trajectory, origin: EpisodeOrigin, engine: Engine) -> Grade:
    config = origin.config.reward
    if config.judge is not None and config.judge.url == UNSET_URL:
        return Grade(None, "graded by a judge, whose address an evaluation doesn't keep")
    reward = build_reward(config, engine.codec)
    return await closing(reward, graded(reward if origin.training else reward.answer, problem, trajectory))


def _diverges_at(recorded: Trajectory, replayed: Trajectory, first: int) -> int | None:
    replies = ([turn.completion.token_ids for turn in trajectory.turns] for trajectory in (recorded, replayed))
    pairs = list(zip_longest(*replies))
    return next((at for at in range(first, len(pairs)) if pairs[at][0] != pairs[at][1]), None)


def _end(trajectory: Trajectory, grade: Grade, codec: Codec) -> End:
    memory = last_memory(trajectory, GroupTexts(codec))
    text = None if memory is None else memory.text
    return End(text, trajectory.answer, str(trajectory.outcome), grade.value, grade.reason)


def _written(path: Path, data: bytes) -> Path:
    stem, _, suffix = path.name.partition(".")
    number = 1
    while os.path.lexists(path) and not (path.is_file() and path.read_bytes() == data):
        number += 1
        path = path.with_name(f"{stem}-{number}.{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_file(path, data)
    return path


def _name(episode: RecordedEpisode, turn: int, memory: str | None) -> str:
    """Distinct file name per replay; the same replay writes the same file."""
    location = episode.location
    stem = location.file.name.partition(".")[0]
    fields = [stem, str(location.group), str(location.rollout), f"turn-{turn}"]
    if memory is not None:
        fields.append(hashlib.blake2b(memory.encode("utf-8", "replace"), digest_size=4).hexdigest())
    return "-".join(fields) + ".jsonl.zst"
