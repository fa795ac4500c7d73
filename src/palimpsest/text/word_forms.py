"""Words of a text in the forms in which a sentence and its paraphrase are compared.

    1,200   1200             one number; "5 million" is 5000000, "third" is 3, "12th" is 12, "1941–45" has 1945 too
    5 km  $5  <5  1914-1918  one number: none of its parts stays without the other; a day, not without its month
    Jan.    January          one month; 1970-07-30 is "30 July 1970"
    films   film             one stem, and "wrote" is "write"; suffixes of English only
    Zoë     Zoe              diacritics of Latin letters don't count
    U.S.    US               periods of abbreviations don't count
    罗马是   罗马 马是         scripts without spaces: pairs of characters; runs of katakana are words

Guaranteed: standard library only; pure; linear time; no sentence has more than 2 * `LONGEST` words.
Not covered: suffixes of other languages; spelled-out numbers beyond twelve; numerals of Chinese characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Literal

# ---- Closed lists of English words that a comparison of sentences treats specially ---------------------------


FUNCTION = frozenset(
    str.split("""
    a an the this that these those some any such same other another
    i you he she it we they me him her us them my your his its our their mine hers theirs himself herself itself
    themselves who whom whose which what there here where when
    is are was were be been being am has have had having do does did doing s d ll re ve m
    and or as of in on at by for from to with into onto upon about within during through throughout between among
    amongst while whereas but so if then also too very both either well
    however moreover furthermore additionally respectively according including include includes included e g i etc
    one ones
    """)
)
"""Words without content."""

QUALIFIERS = frozenset(
    str.split("will would shall should can could may might must ought need only sole solely all every each always most")
)
"""Modal verbs and quantifiers: they decide how far a statement reaches."""

NEGATIONS = frozenset(str.split("not no never none neither nor without cannot nobody nothing nowhere non"))
"""Words that negate a statement; so does n't."""

MONTHS = tuple(str.split("january february march april may june july august september october november december"))

_NUMBERS = """
    zero; first; two second twice; three third thrice; four fourth; five fifth; six sixth; seven seventh; eight eighth;
    nine ninth; ten tenth; eleven eleventh; twelve twelfth
"""
NUMBERS = {word: str(value) for value, words in enumerate(_NUMBERS.split(";")) for word in words.split()}
"""Number words and their values. "one" is a pronoun more often than a number."""

SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Factor of the number before the word."""

SHORT = {
    "km": "kilometre", "kilometer": "kilometre", "cm": "centimetre", "centimeter": "centimetre", "mm": "millimetre",
    "millimeter": "millimetre", "meter": "metre", "mi": "mile", "ft": "foot", "feet": "foot", "kg": "kilogram",
    "lb": "pound", "lbs": "pound", "yrs": "year", "yr": "year", "hrs": "hour", "hr": "hour", "mins": "minute",
    "min": "minute", "st": "saint", "mt": "mount", "ft.": "fort", "co": "company", "corp": "corporation",
    "inc": "incorporated", "ltd": "limited", "jr": "junior", "sr": "senior", "dr": "doctor", "prof": "professor",
    "gov": "governor", "gen": "general", "col": "colonel", "lt": "lieutenant", "sgt": "sergeant", "capt": "captain",
    "dept": "department", "univ": "university", "assn": "association", "vs": "versus", "approx": "approximately",
    "ca": "circa", "no.": "number", "vol": "volume", "ave": "avenue", "blvd": "boulevard", "bros": "brothers",
    "natl": "national", "intl": "international", "govt": "government", "sq": "square", "est": "established",
    "usa": "us", "color": "colour", "theater": "theatre", "center": "centre", "tv": "television",
    "jan": "january", "feb": "february", "mar": "march", "apr": "april", "jun": "june", "jul": "july",
    "aug": "august", "sep": "september", "sept": "september", "oct": "october", "nov": "november", "dec": "december",
}  # fmt: skip
"""Abbreviations and second spellings, and the form of both."""

UNITS = str.split("""
    kilometre centimetre millimetre metre mile yard foot inch kilogram gram pound ton tonne litre gallon acre hectare
    square cubic degree celsius fahrenheit percent permille cent dollar euro yen rupee krw hour minute watt volt hertz
    sec mph bc bce am pm
