"""Recorded episodes of the viewer's sources: their files, agents and tokenizers.

The tokenizer is that of the run's newest checkpoint, otherwise that of the configured model. In an evaluation,
samples.jsonl lists every episode of the agent and of the baselines; the record contains only those selected by
`evaluation.record`, by default the wrong ones. A score over the record is therefore not the agent's score.

Guaranteed: the viewer measures only requested episodes, never a whole file; it downloads nothing and takes hub models
only from the local cache. Without a tokenizer it shows ids, and `why` says how to provide one.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.engine import SHIPPED, named
from palimpsest.errors import DataError, PalimpsestError
from palimpsest.evaluation.comparison import cell_at_length
from palimpsest.evaluation.episode_files import EPISODES, EpisodeKey
from palimpsest.evaluation.sample_log import SUMMARY, Cell, Sample, logs_below
from palimpsest.metrics.memory_metrics import memory_metrics
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.models.model_folder import cached_tokenizer
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths
from palimpsest.runs.run_folder import CONFIG, TRAJECTORIES
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import counted
from palimpsest.types import Group
from palimpsest.viewer.records.record_index import RecordIndex
from palimpsest.viewer.records.run_facts import RunFacts, read_object
from palimpsest.viewer.records.sources import NotThere, Source, SourceKind, checked_inside, gone

# ---- The tokenizer of a record -------------------------------------------------------------------------------


class IdsCodec:
    """Replacement for a missing tokenizer: ids as numbers."""

    control_ids: frozenset[int] = frozenset()
    thinking_ids: frozenset[int] = frozenset()
    stop_ids: tuple[int, ...] = ()

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        """
        >>> IdsCodec().decode([7, 12])
        '7 12 '
        """
        return "".join(f"{token_id} " for token_id in ids)

    def encode(self, text: str) -> list[int]:
        """One id for any text: lookups need a tokenizer."""
        return [0] if text else []

    def strip_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(ids)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Conversion of ids to text."""

    codec: Any
    why: str | None
    """Reason for ids instead of text; None if text is shown."""


class Decoders:
    """The tokenizers of sources, each opened once. Thread-safe."""

    def __init__(self, facts: RunFacts, tokenizer: str | None = None) -> None:
        """`tokenizer`: a folder or hub id that decodes everything and overrides the files."""
        self._facts, self._tokenizer = facts, tokenizer
        self._lock = threading.Lock()
        self._opened: dict[str, Decoder] = {}

    def of(self, source: Source) -> Decoder:
        """The decoder of a source's episodes."""
        tried: list[str] = []
        with self._lock:
            for name in self._names(source):
                if name not in self._opened:
                    self._opened[name] = _open(name)
                if self._opened[name].why is None:
                    return self._opened[name]
                tried.append(str(self._opened[name].why))
        why = tried[0] if tried else f"{source.name} does not name its model"
        return Decoder(IdsCodec(), f"Token ids are shown instead of text: {why}; pass --tokenizer FOLDER")

    def _names(self, source: Source) -> Iterator[str]:
        if self._tokenizer is not None:
            yield self._tokenizer
            return
        run = run_of(source)
        if run is not None:
            newest = next(reversed(checkpoint_paths(run / CHECKPOINTS)), None)
            if newest is not None:
                yield str(newest)
            model = self._facts.config(Source("", SourceKind.RUN, run, "")).get("model")
            if isinstance(model, dict) and isinstance(model.get("path"), str):
                yield model["path"]
        elif source.kind is SourceKind.EVALUATION:
            model = (read_object(source.path / SUMMARY) or {}).get("model")
            if isinstance(model, str):
                yield from _of_model(model)


def _of_model(name: str) -> Iterator[str]:
    """The tokenizer names to try for a model: its name, or the newest checkpoint of the run that it names."""
    if os.path.isfile(Path(name) / CONFIG):  # also False for an invalid file name
        yield from (str(path) for path in reversed(checkpoint_paths(Path(name) / CHECKPOINTS)))
    yield name


def run_of(source: Source) -> Path | None:
    """The run of a source: the source or the folder around its file."""
    places = (source.path, *list(source.path.parents)[: 0 if source.kind is SourceKind.RUN else 4])
    return next((folder for folder in places if (folder / CONFIG).is_file()), None)


def _open(name: str) -> Decoder:
    """A decoder; never raises: an unreadable tokenizer reports the reason."""
    here = Path(named(name))
    folder = here if name in SHIPPED or os.path.isdir(here) else cached_tokenizer(name)
    if folder is None:
        return Decoder(None, f"the model {name:.200} is neither a folder here nor in the local cache of the hub")
    try:
        bare = (folder / "tokenizer.json").is_file()
        return Decoder(Codec.for_reading(folder) if bare else Codec.load(str(folder)), None)
    except PalimpsestError as error:
        return Decoder(None, str(error))


MOST_TURNS = 20_000
"""Maximum turns of a displayed episode: its results stay in memory, and each turn has a row on the page."""


# ---- The episodes of sources ---------------------------------------------------------------------------------


ALL = "all"
"""The step of a source with a single file of episodes."""
_INDEXES = 64
MOST_MEASURED = 32
_STEP = re.compile(r"step-(\d{6,})\.jsonl\.zst")


