"""Words, numbers and UUIDs that needles are made of. Published: the lists of wonderwords; these are our own."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator

from palimpsest.data.world import ATTRIBUTES


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    """
    able ancient angry ashen bitter bold brave bright brisk broad calm careful clever cold coral crisp curious
    dainty damp dapper daring dear deep dense dim distant dusty eager early earnest elegant empty even exact faint
    fair famous fancy fast fierce fine firm flat fond frank fresh frosty full gentle giant glad golden grand grave
    great hardy harsh hasty heavy hidden high hollow honest humble hungry idle keen kind large late lazy lean light
    lively lonely long loud loyal lucky mellow merry mighty mild misty modest narrow neat new nimble noble odd old
    open pale plain polite prompt proud pure quick quiet rapid rare ready rich rigid ripe robust rough round royal
    rustic sad safe salty scarce serene sharp short shy silent silver simple sleek slim slow small smooth soft
    solemn sour spare stark steady steep stern stiff strange strict strong sturdy subtle sunny sweet swift tall tame
    tender thin tidy tiny tough tranquil true vague vast vivid warm wary weak wide wild wise witty young zesty
    """
)
_NOUNS = _words(
    """
    acorn anchor anvil apron arch arrow attic axle badge bank barrel basin beach beacon bell bench blade blanket
    bolt bottle boulder bowl branch bridge brook brush bucket bush button cabin cable canal canyon canvas cape
    castle cave cellar chain chapel chest chimney cliff cloud coast collar column compass cottage cradle crane
    crater creek crown curtain desert dock door drawer drum dune engine fabric factory fence ferry field flag flame
    flute forest forge fountain frame garden gate glacier glade globe gown grove hall hammer harbor hill hook island
    jacket jewel jungle kettle kite ladder lagoon lake lantern lawn ledge lens lever library lighthouse lock loom
    mantle marble market marsh mask mast meadow mill mine monument moon mountain museum nest net oak oasis ocean
    orchard oven paddle palace path pebble pillar pipe plain planet plaza plough pocket pond prairie quarry quilt
    raft railway reef ribbon ridge river road rocket roof rope saddle sail scarf shed shell shield ship shore shovel
    sleeve slope spade spoon spring square staircase star statue stone street sword tent theater thread throne tower
    trail tree trumpet tunnel valley vase village vine wagon wall well wheel whistle willow window wood yard
    """
)
NOUNS = tuple(sorted({*_NOUNS, *(value.lower() for relation in ATTRIBUTES for value in relation.values)}))
WORDS = tuple(sorted({*ADJECTIVES, *NOUNS}))

_ONSETS, _VOWELS, _ENDS = _words("b br c cl d dr f g gl h j k l m n p pr r s st t tr v w"), "aeiou", "lmnrstx"


def number(rng: random.Random) -> str:
    """Seven digits."""
    return str(rng.randint(10**6, 10**7 - 1))


def word(rng: random.Random) -> str:
    """An adjective and a noun, such as `calm-harbor`."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def uuid4(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


DRAWS: dict[str, Callable[[random.Random], str]] = {"words": word, "numbers": number, "uuids": uuid4}


def distinct(kind: str, rng: random.Random, without: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    """Draws of a kind without end, none twice and none of `without`."""
    seen = set(without)
    while True:
        drawn = DRAWS[kind](rng)
        if drawn not in seen:
            seen.add(drawn)
            yield drawn


def vocabulary(rng: random.Random) -> Iterator[str]:
    """Words without end, none twice: the English ones shuffled, then made-up ones of two or three syllables."""
    yield from rng.sample(WORDS, len(WORDS))
    seen = set(WORDS)
    while True:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 3)))
        made = "".join(syllables) + rng.choice(_ENDS)
        if made not in seen:
            seen.add(made)
            yield made