""")
"""Words that belong to the number before them."""

SYMBOLS = {"%": "percent", "‰": "permille", "°": "degree", "$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
SYMBOLS |= {"₹": "rupee", "₩": "krw"}
"""Signs of units and their words."""

LETTERS = {"m": "metre", "g": "gram", "l": "litre", "h": "hour", "s": "sec", "C": "celsius", "F": "fahrenheit"}
"""Units of one letter, after a number or a degree sign."""

_SIGNS = "<>≤≥±~+#"

_VERBS = """
    write wrote written; begin began begun; become became; win won; lose lost; make made; take took taken;
    give gave given; get got gotten; go went gone; come came; see saw seen; know knew known; think thought;
    find found; lead led; leave left; hold held; keep kept; build built; buy bought; sell sold; bring brought;
    teach taught; catch caught; fight fought; send sent; spend spent; lend lent; bend bent; meet met; feed
    fed; run ran; sing sang sung; swim swam swum; drink drank drunk; ring rang rung; sink sank sunk; speak
    spoke spoken; break broke broken; choose chose chosen; freeze froze frozen; steal stole stolen; wear wore
    worn; bear bore; tear tore torn; drive drove driven; ride rode ridden; rise rose risen; arise arose
    arisen; fall fell fallen; grow grew grown; throw threw thrown; fly flew flown; draw drew drawn; blow blew
    blown; show shown; eat ate eaten; beat beaten; hide hid hidden; shoot shot; sit sat; stand stood;
    understand understood; tell told; say said; pay paid; lay laid; lie lay lain; sleep slept; sweep swept;
    feel felt; mean meant; deal dealt; dream dreamt; learn learnt; burn burnt; die died dies dying; star starred
    starring; man men; woman women; child children; person people; wife wives; life lives; half halves; foot
    feet; city cities; strike struck; stick stuck; seek sought; shake shook shaken; forget forgot forgotten;
    forbid forbade forbidden; withdraw withdrew withdrawn; undergo underwent undergone; overcome overcame;
    undertake undertook undertaken; spin spun; hang hung
