"""Facts that change over a document: what is so now, what was so on a day, how often did it change.

    On day 12, Alice lives in Paris. ... On day 340, Alice moved to Rome. ... On day 902, Alice moved to Oslo.

    now     Which city does Alice live in at the end?             Oslo    (the last statement)
    then    Which city did Alice live in on day 500?              Rome    (the one that held on that day)
    count   How many times did Alice move?                        2       (all of them)

The days run on through the document; around the statements stand others, of other people and of other things, which
change too. Such sets train and measure memories that must be overwritten (Supersede, arXiv 2606.27472, asks for the
current value).

Guaranteed: a pure function of its key; the days of lines never fall; no value of the asked fact comes twice; no other
line speaks of its subject.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from palimpsest.data.ruler.needles import Key
from palimpsest.data.story import Story
from palimpsest.data.world import ATTRIBUTES, FILLER, PEOPLE
from palimpsest.seeding import keyed_random

KINDS = ("now", "then", "count")
LAST_DAY = 9_999
_NOTHING = ("nobody", "said", "anything", "of", "note", "to", "anybody", "who", "was", "there", "that", "day")
_FILLER_SHARE = 0.1
_CHANGE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Changing:
    """Something that may change, and how one says and asks it."""

    name: str
    first: str
    later: str
    now: str
    then: str
    count: str

    @property
    def values(self) -> tuple[str, ...]:
        return next(relation.values for relation in ATTRIBUTES if relation.name == self.name)


CHANGING = (
    Changing(
        "city",
        "{s} lives in {v}",
        "{s} moved to {v}",
        "Which city does {s} live in at the end?",
        "Which city did {s} live in on day {d}?",
        "How many times did {s} move?",
    ),
    Changing(
        "drink",
        "{s} drinks {v}",
        "{s} switched to drinking {v}",
        "What does {s} drink at the end?",
        "What did {s} drink on day {d}?",
        "How many times did {s} switch to another drink?",
    ),
    Changing(
        "instrument",
        "{s} plays the {v}",
        "{s} gave it up and now plays the {v}",
        "Which instrument does {s} play at the end?",
        "Which instrument did {s} play on day {d}?",
        "How many times did {s} take up another instrument?",
    ),
    Changing(
        "goods",
        "{s} sells {v}",
        "{s} began to sell {v} instead",
        "What does {s} sell at the end?",
        "What did {s} sell on day {d}?",
        "How many times did {s} change what is sold?",
    ),
    Changing(
        "sport",
        "{s} trains for {v}",
        "{s} changed to {v}",
        "Which sport does {s} train for at the end?",
        "Which sport did {s} train for on day {d}?",
        "How many times did {s} change to another sport?",
    ),
)


def update_story(kind: str, changes: int, key: Key, name: str) -> Story:
    """One question about a fact that changes so many times, 1 to 15."""
    rng = keyed_random(*key)
    subject, changing = rng.choice(PEOPLE), rng.choice(CHANGING)
    values = rng.sample(changing.values, changes + 1)
    days = sorted(rng.sample(range(1, LAST_DAY, 2), changes + 1))  # a day between any two
    said = [changing.first, *[changing.later] * changes]
    own = [f"{text.format(s=subject, v=value)}." for text, value in zip(said, values, strict=True)]
    if kind == "now":
        question, answer, evidence = changing.now, values[-1], own[-1:]
    elif kind == "then":
        at = rng.randrange(changes)  # before the last: else it would ask for what is so now
        day = rng.randint(days[at], days[at + 1] - 1)
        question, answer, evidence = changing.then.replace("{d}", str(day)), values[at], own[at : at + 1]
    else:
        question, answer, evidence = changing.count, str(changes), own
    others = _Others(subject, keyed_random(*key, "others"))

    def context(size: int) -> str:
        return "\n".join(_dated(own, days, others.lines(size), keyed_random(*key, "places", size)))

    metadata = {"kind": kind, "changes": changes, "relation": changing.name}
    return Story(name, question.format(s=subject), (answer,), tuple(evidence), context, metadata)


def _dated(own: list[str], days: list[int], others: list[str], rng: random.Random) -> Iterator[str]:
    """`own` on its days among the others, which get days in between."""
    places = sorted(rng.sample(range(len(own) + len(others)), len(own)))
    edges = [(-1, 1), *zip(places, days, strict=True), (len(own) + len(others), LAST_DAY)]
    rest = iter(others)
    for number, ((after, from_day), (before, to_day)) in enumerate(pairwise(edges)):
        drawn = sorted(rng.randint(from_day, to_day) for _ in range(before - after - 1))
        yield from (f"On day {day}, {next(rest)}" for day in drawn)
        if number < len(own):
            yield f"On day {to_day}, {own[number]}"


class _Others:
    """What is said of others, and of nobody: lines without end, of which the first are always the same. The unit is a
    word; a last line of nothing in particular makes up the number."""

    def __init__(self, subject: str, rng: random.Random) -> None:
        self._subject, self._rng = subject, rng
        self._held: dict[tuple[str, str], str] = {}
        self._made: list[str] = []
        self._ends: list[int] = []  # words up to the end of each line

    def lines(self, size: int) -> list[str]:
        while not self._ends or self._ends[-1] <= size:
            self._made.append(self._line())
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._made[-1].split()))
        whole = bisect_right(self._ends, size)
        rest = size - (self._ends[whole - 1] if whole else 0)
        return self._made[:whole] + ([f"{' '.join(_NOTHING[:rest])}."] if rest else [])

    def _line(self) -> str:
        rng = self._rng
        if rng.random() < _FILLER_SHARE:
            text = rng.choice(FILLER)
            return text[0].lower() + text[1:]
        if self._held and rng.random() < _CHANGE_SHARE:
            key = rng.choice(list(self._held))
        else:
            key = (rng.choice([name for name in PEOPLE if name != self._subject]), rng.choice(CHANGING).name)
        changing = next(each for each in CHANGING if each.name == key[1])
        before = self._held.get(key)
        value = rng.choice([each for each in changing.values if each != before])
        self._held[key] = value
        text = changing.later if before else changing.first
        return f"{text.format(s=key[0], v=value)}."
