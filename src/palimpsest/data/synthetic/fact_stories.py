"""Stories of facts: people and things (bAbI, arXiv 1502.05698), and facts that change over a document.

    qa1   one fact       Where is Mary?
    qa2   two facts      Where is the milk?                        who carries it, and where that one is
    qa3   three facts    Where was the milk before the garden?
    qa4   two relations  What is north of the office?
    qa5   three places   Who gave the milk to John?

BABILong (arXiv 2402.10790) hides such facts, in their order, between the sentences of a long text.

Guaranteed: a pure function of its key; what is asked has one answer, which follows from the facts that `evidence` names
and from no fewer.
Not covered: text around the facts that tells something else of people of these names.

Facts that change over a document: what is so now, what was so on a day, how often did it change.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from palimpsest.data.synthetic.ruler_tasks import Key
from palimpsest.data.synthetic.world import ATTRIBUTES, FILLER, PEOPLE
from palimpsest.seeding import keyed_random
from palimpsest.types import Problem

STORY_PEOPLE = ("Mary", "John", "Sandra", "Daniel", "Julie", "Bill", "Fred", "Jeff")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office", "park", "cinema")
THINGS = ("milk", "football", "apple", "hat", "lamp")
DIRECTIONS = {"north": "south", "south": "north", "east": "west", "west": "east"}
_MOVES = ("went to the", "moved to the", "travelled to the", "journeyed to the")
_TAKES = ("picked up the", "grabbed the", "took the", "got the")
_DROPS = ("dropped the", "put down the", "left the", "discarded the")
_GIVES = ("gave the {thing} to {to}", "handed the {thing} to {to}", "passed the {thing} to {to}")
FACTS = {"qa1": (2, 10), "qa2": (4, 24), "qa3": (6, 40), "qa4": (2, 2), "qa5": (4, 24)}
"""Facts of a story at the least and at the most."""


class Asked(NamedTuple):
    """A question about a story."""

    question: str
    answer: str
    support: tuple[int, ...]
    """Numbers of the facts that it follows from, ascending."""


class Stay(NamedTuple):
    """A place where a thing is known to have been."""

    place: str
    support: tuple[int, ...]


class Gift(NamedTuple):
    fact: int
    giver: str
    thing: str
    to: str


@dataclass(slots=True)
class World:
    """Where everybody and everything is, as far as the facts tell."""

    rng: random.Random
    facts: list[str] = field(default_factory=list)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Where a person is, and the fact that says so."""
    carriers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Who carries a thing, and since which fact."""
    stays: dict[str, list[Stay]] = field(default_factory=dict)
    """Places of a thing, in order, no two neighbours the same."""
    gifts: list[Gift] = field(default_factory=list)

    def tell(self, said: str) -> int:
        """One more fact; its number."""
        self.facts.append(f"{said}.")
        return len(self.facts) - 1

    def move(self, person: str) -> None:
        """Somewhere else, with all that the person carries."""
        here = self.places.get(person, ("", 0))[0]
        place = self.rng.choice([each for each in PLACES if each != here])
        fact = self.tell(f"{person} {self.rng.choice(_MOVES)} {place}")
        self.places[person] = (place, fact)
        for thing, (carrier, since) in self.carriers.items():
            if carrier == person:
                self.stays[thing].append(Stay(place, (since, fact)))

    def act(self, person: str) -> None:
        """Take or put down something, if that can be; else move."""
        carried = [thing for thing, (carrier, _) in self.carriers.items() if carrier == person]
        if person not in self.places:
            self.move(person)
        elif carried and self.rng.random() < 0.5:
            thing = self.rng.choice(carried)
            self.tell(f"{person} {self.rng.choice(_DROPS)} {thing}")
            del self.carriers[thing]
        elif free := [thing for thing in THINGS if self.within_reach(thing, person)]:
            self.take(person, self.rng.choice(free))
        else:
            self.move(person)

    def within_reach(self, thing: str, person: str) -> bool:
        """Nobody carries it, and it is here or nobody has said where it is."""
        if thing in self.carriers:
            return False
        return thing not in self.stays or self.stays[thing][-1].place == self.places[person][0]

    def take(self, person: str, thing: str) -> None:
        fact = self.tell(f"{person} {self.rng.choice(_TAKES)} {thing}")
        place, since = self.places[person]
        self.carriers[thing] = (person, fact)
        if thing not in self.stays:
            self.stays[thing] = [Stay(place, (since, fact))]

    def give(self) -> None:
        """Somebody gives something away; takes it first where nobody has anything."""
        if not self.carriers:
            giver = self.rng.choice(STORY_PEOPLE)
            self.move(giver)
            free = [thing for thing in THINGS if self.within_reach(thing, giver)]
            if not free:
                return
            self.take(giver, self.rng.choice(free))
        thing = self.rng.choice(sorted(self.carriers))
        giver = self.carriers[thing][0]
        to = self.rng.choice([person for person in STORY_PEOPLE if person != giver])
        fact = self.tell(f"{giver} {self.rng.choice(_GIVES).format(thing=thing, to=to)}")
        self.carriers[thing] = (to, fact)
        self.gifts.append(Gift(fact, giver, thing, to))


def story(task: str, rng: random.Random) -> tuple[list[str], Asked]:
    """Facts of a story in their order, and a question about it; `task` is qa1 to qa5."""
    least, most = FACTS[task]
    while True:
        world, wanted = World(rng), rng.randint(least, most)
        if (asked := _TELLERS[task](world, wanted)) is not None:
            return world.facts, asked


def _one_fact(world: World, wanted: int) -> Asked | None:
    for _ in range(wanted):
        world.move(world.rng.choice(STORY_PEOPLE[:4]))
    person = world.rng.choice(sorted(world.places))
    place, fact = world.places[person]
    return Asked(f"Where is {person}?", place, (fact,))


def _two_facts(world: World, wanted: int) -> Asked | None:
    _carry(world, wanted)
    things = sorted(thing for thing, stays in world.stays.items() if len(stays[-1].support) == 2)
    if not things:
        return None
    thing = world.rng.choice(things)
    return Asked(f"Where is the {thing}?", world.stays[thing][-1].place, tuple(sorted(world.stays[thing][-1].support)))


def _three_facts(world: World, wanted: int) -> Asked | None:
    _carry(world, wanted)
    chances = [
        (thing, before, stay)
        for thing, stays in sorted(world.stays.items())
        for before, stay in pairwise(stays)
        if [each.place for each in stays].count(stay.place) == 1
    ]
    if not chances:
        return None
    thing, before, stay = world.rng.choice(chances)
    support = tuple(sorted({*before.support, *stay.support}))
    return Asked(f"Where was the {thing} before the {stay.place}?", before.place, support)


def _carry(world: World, wanted: int) -> None:
    while len(world.facts) < wanted:
        person = world.rng.choice(STORY_PEOPLE[:4])
        world.act(person) if world.rng.random() < 0.5 else world.move(person)


def _two_relations(world: World, wanted: int) -> Asked | None:
    first, middle, last = world.rng.sample(PLACES, 3)
    way = world.rng.choice(sorted(DIRECTIONS))
    facts = [f"The {first} is {way} of the {middle}", f"The {middle} is {way} of the {last}"]
    order = world.rng.sample(range(wanted), wanted)
    for number in order:
        world.tell(facts[number])
    if world.rng.random() < 0.5:
        return Asked(f"What is {way} of the {middle}?", first, (order.index(0),))
    return Asked(f"What is the {middle} {way} of?", last, (order.index(1),))


def _three_arguments(world: World, wanted: int) -> Asked | None:
    while len(world.facts) < wanted:
        world.give() if world.rng.random() < 0.4 else world.act(world.rng.choice(STORY_PEOPLE))
    questions: list[tuple[Callable[[Gift], tuple[str, ...]], str, str]] = [
        (lambda gift: (gift.thing, gift.to), "Who gave the {thing} to {to}?", "giver"),
        (lambda gift: (gift.giver, gift.to), "What did {giver} give to {to}?", "thing"),
        (lambda gift: (gift.giver, gift.thing), "Who did {giver} give the {thing} to?", "to"),
        (lambda gift: (gift.thing,), "Who received the {thing}?", "to"),
    ]
    told_once = [
        (question.format(**gift._asdict()), getattr(gift, asks), gift.fact)
        for known, question, asks in questions
        for gift in world.gifts
        if [known(other) for other in world.gifts].count(known(gift)) == 1
    ]
    if not told_once:
        return None
    question, answer, fact = world.rng.choice(told_once)
    return Asked(question, answer, (fact,))


_TELLERS: dict[str, Callable[[World, int], Asked | None]] = {
    "qa1": _one_fact,
    "qa2": _two_facts,
    "qa3": _three_facts,
    "qa4": _two_relations,
    "qa5": _three_arguments,
}
TASKS: Sequence[str] = tuple(_TELLERS)


# ---- A question about facts that stand among other text, before the length of the text is chosen -------------


@dataclass(frozen=True, slots=True)
class Story:
    """One question with a context of any size."""

    id: str
    question: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    """Sentences of the context that the answer follows from, in their order."""
    context: Callable[[int], str]
    """The facts among so many units of other text, from 0; the same for the same number."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def problem(self, context: str) -> Problem:
        """The problem with this context."""
        return Problem(self.id, self.question, self.answers, context, {**self.metadata, "evidence": self.evidence})


# ---- Facts that change over a document -----------------------------------------------------------------------


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
