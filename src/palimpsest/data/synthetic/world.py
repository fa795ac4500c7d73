"""The small world of synthetic documents: people, their relations, and statements about them.

Every statement ends in a full stop and names its subject and value, so a copied sentence is a complete fact. Relations
share no values, so a value identifies its relation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    """
    Aaron Abel Abigail Ada Adam Adele Adrian Agatha Agnes Aidan Aisha Alan Albert Alec Alfred Alice Alma Alva Amelia
    Amos Amy Ana Andrea Andrew Angela Anita Anna Anton Archie Ariel Arlene Arnold Arthur Astrid Audrey Aurora Axel
    Barbara Barry Beatrice Bella Benedict Bernard Bertha Beth Betty Bianca Bjorn Blake Bonnie Boris Brenda Brian
    Bridget Bruce Bruno Byron Caleb Calvin Camilla Carl Carla Carmen Carol Caspar Cecil Cedric Celia Charles Chloe
    Chris Clara Claude Clement Clive Colin Conrad Cora Craig Curtis Cyril Cyrus Daisy Dale Damian Daniel Daphne
    Darius Darren David Dean Deborah Delia Dennis Derek Diana Dirk Dominic Donald Dora Doreen Dorothy Douglas Duncan
    Dylan Edgar Edith Edmund Edna Edward Edwin Eileen Elaine Elena Eli Elias Eliot Elsa Emil Emma Enid Enzo Eric
    Erika Ernest Esther Ethan Eugene Eva Evelyn Ezra Fabian Fanny Fatima Felix Fergus Fiona Flora Floyd Frank Freda
    Frida Gabriel Gail Gareth Gavin Gemma Geoffrey George Gerald Gideon Gilbert Giles Gloria Gordon Graham Greta
    Gustav Hanna Harold Harriet Harvey Hector Helen Henry Herbert Herman Hilda Hiro Homer Horace Howard Hubert Hugo
    Ian Ibrahim Ida Igor Imogen Ingrid Irene Iris Isaac Isabel Ivan Jack Jacob Jake Janet Jared Jason Jasper Jean
    Jenny Jeremy Jerome Jesse Jill Joan Joel Jonas Joseph Joshua Joyce Judith Julia Justin Karen Karl Kate Katya
    Keith Kenneth Kevin Kirk Klaus Knut Lance Lara Laura Leah Lena Leo Leon Leslie Lester Lewis Liam Lila Linda
    Lionel Lisa Lloyd Lois Lorna Louis Lucas Lucy Luke Luna Luther Lydia Mabel Magnus Malcolm Marcel Marco Margaret
    Maria Marion Martha Martin Mary Mateo Matilda Matthew Maud Maurice Max Maya Mia Michael Mila Miles Millie Mina
    Miriam Mohamed Moira Molly Monica Morgan Moses Muriel Myra Nadia Nancy Naomi Nathan Neil Nelson Nicole Nigel
    Nina Noah Noel Nora Norman Odette Olaf Oliver Omar Oscar Otto Owen Pablo Pamela Patrick Paul Paula Pavel Pedro
    Percy Peter Petra Philip Phoebe Pierre Quentin Rachel Ralph Ramon Raymond Rebecca Regina Reuben Richard Rita
    Robert Roger Roland Roman Ronald Rosa Roy Rudolf Rufus Rupert Russell Ruth Ryan Sabina Sadie Samuel Sandra Sara
    Saul Sean Selma Sergei Seth Shane Sheila Sidney Silas Simon Sofia Sonia Stanley Stella Steven Stuart Susan Sven
    Sybil Tamara Tanya Tara Teresa Terry Thea Theo Thomas Tilda Timothy Tina Tobias Todd Tom Toni Tracy Trevor
    Tristan Trudy Ursula Valerie Vanessa Vera Vernon Victor Vincent Viola Vivian Walter Wanda Warren Wayne Wendy
    Wilbur Willa Winston Xavier Yara Yolanda Yuri Yusuf Yvonne Zachary Zelda Zoe
    """
)


@dataclass(frozen=True, slots=True)
class Relation:
    """One property of a person."""

    name: str
    statements: tuple[str, ...]
    """Sentence templates, with {s} for the subject and {v} for the value."""
    question: str
    """With {s}; for a two-hop question {s} is a phrase such as "the one Alice trusts"."""
    values: tuple[str, ...]
    of: str | None = None
    """Noun phrase for two-hop questions, with {s}; only for relations between people."""


def _attribute(name: str, verbs: str, question: str, values: str) -> Relation:
    return Relation(name.strip(), tuple(f"{{s}} {verb} {{v}}." for verb in verbs.split()), question, _words(values))


_ATTRIBUTES = """
    city: visited toured: Which city did {s} visit?: Athens Berlin Bergen Boston Cairo Delhi Dublin Geneva Havana
    Lima Lisbon London Lyon Madrid Milan Naples Oslo Paris Porto Prague;
    science: studied learned: Which science did {s} study?: algebra anatomy astronomy biology botany chemistry drama
    economics ethics geology geometry grammar history law logic medicine optics physics rhetoric zoology;
    animal: owns keeps: Which animals does {s} own?: badgers beavers camels cats crows dogs donkeys falcons ferrets
    foxes frogs goats hamsters hares horses lizards mice owls parrots rabbits;
    drink: drinks orders: What does {s} drink?: ale beer brandy broth cider cocoa coffee cola gin juice kefir
    lemonade mead milk port punch rum sherry tea wine;
    colour: wears picks: Which colour does {s} wear?: amber azure beige black blue bronze brown crimson cyan emerald
    green grey indigo ivory khaki lilac orange pink purple red;
    instrument: plays practises: Which instrument does {s} play?: accordion banjo bassoon bugle cello clarinet
    cornet fiddle flute guitar harp horn lute mandolin oboe organ piano sitar trumpet tuba;
    language: speaks knows: Which language does {s} speak?: Arabic Basque Bengali Breton Catalan Czech Danish Dutch
    English Finnish French Gaelic German Greek Hindi Irish Italian Korean Latin Polish;
    sport: enjoys prefers: Which sport does {s} enjoy?: archery badminton baseball bowling boxing canoeing chess
    cricket curling cycling darts diving fencing football golf hockey judo polo rowing tennis;
    food: eats cooks: What does {s} eat?: apples bacon beans bread butter cabbage cake carrots cheese cherries curry
    dumplings eggs figs garlic grapes honey lentils noodles olives;
    goods: sells makes: What does {s} sell?: baskets belts boots bricks candles carpets chairs clocks coats gloves
    hats jars keys knives lamps maps mirrors ropes tables toys
