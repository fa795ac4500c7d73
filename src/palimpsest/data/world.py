"""The small world that synthetic documents talk about: people, what is true of them, and how one says it.

Every statement ends in a full stop and names its subject and its value, so a sentence stands for a fact wherever
it is copied. Values of one relation never occur in another, so a value tells its relation.
"""

from __future__ import annotations

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    """
    Alice Amelia Astrid Bella Bruno Carla Clara Daisy Daniel Diana Dora Edith Elena Elias Emma Esther Felix
    Fiona Flora Frank Frida George Gloria Greta Hanna Helen Henry Hilda Hugo Irene Isaac Ivan Jacob Jasper Joan
    Jonas Julia Karl Katya Laura Leo Louis Lucas Lucy Luna Marco Maria Martin Maya Mila Monica Nadia Nathan Nina
    Nora Oliver Oscar Paula Pedro Peter Quentin Rita Robert Rosa Samuel Sara Simon Sofia Stella Theo Thomas Tina
    Vera Victor Viola Walter Wanda Xavier Yara Zoe
    """
)


@dataclass(frozen=True, slots=True)
class Relation:
    """One thing that can be true of a person."""

    name: str
    statements: tuple[str, ...]
    """Ways to say it, with {s} for the subject and {v} for the value."""
    question: str
    """With {s}; for a two-hop question {s} is a phrase such as "the boss of Alice"."""
    values: tuple[str, ...]
    of: str | None = None
    """For a relation between people: the noun phrase that a two-hop question uses, with {s}."""


ATTRIBUTES = (
    Relation(
        "city",
        ("{s} lives in {v}.", "{s} has a house in {v}."),
        "Where does {s} live?",
        _words(
            """
            Athens Berlin Bergen Boston Cairo Delhi Dublin Geneva Havana Lima Lisbon London Lyon Madrid Milan
            Naples Oslo Paris Porto Prague
            """
        ),
    ),
    Relation(
        "job",
        ("{s} works as a {v}.", "{s} earns money as a {v}."),
        "What work does {s} do?",
        _words(
            """
            baker barber builder butcher carpenter chemist clerk cook dancer dentist driver farmer fisher
            gardener hunter judge lawyer miller miner nurse
            """
        ),
    ),
    Relation(
        "pet",
        ("{s} owns a {v}.", "{s} looks after a {v}."),
        "Which animal does {s} own?",
        _words(
            """
            badger beaver camel canary cat crow dog donkey falcon ferret fox frog goat goose hamster hare
            hedgehog horse lizard mouse
            """
        ),
    ),
    Relation(
        "drink",
        ("{s} drinks {v}.", "{s} always orders {v}."),
        "What does {s} drink?",
        _words(
            """
            ale beer brandy broth buttermilk champagne cider cocoa coffee cognac cola espresso gin grog juice
            kefir lemonade liqueur mead milk
            """
        ),
    ),
    Relation(
        "colour",
        ("{s} wears {v}.", "{s} paints everything {v}."),
        "Which colour does {s} wear?",
        _words(
            """
            amber aqua azure beige black blue bronze brown copper crimson cyan emerald golden green grey indigo
            ivory khaki lilac magenta
            """
        ),
    ),
    Relation(
        "instrument",
        ("{s} plays the {v}.", "{s} practises the {v}."),
        "Which instrument does {s} play?",
        _words(
            """
            accordion banjo bassoon bell bugle celesta cello clarinet cornet cymbal drum dulcimer fiddle flute
            gong guitar harp horn lute mandolin
            """
        ),
    ),
    Relation(
        "language",
        ("{s} speaks {v}.", "{s} reads books in {v}."),
        "Which language does {s} speak?",
        _words(
            """
            Arabic Basque Bengali Breton Catalan Czech Danish Dutch English Finnish French Gaelic German Greek
            Hindi Hungarian Irish Italian Korean Latin
            """
        ),
    ),
    Relation(
        "sport",
        ("{s} trains in {v}.", "{s} won a medal in {v}."),
        "In which sport does {s} train?",
        _words(
            """
            archery badminton baseball biathlon bowling boxing canoeing chess cricket curling cycling darts
            diving fencing football golf gymnastics handball hockey judo
            """
        ),
    ),
    Relation(
        "food",
        ("{s} loves {v}.", "{s} cooks {v} on Sundays."),
        "Which food does {s} love?",
        _words(
            """
            apples bacon beans bread butter cabbage cake carrots cheese cherries curry dumplings eggs figs
            garlic grapes honey lentils mushrooms noodles
            """
        ),
    ),
    Relation(
        "month",
        ("{s} was born in {v}.", "{s} has a birthday in {v}."),
        "When was {s} born?",
        _words("January February March April May June July August September October November December"),
    ),
)

TIES = tuple(
    Relation(
        noun,
        (f"The {noun} of {{s}} is {{v}}.",),
        f"Who is the {noun} of {{s}}?",
        PEOPLE,
        f"the {noun} of {{s}}",
    )
    for noun in ("boss", "mother", "neighbour", "teacher", "doctor")
)

RELATIONS = ATTRIBUTES + TIES

FILLER = (
    "The morning was cold.",
    "It rained for a while.",
    "Nobody said much.",
    "The street was quiet.",
    "A train passed by.",
    "The old clock struck nine.",
    "There was a long pause.",
    "The market closed early.",
)