"""

IRREGULAR = {form: forms[0] for forms in map(str.split, _VERBS.split(";")) for form in forms[1:]}
"""Inflected forms that no suffix rule covers, and their base form."""


# ---- Words of a text in the forms in which a sentence and its paraphrase are compared ------------------------


LONGEST = 60
"""Words of a sentence; a longer one is split."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces, for a class of a regular expression."""
MARKS = "".join(c for c in map(chr, range(0x300, 0x1E00)) if unicodedata.category(c)[0] == "M")
"""Vowel signs, tones and accents: parts of words that `\\w` doesn't match."""
ENDS = "。！？｡।॥።፧։؟۔។៕။๚๛׃"
"""Characters that end a sentence, also without a space after them."""
_LETTER = rf"(?![{UNSPACED}])(?:[^\W\d_]|[{MARKS}])"
_TOKEN = re.compile(
    r"(?P<iso>\b\d{4}-\d\d-\d\d\b)"
    rf"|(?P<sign>(?:(?<=\w)|(?<=\w\s))[<>≤≥](?=[=\s\d])|[{_SIGNS}](?=[-−]?\d))"
    r"|(?P<number>(?:(?<![^\s($€£¥₹₩<>≤≥±~])(?<!\d\s)[-−–](?=\d))?"
    r"(?:(?<!\d)\d{1,3}(?: \d{3})+(?!\w)|\d+(?: \d+[/⁄]\d+)?)"
    r"(?:[.,٫٬:/⁄×'’]\d+|\^[-−]?\d+|[eE][-+−]?\d+(?!\w))*)(?P<tail>(?:st|nd|rd|th|s)\b)?"
    r"|(?P<unit>[%‰°$€£¥₹₩]|(?:(?<=\d)|(?<=\d[\s-])|(?<=\w/))(?:[mglh]\b(?!\.\w)|L\b(?!\.)|(?<=/)s\b|[AaPp](?:[Mm]\b|\.[Mm]\b\.?))"
    r"|(?:(?<=°)|(?<=°\s))[CF]\b)"
    r"|(?P<dotted>\b(?:[A-Z]\.){2,}|\b[A-Z]\.(?=\s*[A-Z]))"
    rf"|(?P<word>{_LETTER}+(?:['’]{_LETTER}+)*)(?P<dot>\.)?"
    r"|(?P<kana>[\u30a1-\u30fa\u30fc]{2,})"
    rf"|(?P<unspaced>(?:(?![\u30a1-\u30fa\u30fc]{{2}}|[{ENDS}])[{UNSPACED}]){{1,60}})"
    r"|(?P<range>(?<=\d)[-–—](?=\d))"
    rf"|(?P<end>[{ENDS}]|[!?](?=[\u3040-\u9fff])"
    r"|(?<![.!?])[.!?]++(?=[\"'”’»)\]]*(?:\s+[^\sa-z]|\s*$))|\n+)"
    r"|(?P<clause>[,;:()\[\]、，；：،؛፣၊՝–—\"“”«»「」『』]|-\s)"
)
_POWER = re.compile(r"(?<=\d)(?=[⁰¹²³⁴⁵⁶⁷⁸⁹⁻])")
VULGAR = re.compile("(?<=[0-9])(?=[¼½¾⅐-⅞↉])")  # one and a half is not 11/2
_PAIR = re.compile(f"[{UNSPACED}]{{2}}")
_WRAP = re.compile(r"(?<=[^\n]{60})\n(?=[^\s\-*•])|(?<=[^\n.!?:])\n(?=[a-z])")
_AFTER_END = re.compile("[\"'”’»)\\]]*(?:\\s+[^\\sa-z]|\\s*$)")
_NEGATED = re.compile("[不没沒無无非未]|ไม่")
_MARKS = re.compile(r"(?:[^\w\s\0-\u02ff]|[ﾞﾟ]){31,}")
_LATIN_MARKS = re.compile("[\u0300-\u036f]+")


class WordKind(IntEnum):
    """Role of a word in a comparison."""

    FUNCTION = 0
    """No content: an article, a preposition, a pronoun."""
    WORD = 1
    QUALIFIER = 2
    """A modal verb or a quantifier."""
    NEGATION = 3
    NAME = 4
    """Has a capital letter, or is a run of katakana."""
    NUMBER = 5


@dataclass(slots=True)
class Sentence:
    """The words of a sentence."""

    paragraph: int = 0
    """Number of the paragraph; blank lines separate paragraphs."""
    exact: list[str] = field(default_factory=list)
    """[N] caseless, without diacritics; numbers by value."""
    stems: list[str] = field(default_factory=list)
    """[N]"""
    kinds: list[WordKind] = field(default_factory=list)
    """[N]"""
    clauses: list[int] = field(default_factory=list)
    """[N] number of the clause in the text; commas, brackets and dashes separate clauses."""
    dotted: set[int] = field(default_factory=set)
    """Positions of words with a period after them."""
    places: dict[str, list[int]] = field(default_factory=dict)
    """Positions of each exact form, and of each stem with the prefix "~"."""
    needs: dict[int, set[int]] = field(default_factory=dict)
    """Positions of the words without which a part of a number has another meaning: 9.5 and km, 1914 and 1918."""

    def bind(self, *positions: int) -> None:
        """Make one number of several words."""
        number = {*positions}.union(*(self.needs.get(position, ()) for position in positions))
        bound = [position for position in number if position in positions or position in self.needs]
        self.needs |= dict.fromkeys(bound, number)  # a month does not need its day

    def __len__(self) -> int:
        return len(self.exact)

    def add(self, exact: str, kind: WordKind, clause: int, dot: bool = False) -> None:
        index = len(self.exact)
        form = stem(exact) if kind in (WordKind.WORD, WordKind.NAME) else exact
        self.exact.append(exact)
        self.stems.append(form)
        self.kinds.append(kind)
        self.clauses.append(clause)
        self.places.setdefault(exact, []).append(index)
        self.places.setdefault("~" + form, []).append(index)
        if dot:
            self.dotted.add(index)

    def extend(self, more: Sentence) -> None:
        """Append the words of another sentence of the same text."""
        start = len(self)
        for index, exact in enumerate(more.exact):
            self.add(exact, more.kinds[index], more.clauses[index], index in more.dotted)
        for index, others in more.needs.items():
            self.needs[start + index] = {start + other for other in others}
        assert len(self) == start + len(more)


