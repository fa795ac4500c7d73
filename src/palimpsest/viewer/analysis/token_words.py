"""Token ids as words: the tokens between white space, with their text and comparison key.

    ids        " Anna", " lives", " in", " Ro", "me", ".\\n"
    words      " Anna"  " lives"  " in"  " Rome.\\n"           keys    anna  lives  in  rome

Trailing white space belongs to the last word, other white space to the word after it. In scripts without white space
between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese), a word starts where a token starts with such a character,
or where several tokens spell one. Tokenizers that spell a text token by token need no decoding: texts are looked up per
token.

Guaranteed: words are whole tokens, in order and complete; tokens that spell one character stay together; one `Spelling`
returns the same `Word` for the same ids, so identity compares words.
Not covered: true word boundaries in those scripts, which need a dictionary; a bound on a `Spelling`'s cache, which
grows with the distinct words: use one per group.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from palimpsest.metrics.reading_trace import GroupTexts, Text
from palimpsest.text.codec import Codec
from palimpsest.text.sentences import NUMBER, stands_in
from palimpsest.text.word_forms import visible
from palimpsest.types import Span

K = TypeVar("K")
V = TypeVar("V")
Tokens = tuple[int, ...]

_BROKEN = "\ufffd"  # decoded form of a partial character
_MARKS = string.punctuation + "“”‘’«»…–—•。、，；：！？「」『』（）"
_UNSPACED = re.compile(
    "[\u3041-\u3096\u309d-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e50-\u0e59"  # Thai, without the marks on its letters
    "\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0ed0-\u0edf"  # Lao
    "\u1780-\u17b3\u17e0-\u17e9\u1000-\u102a\u103f-\u1055]"  # Khmer, Burmese
)
"""Letters that may start a word without white space before them."""
_BEGINS, _ENDS, _BLANK, _PART = 1, 2, 4, 8
_MAX_SPLIT = 12
"""Maximum tokens that spell one character, with its marks."""
_COMPARED = 8  # texts spelt and decoded before spelling is trusted


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """Compared by identity: one `Spelling` makes one per id sequence."""

    ids: Tokens
    text: str
    key: str
    """Its text without case, white space and surrounding marks; a word of marks only stays unchanged."""


class TokenWords:
    """A text as words."""

    def __init__(self, ids: Tokens, words: Sequence[Word], starts: Sequence[int]) -> None:
        self.ids = ids
        """[T]"""
        self.words = tuple(words)
        self.starts = tuple(starts)
        """[words + 1] tokens before each word, and the total."""

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """[words + 1] characters before each word, and the total."""
        return tuple(accumulate((len(word.text) for word in self.words), initial=0))

    @cached_property
    def text(self) -> str:
        return "".join(word.text for word in self.words)

    @cached_property
    def keys(self) -> list[str]:
        """[words]"""
        return [word.key for word in self.words]

    def tokens(self, words: Span) -> Span:
        """Position of some words in `ids`."""
        return self.starts[words[0]], self.starts[words[1]]

    def characters(self, words: Span) -> Span:
        """Position of some words in `text`."""
        return self.places[words[0]], self.places[words[1]]


class Spelling:
    """The words of one tokenizer."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._anchor = codec.encode("a")  # precedes a token, which a decoder would otherwise strip as a first one
        self._before = len(codec.decode(self._anchor, control=False))
        self._pieces = _Memo(self._piece)
        self._flags = _Memo(self._flags_of)
        self._words = _Memo(self._word)
        self._joined = _Memo(self._decoded)
        self._compared, self._by_token = 0, True

    def words(self, ids: Sequence[int]) -> TokenWords:
        key = tuple(ids)
        flags = np.frombuffer(bytearray(map(self._flags.__getitem__, key)), np.uint8)
        for at in np.flatnonzero(flags & _PART).tolist():
            if flags[at] & _PART:
                self._join(key, at, flags)
        before, here = flags[:-1], flags[1:]
        begins = ((here & _BEGINS > 0) | (before & _ENDS > 0)) & (before & _BLANK == 0)
        starts = [*([0] if key else []), *(np.flatnonzero(begins) + 1).tolist(), len(key)]
        if len(starts) > 2 and not self._words[key[starts[-2] :]].text.strip():
            del starts[-2]  # no word follows
        return TokenWords(key, list(map(self._words.__getitem__, (key[a:b] for a, b in pairwise(starts)))), starts)

    def _join(self, ids: Tokens, at: int, flags: Any) -> None:
        """Flag tokens from `at` on that spell whole characters together; without any, no word starts there."""
        for end in range(at + 1, min(at + _MAX_SPLIT, len(ids)) + 1):
            text = self._joined[ids[at:end]]
            if _BROKEN not in text:
                flags[at:end] = 0
                flags[at] |= _flags(text) & _BEGINS
                flags[end - 1] |= _flags(text) & _ENDS
                return
        flags[at] = 0

    def text(self, ids: Sequence[int]) -> str:
        """The text of `ids` without control tokens, as the codec decodes it."""
        spelt = self._spelt(ids) if self._by_token else _BROKEN
        if _BROKEN in spelt:
            return self.codec.decode(ids, control=False)
        if self._compared < _COMPARED:
            self._compared += 1
            decoded = self.codec.decode(ids, control=False)
            self._by_token = self._by_token and decoded == spelt
            return decoded
        return spelt

    def _spelt(self, ids: Sequence[int]) -> str:
        if len(ids) < 2:  # `itemgetter` with one key returns the value, not a tuple
            return "".join(self._pieces[token_id] for token_id in ids)
        return "".join(itemgetter(*ids)(self._pieces))  # faster than `map` for thousands

    def piece(self, id_: int) -> str:
        """The text of one token within others; U+FFFD for part of a character, "" for a control token."""
        return self._pieces[id_]

    def _piece(self, id_: int) -> str:
        return self._decoded((id_,))

    def _flags_of(self, id_: int) -> int:
        piece = self._pieces[id_]
        return _PART if _BROKEN in piece else _flags(piece)

    def _word(self, ids: Tokens) -> Word:
        text = "".join(map(self._pieces.__getitem__, ids))
        if _BROKEN in text:
            text = self._decoded(ids)
        return Word(ids, text, key_of(text))

    def _decoded(self, ids: Tokens) -> str:
        return self.codec.decode((*self._anchor, *ids), control=False)[self._before :]


