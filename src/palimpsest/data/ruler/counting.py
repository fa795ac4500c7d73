"""Chains of variables, and words to be counted."""

from __future__ import annotations

import math
import string
from itertools import islice, pairwise

from palimpsest.data.ruler import words
from palimpsest.data.ruler.definitions import NOISE, PROMPTS, Task
from palimpsest.data.ruler.needles import Key, inserted
from palimpsest.data.ruler.sample import Sample
from palimpsest.seeding import keyed_random

_ZETA_2 = math.pi**2 / 6  # of the distribution's alpha, 2.0
_CODED = 6  # letters
_TOKENS_PER_CODED = 50  # of a prompt, for each coded word there is
_SHORT = 4096  # tokens: below, words of cwe are repeated fewer times
_SHORT_TIMES = (6, 1)


def variables(task: Task, key: Key) -> Sample:
    """Chains `VAR A = 12345`, `VAR B = VAR A`... in order among lines of noise; asked are all of the first."""
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

    def context(size: int) -> str:
        lines, rest = divmod(size, len(NOISE))
        made = [" ".join(NOISE)] * lines + ([" ".join(NOISE[:rest])] if rest else [])
        return "\n".join(inserted(made, chain, keyed_random(*key, "places", size)))

    filled = {"query": value, "count": str(hops + 1)}
    return Sample(PROMPTS["vt"], filled, tuple(names), tuple(text.strip() for text in chain), context)


def common_words(task: Task, key: Key, length: int) -> Sample:
    """A numbered list in which ten words stand more often than any other."""
    numbers = task.numbers
    times, others = (numbers["common_times"], numbers["uncommon_times"]) if length >= _SHORT else _SHORT_TIMES
    drawn = words.vocabulary(keyed_random(*key))
    common = list(islice(drawn, numbers["common"]))
    uncommon: list[str] = []

    def context(size: int) -> str:
        uncommon.extend(islice(drawn, max(0, size - len(uncommon))))
        listed = common * times + uncommon[:size] * others
        keyed_random(*key, "order").shuffle(listed)
        return " ".join(f"{place}. {word}" for place, word in enumerate(listed, 1))

    return Sample(PROMPTS["cwe"], {}, tuple(common), (), context)


def frequent_words(task: Task, key: Key, length: int) -> Sample:
    """Coded words, the k-th of them as often as 1/k^2; the first is dots, and the next three are asked for."""
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

    return Sample(prompt, {}, tuple(ranked[1 : 1 + task.numbers["asked"]]), (), context)
