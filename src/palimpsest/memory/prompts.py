"""Prompts of the reading policies, in our own words, after the structure of MemAgent (arXiv 2507.02259, table 1).

`standard` speaks to a pretrained instruction model; `short` is what the embedded model was made for. Slots are
filled in token space (text/template.py), so nothing a document says can close a tag that matters to the program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from palimpsest.errors import ConfigError

Layout = Literal["memory_first", "section_first"]


@dataclass(frozen=True, slots=True)
class PromptSet:
    read: dict[Layout, str]
    """Slots question, memory, section."""
    answer: str
    """Slots question, memory."""
    direct: str
    """Slots question, document: the baselines without a memory."""
    empty_memory: str
    """What stands in the memory slot before the first turn."""


_TASK = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article and the memory you have kept of the earlier sections. Read the section and write the memory \
anew: keep every detail of the old memory that still matters and add what the section says that helps to solve the \
problem. Only the new memory will be kept."""

STANDARD = PromptSet(
    read={
        "memory_first": _TASK
        + "\n\n<problem>\n{question}\n</problem>\n\n<memory>\n{memory}\n</memory>\n\n<section>\n{section}\n</section>"
        "\n\nUpdated memory:",
        "section_first": _TASK
        + "\n\n<section>\n{section}\n</section>\n\n<problem>\n{question}\n</problem>\n\n<memory>\n{memory}\n</memory>"
        "\n\nUpdated memory:",
    },
    answer="""You have read an article section by section and kept a memory of it. Solve the problem from that memory \
and put the final answer in \\boxed{}.

<problem>
{question}
</problem>

<memory>
{memory}
</memory>

Your answer:""",
    direct="""Solve the problem from the article below and put the final answer in \\boxed{}.

<article>
{document}
</article>

<problem>
{question}
</problem>

Your answer:""",
    empty_memory="No previous memory",
)

SHORT = PromptSet(
    read={
        "memory_first": "Problem: {question}\nMemory:{memory}\nSection:\n{section}\nUpdate the memory.",
        "section_first": "Section:\n{section}\nProblem: {question}\nMemory:{memory}\nUpdate the memory.",
    },
    answer="Problem: {question}\nMemory:{memory}\nAnswer in \\boxed{}.",
    direct="Problem: {question}\nDocument:\n{document}\nAnswer in \\boxed{}.",
    empty_memory=" none",
)

PROMPTS = {"standard": STANDARD, "short": SHORT}


def prompt_set(name: str) -> PromptSet:
    """The prompt set called `name`."""
    if name not in PROMPTS:
        raise ConfigError(f"policy.options.prompts={name!r}: choose one of {', '.join(PROMPTS)}")
    return PROMPTS[name]


def read_slots(text: str) -> dict[str, str] | None:
    """What stands in the slots of a decoded read prompt, None if it's not one of those above.

    >>> prompt = SHORT.read["memory_first"].format(question="Who?", memory=" none", section="Ann ran.")
    >>> read_slots(prompt)
    {'question': 'Who?', 'memory': ' none', 'section': 'Ann ran.'}
    """
    found = (pattern.search(text) for pattern in _READ_PATTERNS)
    return next((match.groupdict() for match in found if match), None)


def _pattern(template: str) -> re.Pattern[str]:
    """The template with a named group in place of each slot."""
    pieces = re.split(r"\{(\w+)\}", template)
    parts = [f"(?P<{piece}>.*?)" if number % 2 else re.escape(piece) for number, piece in enumerate(pieces)]
    return re.compile("".join(parts), re.DOTALL)


_READ_PATTERNS = tuple(_pattern(text) for prompts in PROMPTS.values() for text in prompts.read.values())
