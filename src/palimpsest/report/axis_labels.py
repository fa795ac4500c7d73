"""Texts of a report for the axis along which an evaluation grows: longer documents, or more questions per problem; the
points of its figures, without matplotlib, which takes a second to import.

The report fills slots in braces: `{trained}` is the largest training size and `{last}` the largest test size, both
with their unit; `{size}` a size with its unit, `{times}` the same as a multiple of the largest training size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palimpsest.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class AxisWords:
    """Texts for one axis."""

    key: str
    """The unit as in `Cell.unit` and the keys of summary.json."""
    one: str
    many: str
    multiples: bool
    """True if a point is a multiple of the largest planned training size; otherwise it is the size."""
    reads: bool
    """True if agents read documents: the report then shows copy fidelity, and cost follows from length."""
    title: str
    trained: str
    """Name of the largest training size."""
    start: str
    """Start of the lead."""
    end: str
    """Its continuation for the last point."""
    axis: str
    """Label of the horizontal axis."""
    alt: str
    """Horizontal axis in alternative texts of figures."""
    cost: str
    """Cost of an episode, as a table row and an axis label."""
    proportional: str
    """Label of the line for cost proportional to size."""
    bands: str
    """Explains the bands of the reward figure, for training with several sizes."""
    accuracy_caption: str
    cost_caption: str
    samples: str

    def sized(self, count: int) -> str:
        """A size with its unit.

        >>> QUESTIONS.sized(1), DOCUMENTS.sized(1024)
        ('1 question', '1,024 chunks')
        """
        return f"{count:,} {self.unit(count)}"

    def unit(self, count: int) -> str:
        return self.one if count == 1 else self.many

    def heading(self, size: int, trained: int) -> str:
        """Heading of a table's column; `trained` is the largest training size.

        >>> DOCUMENTS.heading(128, 8), QUESTIONS.heading(4, 6)
        ('128 chunks (16x)', '4 questions')
        """
        return self.sized(size) + (f" ({times(size, trained)}x)" if self.multiples else "")

    def size(self, point: int, planned: int) -> int:
        """The size at a point of the axis; `planned` is the largest planned training size."""
        return point * planned if self.multiples else point


def times(size: int, trained: int) -> str:
    """A size as a multiple of the largest training size.

    >>> times(64, 4), times(64, 3), times(2, 4)
    ('16', '21.3', '0.5')
    """
    return f"{round(size / trained, 1):g}"


DOCUMENTS = AxisWords(
    key="chunks",
    one="chunk",
    many="chunks",
    multiples=True,
    reads=True,
    title="an agent trained at {trained}, tested on longer documents",
    trained="training length",
    start="At {size} per document",
    end="At {times}x the training length it is",
    axis="document length in chunks, and multiple of the training length",
    alt="document length",
    cost="tokens processed per document",
    proportional="proportional to length",
    bands="Each band is one training length. The length grows once the agent solves the current one, so a drop at an "
    "edge means harder documents, not forgetting.",
    accuracy_caption="Accuracy on held-out documents, greedy decoding; bands are 95% intervals. The longest training "
    "documents had {trained}.",
    cost_caption="Tokens processed per document (prompts and replies of all calls). The agent's cost is proportional "
    "to the document's length: calls of bounded size, a few per section.",
    samples="The agent's last memory and answer on the first documents of the greatest length.",
)

PARAGRAPHS = replace(
    DOCUMENTS,
    key="documents",
    one="paragraph",
    many="paragraphs",
    axis="document length in paragraphs, and multiple of the training length",
)
"""For files, whose contexts are assembled."""

QUESTIONS = AxisWords(
    key="objectives",
    one="question",
    many="questions",
    multiples=False,
    reads=False,
    title="an agent trained on up to {trained} per problem, tested on up to {last}",
    trained="most in training",
    start="With {size} per problem",
    end="With {size} it is",
    axis="questions per problem",
    alt="questions per problem",
    cost="tokens processed per episode",
    proportional="proportional to questions",
    bands="Each band is one number of questions per problem. The number grows once the agent solves the current one, "
    "so a drop at an edge means harder problems, not forgetting.",
    accuracy_caption="Accuracy on held-out problems, greedy decoding: mean reward of the answers without penalties; "
    "bands are 95% intervals. Training had up to {trained} per problem.",
    cost_caption="Tokens processed per episode: prompts and replies of all turns, prefixes counted per turn. Episodes "
    "that exceed their context end early and are cheap for that reason.",
    samples="The agent's last memory, if it wrote one, and its answer on the first problems of the last size.",
)

MOVES = replace(
    QUESTIONS,
    key="moves",
    one="move",
    many="moves",
    title="an agent trained on games of up to {trained}, tested on up to {last}",
    start="With {size}",
    axis="moves to the goal",
    alt="moves to the goal",
    proportional="proportional to moves",
    accuracy_caption="Score in held-out games, greedy decoding; bands are 95% intervals. Training had up to {trained}.",
    samples="The agent's last memory, if it wrote one, and the end of the first games of the last size.",
)
"""For games, by the moves that they need."""


def axis_of(config: RunConfig) -> AxisWords:
    """Axis of a quickstart's evaluation."""
    if config.environment is not None:
        return MOVES
    found = {"synthetic": DOCUMENTS, "synthetic_search": QUESTIONS}
    return found.get(str(config.data.train_files), PARAGRAPHS)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured mean with its 95% interval at one size of problems."""

    size: float
    """Position on the axis of sizes, e.g. chunks of the document."""
    mean: float
    low: float
    high: float
    tokens: float = 0.0
    """Tokens processed per problem."""


Lines = Mapping[str, Sequence[Point]]
"""Points by the label of their line, in drawing order, shorter ones first."""


@dataclass(frozen=True, slots=True)
class LengthLabels:
    label: str
    names: Mapping[float, str]
    """Label of each position."""
    multiplies: bool
    """True if the axis is logarithmic."""
