"""The prompts that chat programs and libraries make of a document and a question: the agent reads all of them."""

from __future__ import annotations

import json

import pytest

from palimpsest.servers.openai.message_documents import DocumentRule
from palimpsest.servers.openai.request_bodies import Message
from support.chat_templates import LIBRECHAT, OPEN_WEBUI, OTHER, QUESTION, SOURCES, STORY
from support.chat_templates import found_query as read
from support.serving import scripted

QUERY = "\n<user_query>\n{question}\n</user_query>\n"
"""The end of the template of earlier versions."""

LIBRECHAT_TEXT = f'Attached document(s):\n```md# "a.txt"\n{STORY}\n\n```'
DOCUMENTS = (
    f'<documents>\n<document index="1">\n<source>a.txt</source>\n<document_content>\n{STORY}\n</document_content>\n'
    f'</document>\n<document index="2">\n<source>b.txt</source>\n<document_content>\n{OTHER}\n</document_content>\n'
    "</document>\n</documents>"
)
STUFF = "Use the following pieces of retrieved context to answer the question. Be concise."
LLAMA_INDEX = (
    f"Context information is below.\n---------------------\n{STORY}\n---------------------\n"
    f"Given the context information and not prior knowledge, answer the query.\nQuery: {QUESTION}\nAnswer: "
)
LLAMA_INDEX_SYSTEM = (
    "You are an expert Q&A system that is trusted around the world.\n"
    "Always answer the query using the provided context information, and not prior knowledge.\n"
    "Some rules to follow:\n1. Never directly reference the given context in your answer."
)
ANYTHING_LLM = (
    "Given the following conversation, relevant context, and a follow up question, reply with an answer to the current "
    f"question the user is asking.\nContext:\n[CONTEXT 0]:\n{STORY}\n[END CONTEXT 0]\n\n"
)


OLD_OPEN_WEBUI = f"""Use the following context as your learned knowledge, inside <context></context> XML tags.
<context>
{STORY}
</context>

When answer to user:
- If you don't know, just say that you don't know.
- If you don't know when you are not sure, ask for clarification.
Avoid mentioning that you obtained the information from the context.
And answer according to the language of the user's question.

Given the context information, answer the query.
Query: {QUESTION}"""


def chat(*texts: str) -> tuple[Message, ...]:
    """The first is of the system, then the user's and the assistant's by turns."""
    roles = ["system", *["user", "assistant"] * len(texts)]
    return tuple(Message(role, text) for role, text in zip(roles, texts, strict=False) if text)


PROMPTS: dict[str, tuple[tuple[Message, ...], DocumentRule]] = {
    "Open WebUI": (chat("", OPEN_WEBUI.format(context=SOURCES) + f"\n{QUESTION}"), DocumentRule.TAGS),
    "Open WebUI, with the query's tags": (
        chat("", OPEN_WEBUI.format(context=SOURCES) + QUERY.format(question=QUESTION)),
        DocumentRule.TAGS,
    ),
    "Open WebUI, as a system message": (chat(OPEN_WEBUI.format(context=SOURCES), QUESTION), DocumentRule.TAGS),
    "Open WebUI, second question": (
        chat("You are helpful.", "Who plays harp?", "Roy.", OPEN_WEBUI.format(context=SOURCES) + f"\n{QUESTION}"),
        DocumentRule.TAGS,
    ),
    "LibreChat": (chat("Instructions:\n" + LIBRECHAT.format(story=STORY), QUESTION), DocumentRule.TAGS),
    "LibreChat, text before the message": (chat("", f"{LIBRECHAT_TEXT}\n{QUESTION}"), DocumentRule.LABEL),
    "LibreChat, text as a system message": (chat(LIBRECHAT_TEXT, QUESTION), DocumentRule.LABEL),
    "documents, question last": (chat("", f"{DOCUMENTS}\n\n{QUESTION}"), DocumentRule.TAGS),
    "documents, question first": (chat("", f"{QUESTION}\n\n{DOCUMENTS}"), DocumentRule.TAGS),
    "documents in the system message": (chat(f"Answer briefly.\n{DOCUMENTS}", QUESTION), DocumentRule.TAGS),
    "source": (chat("", f"<source>{STORY}</source>\n{QUESTION}"), DocumentRule.TAGS),
    "LangChain, stuffed": (chat(f"{STUFF}\n\n{STORY}", QUESTION), DocumentRule.LABEL),
    "LangChain, stuffed under a label": (chat(f"{STUFF}\nContext: {STORY}", QUESTION), DocumentRule.LABEL),
    "LangChain, stuffed into tags": (
        chat(f"Answer from the context below:\n\n<context>\n{STORY}\n</context>", QUESTION),
        DocumentRule.TAGS,
    ),
    "LangChain, one message": (
        chat("", f"Answer the question based only on the following context:\n{STORY}\n\nQuestion: {QUESTION}\n"),
        DocumentRule.LABEL,
    ),
    "LangChain, hub": (chat("", f"{STUFF}\nQuestion: {QUESTION} \nContext: {STORY} \nAnswer:"), DocumentRule.LABEL),
    "LangChain, question at the end": (
        chat("", f"{STUFF}\n\n{STORY}\n\nQuestion: {QUESTION}\nHelpful Answer:"),
        DocumentRule.LABEL,
    ),
    "LlamaIndex": (chat("", LLAMA_INDEX), DocumentRule.LABEL),
    "LlamaIndex, with its system message": (chat(LLAMA_INDEX_SYSTEM, LLAMA_INDEX), DocumentRule.LABEL),
    "AnythingLLM": (chat(ANYTHING_LLM, QUESTION), DocumentRule.LABEL),
    "a label and a question": (chat("", f"Context: {STORY}\n\n{QUESTION}"), DocumentRule.LABEL),
    "a heading": (chat("", f"## Context\n{STORY}\n\n## Question\n{QUESTION}"), DocumentRule.LABEL),
    "Open WebUI, older": (chat("", OLD_OPEN_WEBUI), DocumentRule.TAGS),
    "contexts": (
        chat("", f"<contexts>\n<context>{STORY}</context>\n<context>{OTHER}</context>\n</contexts>\n\n{QUESTION}"),
        DocumentRule.TAGS,
    ),
    "JSON": (chat("", json.dumps({"context": STORY, "question": QUESTION})), DocumentRule.LABEL),
    "JSON, several": (chat("", json.dumps({"query": QUESTION, "passages": [STORY, OTHER]})), DocumentRule.LABEL),
    "pasted, question last": (chat("", f"{STORY}\n\n{QUESTION}"), DocumentRule.PARAGRAPH),
    "pasted, question first": (chat("", f"{QUESTION}\n\n{STORY}"), DocumentRule.FIRST),
    "pasted, on the next line": (chat("", f"{STORY}\n{QUESTION}"), DocumentRule.PARAGRAPH),
    "pasted, with a system message": (
        chat("You are a helpful assistant.", f"{STORY}\n\n{QUESTION}"),
        DocumentRule.PARAGRAPH,
    ),
    "a bare system message": (chat(STORY, QUESTION), DocumentRule.SYSTEM),
    "an earlier message": (chat("", STORY, "I see.", QUESTION), DocumentRule.MESSAGES),
}


