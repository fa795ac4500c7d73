"""One episode as its followers see it: how its memory changes, its answer piece by piece, how it ended.

To work that out takes time (memories are decoded and compared), in which no other episode gets its next turn. So it is
done when somebody follows the episode, else at its end and on a thread. What is told, and in which order, is the same.

Guaranteed: what `AnswerText.feed` gives in a row, and `rest` at the end, is `whole` of all tokens; nothing that may yet
turn out to be thinking, half a character or the beginning of a stop text is given early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from palimpsest.events import Event
from palimpsest.servers.openai.served_agent import Change, Watch
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import spoken
from palimpsest.types import Turn

SILENCE_S = 5.0
"""After so long without news a stream says that it is alive."""
News = tuple[str, str]
"""(`reasoning` or `content`, text)."""


class ServedEpisode:
    """One that runs, or has ended: what is told of it, and who listens."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.news: list[News] = []
        self.result: dict[str, Any] | None = None
        """How it ended: `outcome`, `content`, `finish_reason`, counts and quotes."""
        self.stored = False
        """Whether it was told from the store."""
        self.started = False
        self.place = ""
        """How far it has read, in words."""
        self.task: asyncio.Task[None] | None = None
        self.followers = 0
        self.lingers: asyncio.TimerHandle | None = None
        """Ends it, unless a client comes back before."""
        self.followed = False
        """Whether somebody has asked for its news: from then on they are told as they come."""
        self.catch_up: Callable[[], None] = lambda: None
        """Tells the news that nobody asked for yet."""
        self._changed = asyncio.Event()

    def tell(self, kind: str, text: str) -> None:
        if text:
            self.news.append((kind, text))
            self._wake()

    def end(self, result: dict[str, Any]) -> None:
        self.result = result
        self._wake()

    async def follow(self) -> AsyncIterator[News | None]:
        """All news from the first on, until it ends; None where there were none for a while."""
        self.followed, place = True, 0
        self.catch_up()
        while True:
            while place < len(self.news):
                yield self.news[place]
                place += 1
            if self.result is not None:
                return
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), SILENCE_S)
            except TimeoutError:
                yield None

    async def ended(self) -> dict[str, Any]:
        while self.result is None:
            await self._changed.wait()
        return self.result

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


# ---- An answer as it is said ---------------------------------------------------------------------------------


_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>")


def whole(text: str, stops: Sequence[str] = ()) -> tuple[str, bool]:
    """What a reply says, and whether a stop text cut it.

    >>> whole("<think>Rome?</think> Paris. END of it", ["END"])
    ('Paris.', True)
    """
    said = spoken(text).strip()
    places = [place for stop in stops if (place := said.find(stop)) >= 0]
    return (said[: min(places)].rstrip(), True) if places else (said, False)


class AnswerText:
    """The text of one answer, piece by piece."""

    def __init__(self, codec: Codec, stops: Sequence[str], before: str = "") -> None:
        """`before`: the tag of the thinking that prompts end on, if they do."""
        self._codec, self._stops, self._before = codec, stops, before
        self._ids: list[int] = []
        self._given = ""

    def feed(self, ids: Sequence[int]) -> str:
        """What can be given now."""
        codec = self._codec
        self._ids += [i for i in ids if i not in codec.control_ids or i in codec.thinking_ids]
        said, _ = whole(self._before + codec.decode(self._ids), self._stops)
        said = said.rstrip("\ufffd")
        held = max((_overlap(said, mark) for mark in (*_TAGS, *self._stops)), default=0)
        return self._new(said[: len(said) - held].rstrip())

    def rest(self, said: str) -> str:
        """What is left of `said`, the whole of it."""
        return self._new(said)

    def _new(self, said: str) -> str:
        if not said.startswith(self._given):
            return ""
        new, self._given = said[len(self._given) :], said
        return new


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of `text` that `mark` may begin with.

    >>> _overlap("a <thi", "<think>"), _overlap("a b", "c")
    (4, 0)
    """
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


# ---- What an episode tells -----------------------------------------------------------------------------------


class Telling:
    """Of one episode."""

    def __init__(self, episode: ServedEpisode, watch: Watch, text: AnswerText) -> None:
        self._episode, self._watch, self._text = episode, watch, text
        self._late: list[Callable[[], News]] = []
        episode.catch_up = self.catch_up

    def turn(self, turn: Turn, events: Sequence[Event]) -> None:
        self._later(lambda: ("reasoning", self._changed(self._watch(turn, events))))

    def token(self, token: int) -> None:
        """Of the answer."""
        self._later(lambda: ("content", self._text.feed((token,))))

    def catch_up(self) -> None:
        """Tell what hasn't been."""
        self.tell(work() for work in self.late())

    def late(self) -> list[Callable[[], News]]:
        """What is left to be worked out, in this order; whoever takes it tells what it gives."""
        late, self._late = self._late, []
        return late

    def tell(self, news: Iterable[News]) -> None:
        for kind, text in news:
            self._episode.tell(kind, text)

    def end(self, content: str) -> None:
        """Tell what is left of an answer that is known whole."""
        self._episode.tell("content", self._text.rest(content))

    def _later(self, work: Callable[[], News]) -> None:
        self._late.append(work)
        if self._episode.followed:
            self.catch_up()

    def _changed(self, change: Change | None) -> str:
        if change is None:
            return ""
        self._episode.place = f"{change.section}/{change.sections}" if change.sections else str(change.section)
        lines = [f"- {each}" for each in change.dropped] + [f"+ {each}" for each in change.added]
        of = f" of {change.sections}" if change.sections else ""
        return "\n".join([f"section {change.section}{of}", *lines, ""])
