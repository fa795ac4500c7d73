r"""How an extracted answer is compared with one gold. Every function returns 0.0 to 1.0.

    exact        normalised texts are equal
    f1           overlap of normalised words; yes, no and noanswer count whole or not at all
    contains     the words of one stand, in a row and whole, in the other
    published_*  the rules of MemAgent's code to the letter, for comparison with its figures

Guaranteed: a blank answer is never right. Words are compared whole: "no" is not in "Norway".
Not covered: `contains` accepts an answer that lists every option. That is a lenient metric for evaluation; to train,
use a rule of equality. `published_sub_em` is right for every gold when the answer is only an article or punctuation,
and accepts "no" for "Norway": it stands here to reproduce a published number, not to train.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from palimpsest.text.answers import published_box
from palimpsest.text.normalize import fold, hendrycks, normalize, squad, tokens

_CONTROL = re.compile(r"[\x00-\x1f]")
_WHOLE = frozenset({"yes", "no", "noanswer"})


def comparable(answer: str, gold: str) -> tuple[str, str]:
    """Both texts in the same form. Golds that are nothing but articles or punctuation keep them ("The The", "!!!").

    >>> comparable("The Hague.", "hague"), comparable("The The", "the the"), comparable("an", "The The")
    (('hague', 'hague'), ('the the', 'the the'), ('an', 'the the'))
    """
    gold_form = normalize(gold)
    if gold_form:
        return normalize(answer), gold_form
    return fold(answer), fold(gold)


def exact(answer: str, gold: str) -> float:
    """1.0 if the normalised texts are equal."""
    a, g = comparable(answer, gold)
    return float(a == g != "")


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of word precision and recall.

    >>> round(f1("Barack Hussein Obama", "Barack Obama"), 2), f1("yes", "yes it is")
    (0.8, 0.0)
    """
    a, g = comparable(answer, gold)
    if a != g and (a in _WHOLE or g in _WHOLE):
        return 0.0
    a_tokens, g_tokens = tokens(a), tokens(g)
    common = (Counter(a_tokens) & Counter(g_tokens)).total()
    return 2 * common / (len(a_tokens) + len(g_tokens)) if common else 0.0


def gold_in_answer(answer: str, gold: str) -> float:
    """1.0 if the answer says the gold, word for word.

    >>> gold_in_answer("Paris, France", "Paris"), gold_in_answer("Norway", "no")
    (1.0, 0.0)
    """
    a, g = comparable(answer, gold)
    return float(_stands_in(tokens(g), tokens(a)))


def answer_in_gold(answer: str, gold: str) -> float:
    """1.0 if the answer is part of the gold, word for word.

    >>> answer_in_gold("Paris", "Paris, France"), answer_in_gold(".", "Paris, France")
    (1.0, 0.0)
    """
    a, g = comparable(answer, gold)
    return float(_stands_in(tokens(a), tokens(g)))


def _stands_in(part: list[str], whole: list[str]) -> bool:
    if not part:
        return False
    return f"\0{chr(0).join(part)}\0" in f"\0{chr(0).join(whole)}\0"


def published_boxed(text: str, gold: str) -> float:
    r"""MemAgent's training reward for one gold, over the whole response.

    >>> published_boxed(r"\boxed{New York}", "new york"), published_boxed(r"\boxed{New York.}", "New York")
    (1.0, 0.0)
    """
    answer = published_box(text)
    return float(answer is not None and hendrycks(answer) == hendrycks(gold.lower()))


def published_sub_em(answer: str, gold: str) -> float:
    """MemAgent's headline metric: one text a substring of the other, after SQuAD's normalisation.

    >>> published_sub_em("no", "Norway"), published_sub_em("the", "Paris"), published_sub_em("", "Paris")
    (1.0, 1.0, 0.0)
    """
    a, g = squad(answer), squad(gold)
    return float(answer != "" and (g in a or a in g))


def string_match_all(reply: str, golds: Sequence[str]) -> float:
    """Share of the golds that stand in the reply, case aside: RULER's rule (arXiv 2404.06654), over one reply.

    >>> string_match_all("Values: 12 and 7.", ["12", "99"]), string_match_all("Norway", ["NO"])
    (0.5, 1.0)
    """
    said = _CONTROL.sub("\n", reply.strip()).strip().lower()
    return sum(gold.lower() in said for gold in golds) / len(golds)


def string_match_part(reply: str, golds: Sequence[str]) -> float:
    """1.0 if any gold stands in the reply, case aside: RULER's rule for questions with several spellings."""
    return float(string_match_all(reply, golds) > 0)
