"""Forms of a text in which two answers are compared.

    fold        case, unicode form, invisible characters, TeX wrappers and spaces do not count
    normalize   fold, and punctuation and English articles do not count either (SQuAD's rule made unicode-aware)
    squad       SQuAD's rule to the letter: what the published evaluations used (arXiv 1606.05250)
    hendrycks   the clean-up of Hendrycks-MATH that MemAgent's training reward used (arXiv 2103.03874)

Guaranteed: every function is pure and total; `fold` and `normalize` give canonically equivalent texts (NFC, NFD) one
form.
Not covered: spelling variants, diacritics left out, numbers in words, units, dates written another way; look-alike
letters of another script stay different (Cyrillic U+0430 is not Latin a). Superscripts are digits here: x² is x2.
"""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|texttt|emph|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
_TEX_SPACE = re.compile(r"\\[ ,;:!~]|\\q?quad\b|(?<!\\)~")
_DECIMAL = re.compile(r"(?<![\d.])(\d+)\.(\d+)(?!\.?\d)")
_POINT_FIRST = re.compile(r"(?<![\w.])\.(?=\d)")
_MINUS = re.compile(r"(?<!\S)[-−](?=\d)")
_KEPT = {"\ue000": ".", "\ue001": "-"}  # private-use stand-ins while punctuation is removed
_IDEOGRAPH = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_IDEOGRAPH}]|[^\s{_IDEOGRAPH}]+")


def fold(text: str) -> str:
    r"""Caseless NFKC text without invisible characters and TeX wrappers, single spaces.

    >>> fold("  \\text{Cafe\u0301}\u00a0Noir ")
    'café noir'
    """
    # Case folding can undo NFKC and NFKC can undo case folding, hence once on either side (Unicode 3.13, D146).
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = "".join(c for c in text if unicodedata.category(c) != "Cf" and c not in _KEPT)
    text = _TEX_SPACE.sub(" ", text)
    unwrapped = _WRAPPER.sub(r"\1", text)
    while unwrapped != text:
        text, unwrapped = unwrapped, _WRAPPER.sub(r"\1", unwrapped)
    return unicodedata.normalize("NFKC", " ".join(text.split()))


@lru_cache(maxsize=1024)  # one answer is compared with many golds by many metrics
def normalize(text: str) -> str:
    r"""`fold` without punctuation and articles; a decimal point and a minus sign are kept, they are the number.

    >>> normalize("The $\\text{U.S.}$ Open."), normalize("-3.50"), normalize("1,000")
    ('us open', '-3.50', '1000')
    """
    text = _POINT_FIRST.sub("0.", fold(text))
    text = _MINUS.sub("\ue001", _DECIMAL.sub("\\1\ue000\\2", text))
    text = "".join(c for c in text if c not in string.punctuation and unicodedata.category(c)[0] != "P")
    for stand_in, character in _KEPT.items():
        text = text.replace(stand_in, character)
    return " ".join(_ARTICLES.sub(" ", text).split())


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
