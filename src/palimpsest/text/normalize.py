r"""Forms of a text in which two answers are compared.

    fold        case, unicode form, invisible characters, TeX and HTML dress and spaces do not count (markup.py)
    normalize   fold, and marks that mean nothing and English articles do not count either (signs.py)
    squad       SQuAD's rule to the letter: what the published evaluations used (arXiv 1606.05250)
    hendrycks   the clean-up of Hendrycks-MATH that MemAgent's training reward used (arXiv 2103.03874)

Guaranteed: every function is pure and total and takes linear time; `fold` and `normalize` give canonically equivalent
texts (NFC, NFD) one form. What is an object of JSON stays as it is written: its text is no answer by itself.
Not covered: spelling variants, diacritics left out, numbers in words, units, dates written another way; look-alike
letters of another script stay different (Cyrillic U+0430 is not Latin a).
"""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache

from palimpsest.text.markup import plain
from palimpsest.text.signs import undressed

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+")
_VULGAR = re.compile("(?<=[0-9])(?=[¼½¾⅐-⅞↉])")  # one and a half is not 11/2
_OBJECT = re.compile(r"""[\[ ]*+\{ ?(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|\w+) ?:""")
_IDEOGRAPH = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_IDEOGRAPH}]|[^\s{_IDEOGRAPH}]+")


def fold(text: str) -> str:
    r"""Caseless NFKC text without invisible characters and dress of TeX and HTML, single spaces.

    >>> fold("  \\text{Cafe\u0301}\u00a0Noir "), fold("<b>x²</b>")
    ('café noir', 'x^2')
    """
    text = _VULGAR.sub(" ", _RAISED.sub(lambda run: f"^{run[0]}", text))  # NFKC takes superscripts for digits
    # Case folding can undo NFKC and NFKC can undo case folding, hence once on either side (Unicode 3.13, D146).
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = plain("".join(c for c in text if unicodedata.category(c) != "Cf"))
    return unicodedata.normalize("NFKC", " ".join(text.split()))


@lru_cache(maxsize=1024)  # one answer is compared with many golds by many metrics
def normalize(text: str) -> str:
    r"""`fold` without punctuation and articles; signs that mean something are kept.

    >>> normalize("The $\\text{U.S.}$ Open."), normalize("-3.50"), normalize("1,000"), normalize("C++!")
    ('us open', '-3.50', '1000', 'c++')
    """
    folded = fold(text)
    return folded if _OBJECT.match(folded) else undressed(folded)


def tokens(text: str) -> list[str]:
    """Words of a normalised text; scripts written without spaces count a character (ideographs, kana).

    >>> tokens("new york"), tokens("東京 2020")
    (['new', 'york'], ['東', '京', '2020'])
    """
    return _TOKEN.findall(text)


def squad(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces: in this order.

    >>> squad("The  Beatles!"), squad("a—b")
    ('beatles', '—b')
    """
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", text).split())


_HENDRYCKS = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
    ("\\%", ""),
    (" .", " 0."),
    ("{.", "{0."),
    (" ", ""),
)
"""Replacements in the order in which they are made; the order is part of the rule."""


def hendrycks(text: str) -> str:
    r"""MemAgent's copy of the MATH clean-up: it lacks the fixing of fractions and roots, and keeps punctuation.

    >>> hendrycks("New York\n"), hendrycks("90^\\circ"), hendrycks("\\left( .5 \\right)")
    ('NewYork', '90', '(0.5)')
    """
    for old, new in _HENDRYCKS:
        text = text.replace(old, new)
    return text
