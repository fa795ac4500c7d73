"""Prompts of the reading policies, in our own words, after the structure of MemAgent (arXiv 2507.02259, table 1).

`standard` speaks to a pretrained instruction model; `short` is what the embedded model was made for. Slots are
filled in token space (text/template.py), so nothing a document says can close a tag that matters to the program.
"""

from __future__ import annotations

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
