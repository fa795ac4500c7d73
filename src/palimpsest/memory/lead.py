"""PARSER's policy: a lead that sees no document asks readers, one per section, and answers from their copies.

Source: PARSER (arXiv 2609.06702; no code was released). The lead is an agent with tools; one of them asks the readers:

    prompt = system, tools, question
    repeat:  reply = lead(prompt)
             no call in it: the answer
             for each query of it:  evidence = reader(section, query) of every section, independent of each other
             prompt += reply + the evidence, in the order of the sections

The readers' turns have the role `reader`: `roles.reader` samples them, and they never train. A reader copies sentences
of its section; others are dropped, and `Unknown`, and what an earlier section said (`grounded=off`: only `Unknown`).

Guaranteed: a query is read by every section; equal sections and queries have equal prompts up to the query, section
first; evidence is in the order of the document; the lead's prompt and reply never exceed `context_tokens`.
Not covered: a section whose namesake misleads its reader: the lead cannot check a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from palimpsest.errors import ConfigError
from palimpsest.events import EmptyMemoryKept, MemoryWritten
from palimpsest.memory.overwrite import Document, cut
from palimpsest.memory.parts import tool_agent
from palimpsest.memory.parts.chunks import Boundary
from palimpsest.memory.parts.grounded import Grounded, GroundedRule, sift, unrepeated
from palimpsest.memory.parts.prompts import Slots, shared
from palimpsest.memory.parts.tool_agent import Found, Said, ToolAgentPolicy, ToolEpisode, ToolPrompts
from palimpsest.memory.policy import Answered, Model, require_positive
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import without_thinking
from palimpsest.text.sentences import Unit
from palimpsest.text.template import Template, insert, user_turn
from palimpsest.text.tool_calls import ToolCall
from palimpsest.tools.tool import ToolSpec
from palimpsest.types import Completion, Outcome, Problem, StopReason

READER = "reader"
"""Role of the readers' turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadPrompts(ToolPrompts):
    """Texts of the tool agent, of the readers and their evidence."""

    reader: Annotated[str, Slots("section", "query")] = ""
    """A reader's prompt."""
    tool: str = "query_readers"
    """Name of the tool that asks the readers."""
    evidence: Annotated[str, Slots("text", optional=("section",))] = "Section {section}: {text}"
    """The evidence of one reader; {section}: number of the section, from 1."""
    found: Annotated[str, Slots("text", optional=("query",))] = "{text}"
    """The result of a query; {text}: all evidence."""
    between: str = "\n"
    """Between the evidence of two sections."""
    nothing: Annotated[str, Slots()] = "No section says anything about it."
    """The result without evidence."""


_SYSTEM = """You answer a question about an article that is too long to read. You never see it. Readers have it, one \
for each of its sections: with query_readers you ask all of them at once, and get the sentences that they copy from \
their sections. A reader sees only its own section and your query, not the question and no earlier query, so make each \
query complete. Ask one small thing at a time: a question often needs several queries, each building on what the last \
one found.

When you are certain, or when nothing more can be found, answer without calling a tool: a sentence or two that sum up \
what you found, then a last line that begins with FINAL_ANSWER: and holds the answer alone, as short as it can be."""

STANDARD = LeadPrompts(
    system=_SYSTEM,
    user=tool_agent.QUERY,
    reader="""You get one section of an article and a query. Copy, word for word, every sentence of the section that \
helps to answer the query, one per line. If there is none, reply with the word Unknown alone.

<section>
{section}
</section>

<query>
{query}
</query>""",
)
"""Our wording, after the structure of PARSER's, for instruction models."""

SHORT = LeadPrompts(
    **shared(tool_agent.SHORT),
    reader="Section:\n{section}\nName:{query}\nMemory: none\nSay what is known.",
    tool="search",
    evidence="{text}",
    found="{query}: {text}",
    between=" ",
    nothing="none",
)
"""For the model `embedded-lead`: a query is a name, a reader replies with the sentences about it."""

