"""Text for people: untrusted text made safe to show, numbers with their nouns, tables."""

from __future__ import annotations

import html
import importlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, overload

from palimpsest.errors import ConfigError


def printable(text: str) -> str:
    """`text` with unprintable characters escaped, line breaks included.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# ---- Foreign text in a report --------------------------------------------------------------------------------


def visible(text: str) -> str:
    """`text` with control, format (bidirectional) and surrogate characters written as escapes; newlines stay.

    >>> visible("a\\x1b[31m\\u202eb")
    'a\\\\x1b[31m\\\\u202eb'
    """
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn"}:
        return character
    return character.encode("unicode_escape").decode("ascii")


# ---- Numbers with their nouns --------------------------------------------------------------------------------


def counted_outcomes(counts: Mapping[str, int]) -> str:
    """Outcomes of episodes with their numbers, the most frequent first.

    >>> counted_outcomes({"answered": 60, "out_of_turns": 4})
    '60 answered, 4 out of turns'
    """
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ordered)


def counted(number: int, thing: str) -> str:
    """
    >>> counted(1, "chunk"), counted(4_096, "chunk")
    ('1 chunk', '4,096 chunks')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def ordinal(index: int) -> int:
    """Number of a turn, section or memory in every text and page, from 1; groups, rollouts and draws have their index.

    >>> ordinal(0)
    1
    """
    return index + 1


def size_of(count: int) -> str:
    """A count of bytes, in a readable unit.

    >>> size_of(1), size_of(912), size_of(34_200), size_of(999_600), size_of(1_260_000)
    ('1 byte', '912 bytes', '34 kB', '1.0 MB', '1.3 MB')
    """
    if count < 1000:
        return counted(count, "byte")
    return f"{count / 1e3:.0f} kB" if count < 999_500 else f"{count / 1e6:.1f} MB"


# ---- Tables --------------------------------------------------------------------------------------------------


_SHOWN = 40  # rows of a long table, from both ends
_WIDE = 16  # columns, at most, without `main`


@dataclass(frozen=True)
class Table(Sequence[Mapping[str, Any]]):
    """Rows as mappings from column to value; a column missing from a row is empty.

    >>> table = Table(("name", "accuracy"), ({"name": "short", "accuracy": 0.75}, {"name": "long"}))
    >>> table
    name   accuracy
    short     0.750
    long
    >>> table.column("accuracy")
    [0.75, None]
    """

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    main: tuple[str, ...] = ()
    """Shown columns of a wide table."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], main: tuple[str, ...] = ()) -> Self:
        """A table with the columns of all rows, in order of first occurrence."""
        return cls(tuple(dict.fromkeys(name for row in rows for name in row)), tuple(rows), main)

    def column(self, name: str) -> list[Any]:
        """[rows] values of a column, None if missing. Raises KeyError for an unknown column."""
        if name not in self.columns:
            raise KeyError(f"no column {name}; choose from {', '.join(self.columns)}")
        return [row.get(name) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Self:
        return type(self)(self.columns, self.rows[index], self.main) if isinstance(index, slice) else self.rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the same columns. Raises ConfigError without pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ConfigError("to_pandas() needs the package pandas: pip install pandas") from None
        return pandas.DataFrame([dict(row) for row in self.rows], columns=list(self.columns))

    @property
    def shown(self) -> tuple[str, ...]:
        """Columns in its text and HTML: of a wide table, those in `main` or the first."""
        if len(self.columns) <= _WIDE:
            return self.columns
        return tuple(name for name in self.main if name in self.columns) or self.columns[:_WIDE]

    def __repr__(self) -> str:
        cells = [list(self.shown), *self._shown()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.shown))]
        lines = ["  ".join(f"{cell:{'>' if i else '<'}{widths[i]}}" for i, cell in enumerate(row)) for row in cells]
        return "\n".join([*(line.rstrip() for line in lines), *self._note()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.shown)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self._shown())
        note = "".join(f"<p>{html.escape(line)}</p>" for line in self._note())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def _note(self) -> list[str]:
        hidden = len(self.columns) - len(self.shown)
        return [f"{counted(hidden, 'more column')}: table.columns names them"] if hidden else []

    def _shown(self) -> list[list[str]]:
        rows = [[_text(row.get(name)) for name in self.shown] for row in self.rows]
        if len(rows) <= _SHOWN:
            return rows
        return [*rows[: _SHOWN // 2], ["..."] * len(self.shown), *rows[-_SHOWN // 2 :]]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def cost_text(value: float | None) -> str:
    """A measured cost with three digits or more; a dash for None.

    >>> cost_text(0.0123), cost_text(67.9219), cost_text(1234), cost_text(None)
    ('0.0123', '67.9', '1,234', '–')
    """
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def p_text(value: float) -> str:
    """A p-value with three decimals.

    >>> p_text(0.0312), p_text(0.0001)
    ('0.031', '<0.001')
    """
    return f"{value:.3f}" if value >= 0.001 else "<0.001"