_SUFFIXES = (
    (("ingly", 4), ("edly", 4), ("ing", 3), ("ed", 3), ("ly", 4)),
    (("ion", 5), ("or", 5), ("er", 5)),
)
"""Suffixes of inflection and derivation, each with the minimum number of letters before it."""


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """A caseless English word without its ending.

    >>> [stem(word) for word in ("films", "directed", "director", "studied", "wrote", "writing", "mother")]
    ['film', 'direct', 'direct', 'study', 'writ', 'writ', 'mother']
    """
    word = IRREGULAR.get(word, word)
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith(("ies", "ied")):
        word = word[:-3] + "y"
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if word.endswith(("sses", "xes", "ches", "shes", "zes")) else word[:-1]
    for group in _SUFFIXES:
        for suffix, least in group:
            if word.endswith(suffix) and len(word) - len(suffix) >= least:
                word = word[: -len(suffix)]
                break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeious":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def is_pair(word: str) -> bool:
    """Whether it is two characters of a script without spaces.

    >>> is_pair("罗马"), is_pair("in")
    (True, False)
    """
    return len(word) == 2 and _PAIR.match(word) is not None


def plain_letters(text: str) -> str:
    """Caseless, without diacritics of Latin letters.

    >>> plain_letters("Zoë"), plain_letters("가")
    ('zoe', '가')
    """
    if text.isascii():
        return text.lower()
    return normal_form("NFC", _LATIN_MARKS.sub("", normal_form("NFD", text.casefold())))


def normal_form(form: Literal["NFC", "NFD", "NFKC"], text: str) -> str:
    """`text` in a normal form, without marks after the first 30 signs of a run: the time to sort them is quadratic
    (Unicode, UAX 15, stream-safe text)."""
    return unicodedata.normalize(form, _MARKS.sub(_first_marks, text))


def _first_marks(signs: re.Match[str]) -> str:
    return "".join(c for n, c in enumerate(signs[0]) if n < 30 or not (c in "ﾞﾟ" or unicodedata.category(c)[0] == "M"))


_INVISIBLE = re.compile(
    "[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]+"
)
_TEX_COMMA = re.compile(r"(?<=\d)(?:\\,|\{,\})(?=\d)")


def visible(text: str) -> str:
    r"""`text` without soft hyphens, joiners and marks of direction; TeX's separators of thousands are commas.

    >>> visible("co\u00adoperate"), visible(r"1\,200")
    ('cooperate', '1,200')
    """
    shown = text if text.isascii() else _INVISIBLE.sub("", text)
    return _TEX_COMMA.sub(",", shown) if ("\\," in shown or "{,}" in shown) else shown