@pytest.mark.parametrize("room", [40, 100_000])
@pytest.mark.parametrize("name", PROMPTS)
def test_the_document_and_the_question_are_found(name: str, room: int) -> None:
    messages, rule = PROMPTS[name]
    found = read(messages, room)
    assert (found.rule, found.questions) == (rule, (QUESTION,))
    assert STORY in found.document.text
    for boilerplate in ("###", "Use the", "Given the", "[CDATA", "<", "```", "---", "Answer"):
        assert boilerplate not in found.document.text


def test_instructions_are_passed_where_there_is_room_but_not_those_that_say_nothing() -> None:
    def instructions(name: str, room: int = 100_000) -> tuple[str, bool]:
        found = read(PROMPTS[name][0], room)
        return found.instructions, found.left_out

    assert instructions("documents in the system message") == ("Answer briefly.", False)
    assert instructions("documents in the system message", 30) == ("", True)
    assert instructions("LangChain, hub") == (STUFF, False)
    assert "You are an expert" in instructions("LlamaIndex, with its system message")[0]
    for name in ("LangChain, one message", "LangChain, stuffed into tags", "pasted, with a system message"):
        assert instructions(name) == ("", False)


def test_sources_are_parts_under_their_names() -> None:
    for name in ("Open WebUI", "documents, question last"):
        document = read(PROMPTS[name][0], 100_000).document
        assert [part.file for part in document.parts] == ["a.txt", "b.txt"]
        assert [document.text[part.start : part.end] for part in document.parts] == [STORY, OTHER]
    document = read(PROMPTS["LibreChat, text as a system message"][0], 100_000).document
    assert [part.file for part in document.parts] == ["a.txt"]


def test_what_was_said_before_is_read_after_the_sources() -> None:
    document = read(PROMPTS["Open WebUI, second question"][0], 100_000).document
    assert document.text.index("user:\nWho plays harp?\n\nassistant:\nRoy.") < document.text.index(STORY)


def test_a_long_text_is_read_whole_whatever_it_holds() -> None:
    """Labels, fences and questions within a text are a part of it."""
    story = "\n\n".join(f"Chapter {n}. Omar sells tea.\nNotes: none.\n---\nQuestion: why?\n```" for n in range(400))
    for messages in (
        chat("", f"<context>{story}</context>\n{QUESTION}"),
        chat("", f"Context:\n{story}\n\nQuestion: {QUESTION}"),
        chat(f"Context:\n{story}", QUESTION),
        chat(story, QUESTION),
    ):
        found = read(messages, 100_000)
        assert story.strip() in found.document.text
        assert found.questions == (QUESTION,)


@pytest.mark.slow
def test_hostile_prompts_take_time_that_grows_with_their_length() -> None:
    """At once; with a quadratic rule this test would not end for an hour."""
    for piece in (
        "<context>",
        "<source id=",
        "<context>a</context>",
        "Context:\n",
        "\n \t",
        "```\n",
        "the text:\n",
        "---\n",
    ):
        message = piece * 200_000
        assert read(chat("", f"{message}\n\n{QUESTION}"), 10**8).document is not None
        assert read(chat(message, QUESTION), 10**8).document is not None


@pytest.mark.parametrize("name", PROMPTS)
async def test_the_agent_reads_it(name: str) -> None:
    client, _, sampler = scripted(None)
    messages = [{"role": each.role, "content": each.text} for each in PROMPTS[name][0]]
    answer = await client.post("/v1/chat/completions", json={"model": "palimpsest", "messages": messages})
    own = answer.json()["palimpsest"]
    assert own["turns"] > 1
    assert own["input"] == PROMPTS[name][1]
    reading = "".join(prompt for prompt in sampler.prompts if "Update the memory" in prompt)
    assert "Omar sells tea" in reading
