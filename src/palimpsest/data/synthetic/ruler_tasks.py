"""Generators of RULER's tasks: needles, variable chains, word counts, questions among documents.

The haystack's units are sentences of noise, words of the text, or needles. A haystack of needles may end with a few
sentences of noise to reach any length. Questions among documents are SQuAD (qa_1) and HotpotQA (qa_2), from the user's
files. Their unit is a word of a distractor: complete documents, then a truncated one.
"""

from __future__ import annotations

import math
import random
import re
import string
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path

from palimpsest.data.assemble import document_block
from palimpsest.data.formats.problem_files import format_of, read_records
from palimpsest.data.record import Record
from palimpsest.data.synthetic.ruler_definitions import NEEDLE, NOISE, PROMPTS, RulerSample, RulerTask
from palimpsest.data.synthetic.world import ATTRIBUTES
from palimpsest.errors import DataError
from palimpsest.seeding import keyed_random

# ---- Words, numbers and UUIDs of needles ---------------------------------------------------------------------


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
    """Endless distinct draws of a kind, none in `without`."""
    used = set(without)
    while True:
        drawn = DRAWS[kind](rng)
        if drawn not in used:
            used.add(drawn)
            yield drawn


def vocabulary(rng: random.Random) -> Iterator[str]:
    """Endless distinct words: the English ones shuffled, then pseudowords of two or three syllables."""
    yield from rng.sample(WORDS, len(WORDS))
    used = set(WORDS)
    while True:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 3)))
        made = "".join(syllables) + rng.choice(_ENDS)
        if made not in used:
            used.add(made)
            yield made


# ---- Needles in a haystack -----------------------------------------------------------------------------------


