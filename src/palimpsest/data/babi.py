"""People who move, carry and give things: the first five tasks of bAbI (arXiv 1502.05698), by a simulator of our own.

    qa1   one fact       Where is Mary?
    qa2   two facts      Where is the milk?                        who carries it, and where that one is
    qa3   three facts    Where was the milk before the garden?
    qa4   two relations  What is north of the office?
    qa5   three places   Who gave the milk to John?

BABILong (arXiv 2402.10790) hides such facts, in their order, between the sentences of a long text.

Guaranteed: a pure function of its key; what is asked has one answer, which follows from the facts that `evidence` names
and from no fewer.
Not covered: text around the facts that tells something else of people of these names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

PEOPLE = ("Mary", "John", "Sandra", "Daniel", "Julie", "Bill", "Fred", "Jeff")
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
            giver = self.rng.choice(PEOPLE)
            self.move(giver)
            free = [thing for thing in THINGS if self.within_reach(thing, giver)]
            if not free:
                return
            self.take(giver, self.rng.choice(free))
        thing = self.rng.choice(sorted(self.carriers))
        giver = self.carriers[thing][0]
        to = self.rng.choice([person for person in PEOPLE if person != giver])
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
        world.move(world.rng.choice(PEOPLE[:4]))
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
        person = world.rng.choice(PEOPLE[:4])
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
        world.give() if world.rng.random() < 0.4 else world.act(world.rng.choice(PEOPLE))
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
