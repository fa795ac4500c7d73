"""What a report says of the axis along which an evaluation grows: documents get longer, or problems ask more.

Slots in braces are filled by the report: `{trained}` is the largest size trained on and `{last}` the largest tested,
both with their unit; `{size}` a size with its unit, `{times}` the same as a multiple of the largest size trained on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AxisWords:
    """One axis in words."""

    key: str
    """The unit as `Cell.unit` and the keys of summary.json have it."""
    one: str
    """The unit of a size."""
    many: str
    multiples: bool
    """Whether a point is a multiple of the largest size that training was to come to; else it is the size."""
    reads: bool
    """Whether agents read documents: how true their copies are is told, and what one costs follows from its length."""
    title: str
    table: str
    trained: str
    """The largest size trained on: a name for it."""
    start: str
    """Where the lead begins."""
    end: str
    """Where it goes on at the last point."""
    axis: str
    """Label of the horizontal axis."""
    alt: str
    """What figures are drawn against."""
    cost: str
    """What an episode costs, as a row of a table and the label of an axis."""
    proportional: str
    """The cost that grows with the size and no faster."""
    bands: str
    """What the bands of the reward's figure are, where training went through several sizes."""
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
        """The unit of a size."""
        return self.one if count == 1 else self.many

    def heading(self, size: int, trained: int) -> str:
        """Of a table's column; `trained` is the largest size trained on.

        >>> DOCUMENTS.heading(128, 8), QUESTIONS.heading(4, 6)
        ('128 chunks (16x)', '4 questions')
        """
        return self.sized(size) + (f" ({times(size, trained)}x)" if self.multiples else "")

    def size(self, point: int, planned: int) -> int:
        """The size at a point of the axis; `planned` is the largest size that training was to come to."""
        return point * planned if self.multiples else point


def times(size: int, trained: int) -> str:
    """How many times the largest size trained on a size is.

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
    title="an agent trained at {trained}, tested far beyond",
    table="Accuracy by document length",
    trained="training length",
    start="At {size} a document",
    end="On documents {times} times as long as any it was trained on it is",
    axis="document length in chunks, and as a multiple of the training length",
    alt="document length",
    cost="tokens processed per document",
    proportional="proportional to length",
    bands="The bands name the document length trained on, which grows when the agent has learnt the "
    "present one, so drops at their edges are harder documents and not forgetting.",
    accuracy_caption="Accuracy on held-out documents, greedy decoding; bands are 95% intervals. The agent was trained "
    "at {trained} at the most.",
    cost_caption="Tokens processed per document (prompts and replies of all calls). The agent's cost is proportional "
    "to the document's length, because each call sees one section and a memory of fixed size.",
    samples="The agent's last memory and answer on the first few documents of the longest length.",
)

QUESTIONS = AxisWords(
    key="objectives",
    one="question",
    many="questions",
    multiples=False,
    reads=False,
    title="an agent trained on up to {trained} a problem, tested on up to {last}",
    table="Accuracy by questions a problem",
    trained="most in training",
    start="With {size} a problem",
    end="With {size} it is",
    axis="questions a problem",
    alt="questions a problem",
    cost="tokens processed per episode",
    proportional="proportional to questions",
    bands="The bands name the questions a problem asks, which become more when the agent has learnt the "
    "present number, so drops at their edges are harder problems and not forgetting.",
    accuracy_caption="Accuracy on held-out problems, greedy decoding: the mean reward of their answers without any "
    "penalty; bands are 95% intervals. The agent was trained on {trained} a problem at the most.",
    cost_caption="Tokens processed per episode: prompts and replies of all turns, prefixes counted each time they are "
    "read. An episode that ran out of its context ended early and is cheap for that reason.",
    samples="The agent's last memory, where it wrote one, and its answer on the first few problems of the last size.",
)