_LEAST_WORDS = 100
_DEPTHS = tuple(round(100 * i / 39) for i in range(40))
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
Key = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Essay:
    """A haystack text, repeated if it is too short."""

    words: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Essay:
        """The text of a file. Raises DataError."""
        try:
            essay = cls(_words(path.read_text("utf-8")))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 at byte {error.start}; a haystack is plain text") from None
        except OSError as error:
            raise DataError(f"{path}: can't be read ({error.strerror})") from None
        if len(essay.words) < _LEAST_WORDS:
            raise DataError(f"{path}: has {len(essay.words)} words; a haystack needs {_LEAST_WORDS}")
        return essay

    def sentences(self, size: int) -> list[str]:
        """The first `size` words as sentences; the last always ends in a full stop.

        >>> Essay(("One", "two.", "Three.")).sentences(4)
        ['One two.', 'Three.', 'One.']
        """
        times = -(-size // len(self.words))
        text = " ".join((self.words * times)[:size])
        return _SENTENCE_END.split(text if text.endswith((".", "!", "?")) else f"{text}.") if text else []


def niah(task: RulerTask, key: Key, *, essay: Essay | None, count: Callable[[str], int]) -> RulerSample:
    """One item. `count` measures a needle in sentences of noise."""
    rng = keyed_random(*key)
    keys = list(islice(distinct(task.keys, rng), task.numbers.get("keys", 1)))
    per_key, query_count = task.numbers.get("values", 1), task.numbers.get("queries", 1)
    drawn = distinct(task.values, rng)
    held = {name: list(islice(drawn, per_key)) for name in keys}
    needles = [NEEDLE.format(kind=task.values, key=name, value=value) for name in keys for value in held[name]]
    rng.shuffle(needles)
    queries = rng.sample(keys, query_count)
    outputs = tuple(value for name in queries for value in held[name])
    evidence = [NEEDLE.format(kind=task.values, key=name, value=value) for name in queries for value in held[name]]
    context: Callable[[int], str]
    if task.haystack == "essay":
        assert essay is not None
        context = _in_essay(essay, needles, key)
    elif task.haystack == "noise":
        context = _in_lines(needles, key, _noise_lines)
    else:
        noise = _Needles(task, key, frozenset({*keys, *outputs}), max(1, count(needles[0]) // count(NOISE[0])))
        context = _in_lines(needles, key, noise.lines)
    return RulerSample(
        PROMPTS["niah" if per_key * query_count > 1 else "niah of one"],
        {"values": task.values, "value": task.values.removesuffix("s"), "query": _listed(queries)},
        outputs,
        tuple(evidence),
        context,
    )


def _listed(queries: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b, and c')
    """
    return f"{', '.join(queries[:-1])}, and {queries[-1]}" if len(queries) > 1 else queries[0]


def _in_essay(essay: Essay, needles: Sequence[str], key: Key) -> Callable[[int], str]:
    """Needles between sentences, at depths drawn from 40 equidistant ones."""

    def context(size: int) -> str:
        sentences = essay.sentences(size)
        depths = sorted(keyed_random(*key, "depths").sample(_DEPTHS, len(needles)))
        for depth, needle in reversed(list(zip(depths, needles, strict=True))):
            sentences.insert(len(sentences) * depth // 100, needle)
        return " ".join(sentences)

    return context


def _in_lines(needles: Sequence[str], key: Key, lines: Callable[[int], list[str]]) -> Callable[[int], str]:
    def context(size: int) -> str:
        made = lines(size)
        return "\n".join(inserted(made, needles, keyed_random(*key, "places", size)))

    return context


def inserted(lines: list[str], extra: Sequence[str], rng: random.Random) -> list[str]:
    """`extra` in order among `lines`, all positions equally likely.

    >>> inserted(["a", "b"], ["X", "Y"], random.Random(0))
    ['a', 'X', 'b', 'Y']
    """
    places = set(rng.sample(range(len(lines) + len(extra)), len(extra)))
    ours, theirs = iter(extra), iter(lines)
    return [next(ours) if i in places else next(theirs) for i in range(len(lines) + len(extra))]


def _noise_lines(size: int) -> list[str]:
    lines, rest = divmod(size, len(NOISE))
    return [" ".join(NOISE)] * lines + ([" ".join(NOISE[:rest])] if rest else [])


class _Needles:
    """Lines of distractor needles, `worth` units each, and a last line of noise for the rest."""

    def __init__(self, task: RulerTask, key: Key, taken: frozenset[str], worth: int) -> None:
        self._keys = distinct(task.keys, keyed_random(*key, "keys"), taken)
        self._values = distinct(task.values, keyed_random(*key, "values"), taken)
        self._kind, self._worth = task.values, worth
        self._made: list[str] = []

    def lines(self, size: int) -> list[str]:
        count, rest = divmod(size, self._worth)
        while len(self._made) < count:
            pair = {"key": next(self._keys), "value": next(self._values)}
            self._made.append(NEEDLE.format(kind=self._kind, **pair))
        noise = [NOISE[i % len(NOISE)] for i in range(rest)]
        return self._made[:count] + ([" ".join(noise)] if noise else [])


# ---- Questions among documents -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RulerQuestion:
    """One question with its documents."""

    text: str
    answers: tuple[str, ...]
    needed: tuple[str, ...]
    """Documents in every context."""
    near: tuple[str, ...] = ()
    """First distractors."""


@dataclass(frozen=True, slots=True)
class RulerQuestions:
    """Questions of a file in order, and all their documents."""

    asked: tuple[RulerQuestion, ...]
    documents: tuple[str, ...]


def read_squad(path: Path) -> RulerQuestions:
    """Answerable questions of SQuAD's own file, version 1.1 or 2.0, or of its rows. Raises DataError."""
    if (kind := format_of(path).name) != "squad":
        raise DataError(f"{path}: not SQuAD's file (an object with data, paragraphs and qas) or its rows, but {kind}")
    records = list(read_records(path))
    articles = dict[object, dict[str, None]]()
    for record in records:
        articles.setdefault(record.metadata.get("title"), {})[record.context or ""] = None
    items = tuple(_of_article(record, articles[record.metadata.get("title")]) for record in records if record.answers)
    return RulerQuestions(items, tuple(sorted({text for texts in articles.values() for text in texts})))


def _of_article(record: Record, texts: Iterable[str]) -> RulerQuestion:
    context = record.context or ""
    return RulerQuestion(record.question, record.answers, (context,), tuple(text for text in texts if text != context))


def read_hotpot(path: Path) -> RulerQuestions:
    """Questions with their paragraphs, all needed in every context, as published. Raises DataError."""
    questions = []
    for record in read_records(path):
        if record.paragraphs is None:
            raise DataError(f"{path}: problem {record.id} has no paragraphs; use HotpotQA's distractor setting")
        questions.append(RulerQuestion(record.question, record.answers, record.paragraphs))
    documents = sorted({text for question in questions for text in question.needed})
    return RulerQuestions(tuple(questions), tuple(documents))


def answering(question: RulerQuestion, questions: RulerQuestions, key: Key) -> RulerSample:
    """One item: the question's documents at random positions among the others."""
    rng = keyed_random(*key)
    held = {*question.needed, *question.near}
    remaining = [text for text in questions.documents if text not in held]
    distractors = [*rng.sample(question.near, len(question.near)), *rng.sample(remaining, len(remaining))]
    ends = list(accumulate(len(text.split()) for text in distractors))

    def context(size: int) -> str:
        full = bisect_right(ends, size)
        chosen = [*question.needed, *distractors[:full]]
        if rest := size - (ends[full - 1] if full else 0):
            chosen.append(" ".join(distractors[full].split()[:rest]))
        keyed_random(*key, "order", len(chosen)).shuffle(chosen)
        return document_block(chosen)

    most = ends[-1] if ends else 0
    return RulerSample(PROMPTS["qa"], {"query": question.text}, question.answers, question.needed, context, most)


# ---- Chains of variables and word counts ---------------------------------------------------------------------


_ZETA_2 = math.pi**2 / 6  # of the distribution's alpha, 2.0
_CODED = 6  # letters
_TOKENS_PER_CODED = 50  # prompt tokens per coded word
_SHORT = 4096  # tokens; shorter cwe prompts repeat words less often
_SHORT_TIMES = (6, 1)


def variables(task: RulerTask, key: Key) -> RulerSample:
    """Chains `VAR A = 12345`, `VAR B = VAR A`... in order among lines of noise; the answer is the first chain."""
    rng = keyed_random(*key)
    hops, chains = task.numbers["hops"], task.numbers["chains"]
    names: list[str] = []
    while len(names) < (hops + 1) * chains:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        if name not in names:
            names.append(name)
    value = str(rng.randint(10_000, 99_999))
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {after} = VAR {before} " for before, after in pairwise(names)]
    filled, context = {"query": value, "count": str(hops + 1)}, _in_lines(chain, key, _noise_lines)
    return RulerSample(PROMPTS["vt"], filled, tuple(names), tuple(text.strip() for text in chain), context)


def common_words(task: RulerTask, key: Key, length: int) -> RulerSample:
    """A numbered list in which ten words occur more often than others."""
    numbers = task.numbers
    times, uncommon_times = (numbers["common_times"], numbers["uncommon_times"]) if length >= _SHORT else _SHORT_TIMES
    drawn = vocabulary(keyed_random(*key))
    common = list(islice(drawn, numbers["common"]))
    uncommon: list[str] = []

    def context(size: int) -> str:
        uncommon.extend(islice(drawn, max(0, size - len(uncommon))))
        listed = common * times + uncommon[:size] * uncommon_times
        keyed_random(*key, "order").shuffle(listed)
        return " ".join(f"{index}. {word}" for index, word in enumerate(listed, 1))

    return RulerSample(PROMPTS["cwe"], {}, tuple(common), (), context)


def frequent_words(task: RulerTask, key: Key, length: int) -> RulerSample:
    """Coded words with frequencies 1/k^2; the first is dots, the next three are the answer."""
    rng = keyed_random(*key)
    prompt = PROMPTS["fwe"]
    size_of_vocabulary = max((length - prompt.tokens_to_generate) // _TOKENS_PER_CODED, task.numbers["asked"] + 1)
    coded: dict[str, None] = {}
    while len(coded) < size_of_vocabulary:
        coded["".join(rng.choices(string.ascii_lowercase, k=_CODED))] = None
    ranked = ["...", *list(coded)[1:]]

    def context(size: int) -> str:
        listed = [word for rank, word in enumerate(ranked, 1) for _ in range(int(size / rank**2 / _ZETA_2))]
        keyed_random(*key, "order").shuffle(listed)
        return " ".join(listed)

    return RulerSample(prompt, {}, tuple(ranked[1 : 1 + task.numbers["asked"]]), (), context)