class Records:
    """Files of episodes, each with its index. Thread-safe."""

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Path, RecordIndex] = OrderedDict()

    def index(self, source: Source, step: str) -> RecordIndex:
        """Raises NotThere for a step without a record."""
        path = record_path(source, step)
        with self._lock:
            index = self._indexes.pop(path, None) or RecordIndex(path)
            self._indexes[path] = index
            while len(self._indexes) > _INDEXES:
                self._indexes.popitem(last=False)
            return index

    def measures(self, source: Source, step: str, places: Sequence[int]) -> dict[str, Any]:
        """`GROUP/ROLLOUT` to measures of kept and hallucinated memory: None if nothing can be measured."""
        decoder = self._decoders.of(source)
        if decoder.why is not None:
            return {}
        index = self.index(source, step)
        result: dict[str, Any] = {}
        for number in dict.fromkeys(places[:MOST_MEASURED]):
            try:
                result |= _measured(index.group(number), number, decoder.codec)
            except DataError:
                continue  # opening the group reports it
        return result


def steps_of(source: Source) -> list[int | str]:
    """The steps that have a record, or `all`."""
    if source.kind is SourceKind.RUN:
        return sorted(int(match[1]) for name in _names(source.path / TRAJECTORIES) if (match := _STEP.fullmatch(name)))
    return [ALL] if _single(source) is not None else []


def record_path(source: Source, step: str) -> Path:
    """The file of a step: a number, `all`, or `NAME.SHARD` of a quickstart's evaluation. Raises NotThere."""
    path = None
    if source.kind is not SourceKind.RUN:
        path = _single(source) if step == ALL else None
    elif step.isascii() and step.isdigit() and len(step) < 12:
        path = source.path / TRAJECTORIES / f"step-{int(step):06d}.jsonl.zst"
    else:
        path = logs_below(source.path, EPISODES).get(step)
    if path is None or not path.is_file():
        if not source.path.exists():
            raise gone(source)
        raise NotThere(f"{source.name}: step {step[:60]} has no recorded episodes (see train.record_steps)")
    return path if source.kind is SourceKind.RECORD else checked_inside(source, path)


def _single(source: Source) -> Path | None:
    if source.kind is SourceKind.RECORD:
        return source.path
    path = source.path / EPISODES
    return path if source.kind is SourceKind.EVALUATION and path.is_file() else None


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _measured(group: Group, number: int, codec: Any) -> dict[str, Any]:
    result, texts = {}, GroupTexts(codec)
    for rollout, (trajectory, grade) in enumerate(zip(group.trajectories, group.grades, strict=True)):
        if len(trajectory.turns) > MOST_TURNS:
            continue
        values = memory_metrics(Group(group.problem, (trajectory,), (grade,)), texts)
        fidelity = values.get("copy_fidelity")
        result[f"{number}/{rollout}"] = {
            "retention": values.get("evidence_retention"),
            "invention": None if fidelity is None else 1 - fidelity,
        }
    return result


# ---- Agents of an evaluation, and their recorded episodes ----------------------------------------------------


AGENT = "agent"


def player_of(cell: Cell, titles: Mapping[str, str]) -> str:
    """The agent or baseline of an episode, for display; `titles`: names of the agents of a quickstart. Empty for an
    episode outside of evaluations.

    >>> player_of(Cell("dev", None, None, "recall"), {}), player_of(Cell("dev", None, None, "closed book", True), {})
    ('agent: recall', 'baseline: closed book')
    """
    kind = "baseline" if cell.baseline else AGENT
    return f"{kind}: {titles.get(cell.player, cell.player)}" if cell.player else kind


def episode_key(sample: Sample) -> EpisodeKey:
    """Group id and rollout of the sample's recorded episode."""
    return sample.group_id, sample.draw


def by_key(samples: Iterable[Sample]) -> dict[EpisodeKey, Sample]:
    return {episode_key(sample): sample for sample in samples}


def played_row(row: Mapping[str, Any], sample: Sample | None, titles: Mapping[str, str]) -> dict[str, Any]:
    """A row of an evaluation's record with its agent, part and score; `sample` is None if the last call did not request
    it.
    """
    if sample is None:
        return {**row, "player": "an earlier call", "part": None}
    return {**row, "reward": sample.value, "reason": sample.reason, **played_by(sample, titles)}


def played_by(sample: Sample, titles: Mapping[str, str]) -> dict[str, str]:
    """The agent of an episode, and its part of the evaluation."""
    return {"player": player_of(sample.cell, titles), "part": cell_at_length(sample).part}


def unrecorded(samples: Sequence[Sample], recorded: Collection[EpisodeKey], consequence: str) -> list[str]:
    """One sentence per agent with unrecorded episodes."""
    notes = []
    for baseline, player in sorted({(sample.baseline, sample.player) for sample in samples}):
        played = [sample for sample in samples if (sample.baseline, sample.player) == (baseline, player)]
        if missing := sum(episode_key(sample) not in recorded for sample in played):
            what = f"{missing} of {counted(len(played), 'episode')} of the {player_of(played[0].cell, {})}"
            notes.append(f"{what} were not recorded {consequence}; set evaluation.record=all to record every episode")
    return notes