def worded(text: str) -> list[Sentence]:
    """The sentences of a text. A line break ends one, unless it only wraps a long line.

    >>> [sentence.exact for sentence in worded("Dr. Ann runs 1,200 km today. Zoë's 2nd!")]
    [['doctor', 'ann', 'runs', '1200', 'kilometre', 'today'], ['zoe', "'s", '2']]
    """
    text = normal_form("NFKC", VULGAR.sub(" ", _POWER.sub("^", visible(text))))
    return [sentence for sentence in _WordReader(_WRAP.sub(" ", text)).read() if len(sentence)]


class _WordReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.now = Sentence()
        self.clause = 0
        self.ranged = False  # the last token joined two numbers

    def read(self) -> Iterator[Sentence]:
        for match in _TOKEN.finditer(self.text):
            what, piece = match.lastgroup or "", match[0]
            what = {"tail": "number", "dot": "word"}.get(what, what)
            if what == "end" or len(self.now) >= LONGEST:
                yield self._next("\n\n" in piece)
            if what == "clause":
                self.clause += 1
            elif what not in ("end", "range"):
                ends = self._take(what, match)
                self._bind(self.text[max(0, match.start() - 1) : match.start()])
                if ends:
                    yield self._next(False)
            self.ranged = what == "range"
        yield self.now

    def _next(self, new_paragraph: bool) -> Sentence:
        ended = self.now
        self.clause += 1
        self.now = Sentence(ended.paragraph + new_paragraph)
        return ended

    def _take(self, what: str, match: re.Match[str]) -> bool:
        """Add a token; returns whether its period ends the sentence."""
        piece = match[what]
        if what == "number":
            self._number(piece)
        elif what == "unit":
            unit = SYMBOLS.get(piece) or LETTERS.get(piece) or piece.replace(".", "").lower()  # "a.m."
            self.now.add(LETTERS.get(unit, unit), WordKind.WORD, self.clause)
        elif what == "sign":
            self.now.add(piece, WordKind.NUMBER, self.clause)
        elif what == "iso":
            year, month, day = piece.split("-")
            self.now.add(str(int(day)), WordKind.NUMBER, self.clause)
            if 1 <= int(month) <= 12:
                self.now.add(MONTHS[int(month) - 1], WordKind.NAME, self.clause)
            self.now.add(year, WordKind.NUMBER, self.clause)
            self.now.bind(*range(len(self.now) - 3 + (not 1 <= int(month) <= 12), len(self.now)))
        elif what == "dotted":
            self.now.add(piece.replace(".", "").lower(), WordKind.NAME, self.clause, True)
        elif what == "kana":
            self.now.add(piece, WordKind.NAME, self.clause)
        elif what == "unspaced":
            self._pairs(piece)
        else:
            return self._word(piece, match["dot"] is not None, match.end())
        return False

    def _bind(self, before: str) -> None:
        """Bind the last word to a number next to it; a day needs its month, which may be named without a day."""
        now, last = self.now, len(self.now) - 1
        if last < 1 or now.clauses[last] != now.clauses[last - 1]:
            return
        if now.kinds[last] is WordKind.NUMBER and (self.ranged or before in SYMBOLS or now.exact[last - 1] in _SIGNS):
            now.bind(last - 1, last)
        first = last - 2 if now.exact[last - 1] == "per" and last > 1 else last - 1
        if now.stems[last] in _UNIT_STEMS and (now.kinds[first] is WordKind.NUMBER or first in now.needs):
            now.bind(*range(first, last + 1))
        other = last - 2 if now.exact[last - 1] == "of" and last > 1 else last - 1
        for day, month in ((other, last), (last, other)):
            if now.exact[month] in MONTHS and now.kinds[day] is WordKind.NUMBER and len(now.exact[day]) < 3:
                now.needs.setdefault(day, set()).add(month)

    def _number(self, piece: str) -> None:
        value = number_value(piece)
        if self.ranged and value.isdigit() and self.now.kinds and self.now.kinds[-1] is WordKind.NUMBER:
            before = self.now.exact[-1]
            if before.isdigit() and len(value) < len(before) == 4:  # 1941–45
                value = before[: len(before) - len(value)] + value
        self.now.add(value, WordKind.NUMBER, self.clause)

    def _pairs(self, run: str) -> None:
        for pair in [run[i : i + 2] for i in range(max(1, len(run) - 1))]:
            self.now.add(pair, WordKind.WORD if len(pair) == 2 else WordKind.FUNCTION, self.clause)
        for _ in _NEGATED.finditer(run):
            self.now.add("not", WordKind.NEGATION, self.clause)

    def _word(self, piece: str, dot: bool, end: int) -> bool:
        caseless = plain_letters(piece.replace("’", "'"))
        named = piece[0].isupper() and (self.now.kinds or self.text[end + 1 : end + 2].isupper())
        if dot and caseless == "no" and self.text[end : end + 2].strip().isdigit():
            caseless, dot = "number", False
        negated = caseless.endswith("n't") or (caseless in NEGATIONS and not named)  # "Never Cry Wolf", "No, No, No"
        if caseless.endswith("n't") or caseless == "cannot":
            caseless = {"ca": "can", "wo": "will", "sha": "shall"}.get(caseless[:-3], caseless[:-3])
            if caseless in QUALIFIERS:
                self.now.add(caseless, WordKind.QUALIFIER, self.clause)
        owner = caseless.endswith("'s")
        caseless = caseless.removesuffix("'s").replace("'", "")
        scale = SCALES.get(caseless)
        abbreviates = dot and (len(piece) == 1 or caseless in SHORT)
        if scale and self.now.kinds and self.now.kinds[-1] is WordKind.NUMBER:
            self._scaled(scale)
        elif caseless in NUMBERS:
            self.now.add(NUMBERS[caseless], WordKind.NUMBER, self.clause)
        else:
            kind = WordKind.NAME if piece[0].isupper() else WordKind.WORD
            if negated:
                kind, caseless = WordKind.NEGATION, "not"
            elif caseless in QUALIFIERS and not named:
                kind = WordKind.QUALIFIER
            elif caseless in FUNCTION and not (piece.isupper() and len(piece) > 1):
                kind = WordKind.FUNCTION
            form = SHORT.get(caseless) or SHORT.get(caseless.removesuffix("s")) or caseless
            self.now.add(form, kind, self.clause, dot)
        if owner:
            self.now.add("'s", WordKind.FUNCTION, self.clause)
        if dot and (abbreviates or (piece.islower() and len(piece) < 4)):
            return False
        return dot and _AFTER_END.match(self.text, end) is not None

    def _scaled(self, scale: int) -> None:
        last = len(self.now) - 1
        try:
            value = number_value(str(float(self.now.exact[last]) * scale))
        except ValueError:
            return
        self.now.exact[last] = self.now.stems[last] = value
        for key in (value, "~" + value):
            self.now.places.setdefault(key, []).append(last)


_SEPARATORS = str.maketrans({"٫": ".", "٬": ",", " ": ",", "'": ",", "’": ",", "⁄": "/"})
_UNIT_STEMS = frozenset(map(stem, UNITS))


def number_value(written: str) -> str:
    """One form of a number.

    >>> [number_value(each) for each in ("1,200", "1 200", "007", "9.50", "٣", "1.2.3", "3,5", "−5", "10:30")]
    ['1200', '1200', '7', '9.5', '3', '1.2.3', '3.5', '-5', '10:30']
    """
    if written[0] in "-−–":
        return f"-{number_value(written[1:])}"
    digits = "".join(str(unicodedata.digit(c)) if c.isdigit() else c for c in written.translate(_SEPARATORS))
    if digits.strip("0123456789.,"):
        return digits.lower()  # 10:30, 3/4, 10^6, 1e5
    groups = digits.split(",")
    if len(groups) == 2 and len(groups[1]) != 3 and "." not in digits:
        digits = ".".join(groups)  # a decimal comma
    digits = digits.replace(",", "")
    if digits.count(".") > 1:
        return digits
    integer, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    return (integer.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
