"""Default prompts of chat programs with a document and a question, and how the server reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.files.text_files import TextDocument
from palimpsest.servers.openai.message_documents import DocumentRule
from palimpsest.servers.openai.request_bodies import ChatBody, ExtraFields, Message
from palimpsest.servers.openai.request_query import query_of

STORY = "Cora makes baskets. Omar sells tea. Anna drinks mead."
OTHER = "Roy plays harp. Betty wears black."
QUESTION = "What does Omar sell?"

OPEN_WEBUI = """### Task:
Respond to the user query using the provided context, incorporating inline citations in the format [id] **only when \
the <source> tag includes an explicit id attribute** (e.g., <source id="1">).

### Guidelines:
- If you don't know the answer, clearly state that.
- **Only include inline citations using [id] (e.g., [1], [2]) when the <source> tag includes an id attribute.**
- Do not use XML tags in your response.

### Output:
Provide a clear and direct response to the user's query, including inline citations in the format [id] only when the \
<source> tag with id attribute is present in the context.

<context>
{context}
</context>
"""
"""Its default template without some guidelines."""
SOURCES = f'<source id="1" name="a.txt">{STORY}</source>\n<source id="2" name="b.txt">{OTHER}</source>'
LIBRECHAT = """The user has attached a file to the conversation:

              <file>
                <filename>a.txt</filename>
                <type>text/plain</type>
              </file>

        A semantic search was executed with the user's message as the query, retrieving the following context inside \
<context></context> XML tags.

        <context>
          <file>
            <filename>a.txt</filename>
            <context>
            <contextItem>
              <![CDATA[{story}]]>
            </contextItem>
            </context>
          </file>
        </context>

        Use the context as your learned knowledge to better answer the user.

In your response, remember to follow these guidelines:
- If you don't know the answer, simply say that you don't know.
"""


@dataclass(frozen=True)
class FoundQuery:
    rule: DocumentRule
    document: TextDocument
    questions: tuple[str, ...]
    instructions: str
    left_out: bool
    asked: tuple[str, ...]


class Room:
    """An agent whose questions have at most `room` characters."""

    sampling, seed = SamplingConfig(), 0

    def __init__(self, room: int) -> None:
        self._room = room

    def takes(self, questions: Sequence[str]) -> bool:
        return sum(map(len, questions)) <= self._room


def found_query(messages: Sequence[Message], room: int, **extra: Any) -> FoundQuery:
    body = ChatBody(model="palimpsest", messages=list(messages), palimpsest=ExtraFields(**extra))
    agent: Any = Room(room)
    query, notes = query_of(body, agent)
    rule, left_out = DocumentRule(notes["input"]), notes.get("instructions") == "left_out"
    return FoundQuery(rule, query.document, query.questions, query.instructions, left_out, query.prompts)