"""
"""Name, verbs, question, values."""
ATTRIBUTES = tuple(_attribute(*row.split(": ")) for row in _ATTRIBUTES.strip().split(";\n"))


def _tie(name: str, says: str, question: str) -> Relation:
    return Relation(name, (f"{{s}} {says} {{v}}.",), question, PEOPLE, f"the one {{s}} {says}")


TIES = (
    _tie("spouse", "married", "Whom did {s} marry?"),
    _tie("confidant", "trusts", "Whom does {s} trust?"),
    _tie("idol", "admires", "Whom does {s} admire?"),
    _tie("guide", "follows", "Whom does {s} follow?"),
    _tie("pupil", "teaches", "Whom does {s} teach?"),
)

RELATIONS = ATTRIBUTES + TIES

_FILLER = """
    The morning was cold. It rained for a while. Nobody said much. The street was quiet. A train passed by.
    The old clock struck nine. There was a long pause. The market closed early.
"""
FILLER = tuple(re.split(r"(?<=\.)\s+", _FILLER.strip()))


_BY_VERB = {statement.split()[1]: relation.name for relation in RELATIONS for statement in relation.statements}


class Fact(NamedTuple):
    """Content of a sentence."""

    subject: str
    relation: str
    """Name of a `Relation`; both of its statements are the same fact."""
    value: str


def read_fact(sentence: str) -> Fact | None:
    """The fact in a complete sentence; None for filler or a truncated sentence.

    >>> read_fact("Alice orders tea."), read_fact("Alice drinks tea.") == read_fact("Alice orders tea.")
    (Fact(subject='Alice', relation='drink', value='tea'), True)
    >>> read_fact("Alice drinks"), read_fact("The morning was cold.")
    (None, None)
    """
    words = sentence.strip().removesuffix(".").split()
    if len(words) != 3 or not sentence.rstrip().endswith("."):
        return None
    subject, verb, value = words
    relation = _BY_VERB.get(verb)
    return None if relation is None else Fact(subject, relation, value)


def unknown_to_bundled(vocabulary: int, texts: Iterable[str]) -> bool:
    """Whether a model with a vocabulary of this size is a bundled one, and the texts have no sentence of a form that it
    knows. False without texts.

    >>> unknown_to_bundled(512, ["It rained. Omar sells tea."]), unknown_to_bundled(512, ["It rained."])
    (False, True)
    >>> unknown_to_bundled(512, ["- Omar sells tea."])
    False
    """
    if vocabulary >= 4096:
        return False
    known = [any(map(read_fact, re.split(r"(?:(?<=\.)\s+|^\s*[-*•]\s+)", text, flags=re.MULTILINE))) for text in texts]
    return bool(known) and not any(known)
