r"""Plain text out of the TeX and HTML that answers are dressed in: what is only dress goes, what means something stays.

    \text{Paris}  \underline{Paris}  {\bf Paris}  $Paris$  <b>Paris</b>      Paris
    \frac{1}{2}   x^{2}  x<sup>2</sup>  H_2O  90^\circ  \le 5  \$5  \%       1/2  x^2  x^2  H2O  90°  ≤ 5  $5  %

Guaranteed: linear time, however deep it is nested; a wrapper that never closes is taken off too.
Not covered: macros that aren't listed, whose names stay as words; environments; tags that aren't listed, which stay.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

_TAG = re.compile(
    r"<(/?)(sup|sub|br|b|i|u|s|p|em|strong|small|big|mark|code|tt|span|div|font|center|a)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-f]{1,6}|[a-z]\w{1,30});", re.IGNORECASE)

_MATH = re.compile(r"(?<![\\$])(\${1,2})(?=[^\s$])((?:[^$\\]|\\.)*)(?<=\S)\1(?!\d)", re.DOTALL)
"""A pair of dollars as pandoc sees it: "$5 and $6" is none, so that its dollars are money."""
_NO_TEXT = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|bf|it|rm|sf|tt|sc|em|bfseries|itshape|rmfamily|centering)"
    r"(?![a-zA-Z])\s?|\\(?:text)?color\s*\{[^{}]*\}"
)
_SPACE = re.compile(r"\\[ ,;:!\[\]()\n]|\\q?quad(?![a-zA-Z])|(?<=\w)~|\\\\")
_SHORT_FRACTION = re.compile(r"\\[dtc]?frac\s*(\w)\s*(\w)")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\(?:degree|textdegree)(?![a-zA-Z])")
_SIGNS = {
    **dict.fromkeys(("le", "leq", "leqslant"), "≤"),
    **dict.fromkeys(("ge", "geq", "geqslant"), "≥"),
    **dict.fromkeys(("ne", "neq"), "≠"),
    **dict.fromkeys(("approx", "sim"), "~"),
    **dict.fromkeys(("times", "cdot", "ast"), "*"),
    **{"lt": "<", "gt": ">", "pm": "±", "mp": "∓", "div": "/", "infty": "∞", "pi": "π"},
    **{"to": "→", "rightarrow": "→", "dots": "...", "ldots": "...", "dollar": "$", "euro": "€", "pounds": "£"},
}
_NAMED_SIGN = re.compile(rf"\\({'|'.join(sorted(_SIGNS, key=len, reverse=True))})(?![a-zA-Z])")
_ESCAPED = re.compile(r"\\([$%&#_{}|])")
_PIECES = re.compile(
    r"(?P<wrapper>\\(?:text(?:bf|it|rm|sf|tt|sc|sl|up|md|normal)?|emph|underline|uline|underbar|math(?:rm|bf|it|sf|tt|bb|"
    r"cal|frak|scr|normal)?|mbox|hbox|fbox|boxed|operatorname\*?|bm|bold|boldsymbol|pmb|ensuremath)\s*\{)"
    r"|(?P<numerator>\\[dtc]?frac\s*\{)|(?P<root>\\sqrt\s*\{)|(?P<raised>\^\s*\{)|(?P<lowered>_\s*\{)|(?<=[a-zA-Z}])_(?=\d)"
    r"|(?P<between>\}\s*\{)|(?P<brace>\{)|(?P<close>\})|(?P<text>\\[{}]|[^\\^_{}]+|.)",
    re.DOTALL,
)
_OPENING = {"brace": "{", "root": "√", "raised": "^"}
_LONGEST_ATOM = 16
_ATOM = re.compile(r"[-+]?[\w.]+[-+]?|[-+]")


def plain(text: str) -> str:
    r"""`text` without its dress.

    >>> plain(r"$\underline{\textsf{Paris}}$"), plain("<b>Paris</b>"), plain(r"1\frac{1}{2}"), plain(r"x^{n+1}")
    ('Paris', 'Paris', '1 1/2', 'x^(n+1)')
    """
    if "<" in text:
        text = _TAG.sub(_untagged, text)
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    if "$" in text:
        text = _MATH.sub(r"\2", text)
    if "~" in text or "\\" in text:
        text = _SPACE.sub(" ", text)
    if "\\" in text:
        text = _DEGREE.sub("°", _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _NO_TEXT.sub("", text)))
        text = _NAMED_SIGN.sub(lambda match: _SIGNS[match[1]], text)
    if any(sign in text for sign in "\\^_{"):
        text = _ESCAPED.sub(r"\1", _opened(text.replace("{,}", ",")))
    return text


def _untagged(tag: re.Match[str]) -> str:
    name, closing = tag[2].lower(), bool(tag[1])
    if name in ("br", "p", "div"):
        return " "
    return "^" if name == "sup" and not closing else ""


@dataclass(slots=True)
class _Group:
    kind: str
    start: int
    """Index of its first piece."""
    length: int
    """Characters before its first piece."""


class _Groups:
    """TeX's groups, opened and closed from left to right; every character is looked at a bounded number of times."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._length = 0
        self._open: list[_Group] = []

    def put(self, piece: str) -> None:
        self.pieces.append(piece)
        self._length += len(piece)

    def open(self, kind: str) -> None:
        if kind == "numerator" and self.pieces and self.pieces[-1][-1:].isdigit():
            self.put(" ")  # 1\frac{1}{2} is one and a half
        self.put(_OPENING.get(kind, ""))
        if kind in ("numerator", "denominator", "root", "raised"):
            self.put("")  # where its bracket goes, should it need one
        self._open.append(_Group(kind, len(self.pieces), self._length))

    def close(self) -> str:
        """Close the innermost group and return its kind, "" if none is open."""
        if not self._open:
            self.put("}")
            return ""
        group = self._open.pop()
        if group.kind == "brace":
            self.put("}")
        elif group.kind in ("numerator", "denominator", "root", "raised") and not self._is_atom(group):
            self.pieces[group.start - 1] = "("
            self.put(")")
        return group.kind

    def _is_atom(self, group: _Group) -> bool:
        if self._length - group.length > _LONGEST_ATOM:  # and no join of a long group for each one around it
            return False
        return _ATOM.fullmatch("".join(self.pieces[group.start :])) is not None


def _opened(text: str) -> str:
    """`text` without TeX's groups: wrappers fall away, an argument that is more than an atom gets brackets."""
    groups = _Groups()
    for match in _PIECES.finditer(text):
        kind = match.lastgroup
        if kind == "text":
            groups.put(match[0])
        elif kind == "close":
            groups.close()
        elif kind == "between":
            over = groups.close() == "numerator"
            groups.put("/" if over else match[0][1:-1])
            groups.open("denominator" if over else "brace")
        elif kind is not None:
            groups.open(kind)
    return "".join(groups.pieces)
