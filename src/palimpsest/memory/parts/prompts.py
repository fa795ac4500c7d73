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
    recall: dict[Layout, str]
    """Slots question, recalled, memory, section: reading with a look back (memory/recall.py)."""
    recall_answer: str
    """Slots question, recalled, memory."""
    nothing_recalled: str
    """What stands in the recalled slot where nothing was."""
    gated: dict[Layout, str]
    """Slots question, memory, section: reading with gates (memory/gated.py)."""


_TASK = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article and the memory you have kept of the earlier sections. Read the section and write the memory \
anew: keep every detail of the old memory that still matters and add what the section says that helps to solve the \
problem. Only the new memory will be kept."""

_TAGGED = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article, the memory you have kept of the earlier sections and, where you asked for one, a recalled \
memory that you wrote at an earlier section. Read them and reply in this form:

<thinking>what the section adds to the problem, and what is still missing</thinking>
<update>...</update>
<recall>...</recall>

Put the new memory between the update tags, exactly once: every detail of the old and the recalled memory that still \
matters and what the section adds. Only that will be kept. If you miss something that an earlier memory may hold, name \
it in a few words between the recall tags; otherwise leave them out. At most one recall."""

_GATED = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article and the memory you have kept of the earlier sections. Read the section and reply in this form:

<thinking>what the section adds to the problem</thinking>
<check>yes or no</check>
<update>...</update>
<next>continue or end</next>

Check says whether the memory has to change. If yes, put the new memory between the update tags: every detail of the \
old memory that still matters and what the section adds. If no, leave the update out; the memory stays as it is. Next \
says whether to read on, or to end because the memory holds all that the problem needs."""

_BLOCK = "<{0}>\n{{{0}}}\n</{0}>".format


def _blocks(*names: str) -> str:
    """Tagged blocks, one a slot; the question stands in a block called problem.

    >>> _blocks("question", "memory")
    '<problem>\\n{question}\\n</problem>\\n\\n<memory>\\n{memory}\\n</memory>'
    """
    return (
        "\n\n".join(_BLOCK(name) for name in names)
        .replace("<question>", "<problem>")
        .replace("</question>", "</problem>")
        .replace("recalled>", "recalled_memory>")
    )


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
    recall={
        "memory_first": f"{_TAGGED}\n\n{_blocks('question', 'recalled', 'memory', 'section')}\n\nYour reply:",
        "section_first": f"{_TAGGED}\n\n{_blocks('section', 'question', 'recalled', 'memory')}\n\nYour reply:",
    },
    recall_answer=f"""You have read an article section by section and kept a memory of it. Solve the problem from that \
memory, and from the recalled one, and put the final answer in \\boxed{{}}.

{_blocks("question", "recalled", "memory")}

Your answer:""",
    nothing_recalled="No memory was recalled.",
    gated={
        "memory_first": f"{_GATED}\n\n{_blocks('question', 'memory', 'section')}\n\nYour reply:",
        "section_first": f"{_GATED}\n\n{_blocks('section', 'question', 'memory')}\n\nYour reply:",
    },
)

SHORT = PromptSet(
    read={
        "memory_first": "Problem: {question}\nMemory:{memory}\nSection:\n{section}\nUpdate the memory.",
        "section_first": "Section:\n{section}\nProblem: {question}\nMemory:{memory}\nUpdate the memory.",
    },
    answer="Problem: {question}\nMemory:{memory}\nAnswer in \\boxed{}.",
    direct="Problem: {question}\nDocument:\n{document}\nAnswer in \\boxed{}.",
    empty_memory=" none",
    recall={
        "memory_first": "Problem: {question}\nrecall:{recalled}\nMemory:{memory}\nSection:\n{section}\n"
        "Update the memory.",
        "section_first": "Section:\n{section}\nProblem: {question}\nrecall:{recalled}\nMemory:{memory}\n"
        "Update the memory.",
    },
    recall_answer="Problem: {question}\nrecall:{recalled}\nMemory:{memory}\nAnswer in \\boxed{}.",
    nothing_recalled=" none",
    gated={
        "memory_first": "Problem: {question}\nMemory:{memory}\nSection:\n{section}\nUpdate the memory or end.",
        "section_first": "Section:\n{section}\nProblem: {question}\nMemory:{memory}\nUpdate the memory or end.",
    },
)

PROMPTS = {"standard": STANDARD, "short": SHORT}


def prompt_set(name: str) -> PromptSet:
    """The prompt set called `name`."""
    if name not in PROMPTS:
        raise ConfigError(f"policy.options.prompts={name!r}: choose one of {', '.join(PROMPTS)}")
    return PROMPTS[name]
