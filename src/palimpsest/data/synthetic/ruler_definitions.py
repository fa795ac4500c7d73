"""RULER's thirteen tasks as published (arXiv 2404.06654; NVIDIA/RULER, Apache-2.0), and one sample of a task.

The prompts use NVIDIA's wording, so that scores are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["niah", "vt", "cwe", "fwe", "qa"]
Matcher = Literal["string_match_all", "string_match_part"]


@dataclass(frozen=True, slots=True)
class RulerPrompt:
    """Template around a context, with the fields {query}, {values}..."""

    before: str
    after: str
    answer_prefix: str
    tokens_to_generate: int
    asks_first: bool = True
    """True if a question needs the text before the context."""

    def full_prompt(self, context: str, names: Mapping[str, str]) -> str:
        """The prompt of a model without a memory policy, including the answer prefix."""
        return self.before.format(**names) + context + (self.after + self.answer_prefix).format(**names)

    def question(self, names: Mapping[str, str]) -> str:
        """The question without the context."""
        templates = (self.before, self.after) if self.asks_first else (self.after,)
        return "\n".join(part.format(**names).strip() for part in templates)

    def prefix(self, names: Mapping[str, str]) -> str:
        return self.answer_prefix.format(**names)


@dataclass(frozen=True, slots=True)
class RulerTask:
    """One of the thirteen tasks."""

    kind: Kind
    haystack: str = ""
    keys: str = "words"
    values: str = "numbers"
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Parameters other than 1 (niah), or of the definition."""
    matcher: Matcher = "string_match_all"


PROMPTS: dict[str, RulerPrompt] = {
    "niah": RulerPrompt(
        "Some special magic {values} are hidden within the following text. Make sure to memorize it. I will quiz you "
        "about the {values} afterwards.\n",
        "\nWhat are all the special magic {values} for {query} mentioned in the provided text?",
        " The special magic {values} for {query} mentioned in the provided text are",
        128,
    ),
    "niah of one": RulerPrompt(
        "A special magic {value} is hidden within the following text. Make sure to memorize it. I will quiz you "
        "about the {value} afterwards.\n",
        "\nWhat is the special magic {value} for {query} mentioned in the provided text?",
        " The special magic {value} for {query} mentioned in the provided text is",
        128,
    ),
    "vt": RulerPrompt(
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
        "\nQuestion: Find all variables that are assigned the value {query} in the text above.",
        " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned "
        "the value {query}, they are: ",
        30,
    ),
    "cwe": RulerPrompt(
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones "
        "that appear most often.\n",
        "\nQuestion: What are the 10 most common words in the above list?",
        " Answer: The top 10 words that appear most often in the list are:",
        120,
    ),
    "fwe": RulerPrompt(
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
        "appeared coded words. ",
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
        "appeared words in the above coded text?",
        " Answer: According to the coded text above, the three most frequently appeared words are:",
        50,
    ),
    "qa": RulerPrompt(
        "Answer the question based on the given documents. Only give me the answer and do not output any other "
        "words.\n\nThe following are given documents.\n\n",
        "\n\nAnswer the question based on the given documents. Only give me the answer and do not output any other "
        "words.\n\nQuestion: {query}",
        " Answer:",
        32,
        asks_first=False,
    ),
}

TASKS: dict[str, RulerTask] = {
    "niah_single_1": RulerTask("niah", "noise"),
    "niah_single_2": RulerTask("niah", "essay"),
    "niah_single_3": RulerTask("niah", "essay", values="uuids"),
    "niah_multikey_1": RulerTask("niah", "essay", numbers={"keys": 4}),
    "niah_multikey_2": RulerTask("niah", "needle"),
    "niah_multikey_3": RulerTask("niah", "needle", keys="uuids", values="uuids"),
    "niah_multivalue": RulerTask("niah", "essay", numbers={"values": 4}),
    "niah_multiquery": RulerTask("niah", "essay", numbers={"keys": 4, "queries": 4}),
    "vt": RulerTask("vt", "noise", numbers={"chains": 1, "hops": 4}),
    "cwe": RulerTask("cwe", numbers={"common": 10, "common_times": 30, "uncommon_times": 3}),
    "fwe": RulerTask("fwe", numbers={"asked": 3}),
    "qa_1": RulerTask("qa", "squad", matcher="string_match_part"),
    "qa_2": RulerTask("qa", "hotpotqa", matcher="string_match_part"),
}

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
NEEDLE = "One of the special magic {kind} for {key} is: {value}."


# ---- One item of a task before its length is chosen, and the choice ------------------------------------------


CLOSE = 0.02
"""Maximum relative shortfall of a prompt below its requested length, which it never exceeds."""
_AROUND = 12
_AIM = 0.993


@dataclass(frozen=True, slots=True)
class RulerSample:
    """One question with a context of any size."""

    prompt: RulerPrompt
    names: Mapping[str, str]
    """Values of the prompt's fields."""
    outputs: tuple[str, ...]
    evidence: tuple[str, ...]
    """Texts of the context that the answer needs; empty if it needs the whole context."""
    context: Callable[[int], str]
    """Deterministic context of N >= 0 units of filler (sentences, words)."""
    most: int | None = None
    """Maximum number of units."""

    def length(self, context: str, count: Callable[[str], int]) -> int:
        """Tokens of the whole prompt plus the answer budget, as published."""
        return count(self.prompt.full_prompt(context, self.names)) + self.prompt.tokens_to_generate


def fitted(measure: Callable[[int], int], limit: int, *, hint: int = 1, most: int | None = None) -> int | None:
    """A size whose measure is within 2% below `limit`; None if none is found.

    Interpolates linearly, bisects every third time, then tries nearby sizes, because a measure may vary by a few
    tokens.

    >>> fitted(lambda size: 100 + 7 * size, 10_000), fitted(lambda size: 100 + 7 * size, 105)
    (1404, None)
    """
    least = measure(0)
    if least > limit:
        return None
    low, low_at, high, high_at = 0, least, most if most is None else most + 1, 0
    tries, size = 0, hint
    while low_at < (1 - CLOSE) * limit:
        if high is not None and high - low <= 1:
            around = range(max(0, low - _AROUND), low + _AROUND if most is None else min(low + _AROUND, most) + 1)
            return next((size for size in around if (1 - CLOSE) * limit <= measure(size) <= limit), None)
        size = max(low + 1, size if high is None else min(size, high - 1))
        if (at := measure(size)) <= limit:
            low, low_at = size, at
        else:
            high, high_at = size, at
        tries += 1
        size = _next(low, low_at, high, high_at, least, limit, middle=tries % 3 == 0)
    return low


def _next(low: int, low_at: int, high: int | None, high_at: int, least: int, limit: int, *, middle: bool) -> int:
    if high is not None and (middle or not high_at):
        return (low + high) // 2
    rise = (high_at - low_at) / (high - low) if high is not None else (low_at - least) / low if low else 1.0
    guess = low + int((_AIM * limit - low_at) / max(rise, 1e-6))
    return guess if high is not None else min(guess, 8 * low + 64)
