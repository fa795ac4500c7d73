r"""Which marks of a text are signs that mean something, and which are only its dress.

    dress    quotes, brackets, sentence marks, apostrophes, emphasis (*x*, _x_, `x`), bullets, hyphens in words,
             periods of abbreviations, commas between thousands, a plus before a number, articles before a word
    signs    what touches a number or is an operator: 3.5  -3  1/2  <5  5%  $5  10:30  1986-2013  192.168.1.1  5!  x^2
             what belongs to a name: C++  C#  A+  A-  AT&T  @user  snake_case  vitamin A

Brackets and marks between words part them, "Paris,France" is two words; a hyphen or an apostrophe does not, "Wi-Fi"
is "WiFi". An operand is a digit or a letter that stands alone.

Guaranteed: pure, total, linear time.
Not covered: grouping ("(1, 2)" is "1, 2"); spaces between thousands and a decimal comma ("3,5" is "3, 5"); units.
"""

from __future__ import annotations

import re
import unicodedata

_LETTER = r"[^\W\d_]"
_AFTER_OPERAND = rf"(?:(?<=\d)|(?<=\b{_LETTER}))"
_BEFORE_OPERAND = rf"(?=\d|{_LETTER}\b)"
_MONEY = "$¢£¤¥₣₤₦₩₪₫€₱₴₹₺₽₿"
_IDEOGRAPH = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ARTICLE = r"(?:an?|the)"


class _Marks(dict[int, str]):
    """For str.translate: a mark beyond ASCII as the ASCII mark of the same use, or a space. Filled as it is asked."""

    def __init__(self) -> None:
        for characters, mark in (
            ("—―", " "),  # dashes of sentences
            ("−", "-"),
            ("×⋅∙∗", "*"),
            ("÷⁄∕", "/"),
            ("≈∼", "~"),
            ("‘’‛′׳", "'"),
            ("“”„‟«»״", '"'),
        ):
            self.update(dict.fromkeys(map(ord, characters), mark))

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        kept = category[0] != "P" or code < 128 or character in "·‰‱§"
        self[code] = character if kept else "-" if category == "Pd" else " "
        return self[code]


_marks = _Marks()


def _rule(pattern: str, replacement: str) -> tuple[re.Pattern[str], str]:
    return re.compile(pattern), replacement


_QUOTED = re.compile(r"(?:^|[\s(\[{])[\"']")
_PRIMES = (
    _rule(rf"{_AFTER_OPERAND}''(?!\w)", "″"),
    _rule(rf"{_AFTER_OPERAND}'(?=\d|\s\d+(?:\.\d+)?(?:\"|''))\s?", "′"),  # 5'10" and 5' 10"
    _rule(rf"{_AFTER_OPERAND}'(?![\w'])", "′"),
    _rule(r"(?<=\d)\"(?!\w)", "″"),
)
_OPENING_STAR = re.compile(r"(?<![\w*)!])\*+(?=[^\s*])")
_TRAILING_STAR = _rule(rf"(?<=\b{_LETTER})\*(?![\w*])", "∗")  # the A* of a search

_RULES = (
    _rule(r"[\"'`\\]", ""),
    _rule(r"(?<![^\W_])(?<!_)_++|(?<!_)_++(?![^\W_])", ""),
    _rule(r"(?<=[\w)!]) \* (?=[\w(])", "*"),
    _rule(r"(?<![\w)!*])\*++|(?<!\*)\*++(?![\w(*])", ""),
    _rule(rf"(?<![^\s(\[{{])(?<!\ba )(?<!\ban )(?<!\bthe )(?:{_ARTICLE} )++(?=[^\w\s]*+(?!{_ARTICLE}(?!\w))\w)", ""),
    # pairs of brackets that aren't a pair, [1, 2): brackets of their own, for no such character is left in the text
    _rule(r"\[([^\[\]()]*+)\)", r"⟦\1⟯"),
    _rule(r"\(([^\[\]()]*+)\]", r"⟮\1⟧"),
    # comparisons, approximations, powers, money and units stand at their operand
    _rule(r"<=", "≤"),
    _rule(r">=", "≥"),
    _rule(r" ?(-?-?[<>=≤≥≠±∓^]+) ?", r"\1"),
    _rule(r"~ ", "~"),
    _rule(rf"(?<=[{_MONEY}]) (?=[-+]?\.?\d)", ""),
    _rule(rf"(?<=\d) (?=[%‰‱°′″]|[{_MONEY}](?![\w.+-]))", ""),
    _rule(r"\$(?![-+]?\.?\d)(?<!\d\$)", ""),
    # commas, periods, colons
    _rule(r"\.{2,}", " "),
    _rule(r"(?<![\w.])\.(?=\d)", "0."),
    _rule(r"(?<=\d) ?· ?(?=\d)", "*"),
    _rule(rf"(?<={_LETTER})[.·](?={_LETTER})", ""),
    _rule(r"\.(?!\d)|(?<!\d)\.|·", " "),
    _rule(r"(?<=\d) : (?=\d)", ":"),
    _rule(r":(?!\d)|(?<!\d):", " "),
    _rule(rf"(?<!\d)(?<!\b{_LETTER})!", " "),
    _rule(r"[,;?()\[\]{}]", " "),
    # operators
    _rule(r"(?<=\w) & (?=\w)", " and "),
    _rule(r"(?<=\w) / (?=\w)", "/"),
    _rule(rf"{_AFTER_OPERAND} ([-+]) {_BEFORE_OPERAND}", r"\1"),
    _rule(r"(?<![\w^!°%′″)])\+(?=\.?\d)", ""),
    _rule(r"(?<![\w#])#++(?= |$)", " "),
)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})++(?![\d]|,\d)")
_HYPHEN = re.compile(
    rf"(?P<sign>{_AFTER_OPERAND}-{_BEFORE_OPERAND}"  # 1986-2013, x-1
    rf"|(?<![\w-])-(?=[{_MONEY}√∞π]?\.?\d|[∞π]|√?{_LETTER}\b)"  # -3, -x
    r"|(?<=\de)-(?=\d)"  # 1e-5
    r"|(?:(?<=\d)|(?<=\b\w)|(?<=\b\w\w)|(?<=\^))-(?![\w-]))"  # A-, Cl-
    r"|(?P<joined>(?<=[^\s-])-(?=[^\s-]))|-"
)
_PARTED_IDEOGRAPHS = re.compile(rf"(?<=[{_IDEOGRAPH}]) (?=[{_IDEOGRAPH}])")


def undressed(text: str) -> str:
    """Folded text (normalize.py) without its dress, single spaces.

    >>> undressed('"the c++, or c#!"'), undressed("5% – 10%"), undressed("the u.s. wi-fi"), undressed("1,000 - 2,000")
    ('c++ or c#', '5% 10%', 'us wifi', '1000-2000')
    """
    text = text.translate(_marks)
    if not _QUOTED.search(text):
        for pattern, replacement in _PRIMES:
            text = pattern.sub(replacement, text)
    if not _OPENING_STAR.search(text):
        text = _TRAILING_STAR[0].sub(_TRAILING_STAR[1], text)
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _HYPHEN.sub(_hyphen, text)
    return _PARTED_IDEOGRAPHS.sub("", " ".join(text.split()))


def _hyphen(match: re.Match[str]) -> str:
    if match["sign"]:
        return "-"
    return "" if match["joined"] else " "