def _flags(text: str) -> int:
    begins = text[:1].isspace() or _UNSPACED.match(text) is not None
    return _BEGINS * begins | _ENDS * text[-1:].isspace() | _BLANK * text.isspace()


def key_of(text: str) -> str:
    """Comparison key of a word.

    >>> key_of(" Rome,\\n"), key_of(" -"), key_of("don't")
    ('rome', '-', "don't")
    """
    form = text.strip().casefold()
    return form.strip(_MARKS) or form


class _Memo(dict[K, V]):
    def __init__(self, of: Callable[[K], V]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, key: K) -> V:
        value = self[key] = self._of(key)
        return value


class SpeltText(Text):
    """A text searched before its normalization for sentence comparison."""

    @cached_property
    def folded(self) -> str:
        return visible(self.text).casefold()

    def holds(self, sentence: str) -> bool:
        """`Text.holds` for a flat sentence; avoids flattening where it can."""
        if _longest_word(sentence) not in self.folded:
            return False
        return stands_in(sentence, self.folded, NUMBER) or Text.holds(self, sentence)


@lru_cache(maxsize=4096)
def _longest_word(sentence: str) -> str:
    return max(sentence.split(), key=len, default="")


class SpeltTexts(GroupTexts):
    """The texts of one group, spelt token by token."""

    def __init__(self, spelling: Spelling) -> None:
        super().__init__(spelling.codec)
        self.spelling = spelling

    def of(self, ids: Sequence[int]) -> Text:
        key = tuple(ids)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = SpeltText(key, lambda: self.spelling.text(key))
        return text

    def decoded(self, text: str, ids: tuple[int, ...] = ()) -> Text:
        return SpeltText(ids, lambda: text)