_UNKNOWN = {"", "unknown", "none"}


@dataclass(frozen=True, slots=True)
class FromReaders(Said):
    """The answer of the readers to a query."""

    pieces: tuple[str, ...] = ()
    """Evidence by section, in their order, unless the result was cut before its end."""
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LeadPolicy(ToolAgentPolicy):
    """Options of the tool agent, and of the readers; lengths in tokens unless the name says otherwise."""

    prompt_sets: ClassVar[Mapping[str, LeadPrompts]] = {"standard": STANDARD, "short": SHORT}
    texts: LeadPrompts = field(init=False, repr=False, compare=False)
    reads_documents: ClassVar[bool] = True
    acts: ClassVar[bool] = False
    reads_to_end: ClassVar[bool] = False
    """The lead may answer without a query."""
    roles: ClassVar[tuple[str, ...]] = (READER,)
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Further tools of the lead: name, or my_module:MyTool, to options (tools/tool.py)."""
    chunk_size: int = 4096
    """Most document tokens per reader."""
    chunk_boundary: Boundary = "line"
    """`token` cuts at exactly chunk_size; `line` after the last line break that fits; `paragraph` after the last blank
    line that fits, otherwise as `line`."""
    query_tokens: int = 256
    """Longest query; a longer one comes back as an error."""
    reader_tokens: int = 512
    """Budget of a reader's reply."""
    grounded: Grounded = "verbatim"
    """Filter for readers' replies: `verbatim`, units in the section; `close`, also paraphrases of these; `off`, all
    but the reply `Unknown` (published)."""
    unit: Unit = "sentence"
    """Unit that `grounded` stores or drops whole: a `sentence`, an `item` of a list or a `line`."""
    max_turns: int = 12
    """Maximum turns of the lead, at least 2 (a query, the answer); an episode that needs more ends as out_of_turns."""

    def __post_init__(self) -> None:
        ToolAgentPolicy.__post_init__(self)
        require_positive(self, "chunk_size", "query_tokens", "reader_tokens")
        if self.max_turns < 2:
            message = "leaves no turn for the answer after a query; use 2 or more"
            raise ConfigError(message, key="policy.options.max_turns", value=self.max_turns)
        if any(tool.spec.name == self.texts.tool for tool in self.built):
            message = f"can't have {self.texts.tool}, which is the policy's own; rename yours"
            raise ConfigError(message, key="policy.options.tools")

    @property
    def readings(self) -> int:
        return 2

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        query = {"type": "string", "description": "what the readers look for in their sections"}
        parameters = {"type": "object", "properties": {"query": query}, "required": ["query"]}
        asking = ToolSpec(self.texts.tool, "Ask the readers of all sections, at once.", parameters)
        return (*(tool.spec for tool in self.built), asking)

    def shown_texts(self) -> tuple[str, ...]:
        return ("user", "result", "reader", "evidence", "found", "nothing")

    def reader_template(self, codec: Codec) -> Template:
        return user_turn(codec, self.texts.reader, ("section", "query"))

    def required_context(self, codec: Codec) -> int:
        reading = self.reader_template(codec).literal_length + self.chunk_size + self.query_tokens + self.reader_tokens
        return max(self.context_tokens, reading)

    def prepare(self, problem: Problem, codec: Codec) -> Document | None:
        """The document; None without one."""
        if not problem.context or not problem.context.strip():
            return None
        ids = codec.encode(problem.context)
        return Document(len(ids), cut(ids, codec, self.chunk_size, self.chunk_boundary))

    async def run(self, problem: Problem, model: Model) -> Answered:
        if model.prepared is None:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        return await ToolAgentPolicy.run(self, problem, model)

    def immediate_result(self, episode: ToolEpisode, call: Found, number: int) -> Said | None:
        fault = ToolAgentPolicy.immediate_result(self, episode, call, number)
        if fault is not None or (query := self._query(call)) is None:
            return fault
        length = len(self._query_ids(query, episode.model.codec))
        if query.strip() and length <= self.query_tokens:
            return None
        why = f"has {length} tokens, the limit is {self.query_tokens}" if query.strip() else "is empty"
        return Said(f"query {why}", "bad_arguments")

    def _query_ids(self, query: str, codec: Codec) -> list[int]:
        template = self.reader_template(codec)
        spaced = codec.decode(template.pieces[template.slots.index("query")])[-1:].isspace()
        return codec.encode(query.strip() if spaced else f" {query.strip()}")

    def _query(self, call: Found) -> str | None:
        return call.arguments["query"] if isinstance(call, ToolCall) and call.name == self.texts.tool else None

    async def ask(self, episode: ToolEpisode, call: Found) -> Said:
        if (query := self._query(call)) is None:
            return await ToolAgentPolicy.ask(self, episode, call)
        codec, sections = episode.model.codec, episode.model.prepared.chunks
        replies = await self.read(sections, query, episode.model)
        copies = [self._copied(*pair, query, episode.model) for pair in zip(replies, sections, strict=True)]
        if self.grounded != "off":
            copies = unrepeated(copies, codec, self.unit)
        found = {str(number): codec.decode(ids).strip() for number, ids in enumerate(copies, 1) if ids}
        lines = [insert(self.texts.evidence, {"section": number, "text": text}) for number, text in found.items()]
        text = insert(self.texts.found, {"query": query.strip(), "text": self.texts.between.join(lines)})
        shown = self.cut(text if found else self.texts.nothing)
        turns = tuple(reply.turn for reply in replies if reply.turn is not None)
        return FromReaders(shown, None, tuple(one for one in found.values() if one in shown), turns)

    async def read(self, sections: Sequence[Sequence[int]], query: str, model: Model) -> list[Completion]:
        """[sections] the replies of all readers."""
        template, ids = self.reader_template(model.codec), self._query_ids(query, model.codec)
        rule = {"grounded": self.grounded} if self.grounded != "off" else {}
        return await model.generate_all(
            [template.fill({"section": section, "query": ids}) for section in sections],
            name="note",
            max_tokens=self.reader_tokens,
            role=READER,
            notes=[{"chunk": number} | rule for number in range(len(sections))],
        )

    def _copied(self, reply: Completion, section: Sequence[int], query: str, model: Model) -> list[int]:
        """The evidence in a reader's reply; empty without any, or for "none" with or without the query before it."""
        codec = model.codec
        written = without_thinking(reply.token_ids, codec, self.reader_template(codec).pieces[-1])
        said = codec.decode(written).strip().rstrip(".").casefold()
        if said in _UNKNOWN or said.removeprefix(query.strip().casefold()).strip() in _UNKNOWN - {""}:
            model.event(EmptyMemoryKept(), turn=reply.turn)
            return []
        if self.grounded == "off":
            return written
        rule, cut_off = GroundedRule(self.grounded, self.unit), reply.stop_reason is StopReason.LENGTH
        left = sift(written, (section,), codec, rule, cut_off=cut_off)
        if left.dropped:
            model.event(left.event(), turn=reply.turn)
        return left.ids

    def record(self, episode: ToolEpisode, call: Found, answer: Said, about: Mapping[str, Any]) -> None:
        ToolAgentPolicy.record(self, episode, call, answer, about)
        if isinstance(answer, FromReaders):
            changed = not episode.evidence.keys() >= set(answer.pieces)
            episode.evidence.update(dict.fromkeys(answer.pieces))
            episode.readers += answer.turns
            text = "\n".join(episode.evidence)
            ids = tuple(episode.model.codec.encode(text))
            event = MemoryWritten(ids, text, changed=changed, sources=tuple(episode.readers))
            episode.model.event(event, turn=answer.turns[-1])
