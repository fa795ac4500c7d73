"""The document and the question of a request, in plain messages and in clients' templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai.message_documents import DocumentRule
from palimpsest.servers.openai.request_bodies import FilePart, Message
from support.chat_templates import LIBRECHAT, OPEN_WEBUI, OTHER, QUESTION, SOURCES, STORY, FoundQuery, found_query
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


def user(text: str, *files: FilePart) -> Message:
    return Message("user", text, files)


def read(*messages: Message, room: int = 1000, **extra: Any) -> FoundQuery:
    return found_query(messages, room, **extra)


def divided(message: str, room: int = 1000) -> tuple[DocumentRule, str, tuple[str, ...]]:
    """(rule, document, questions) of a request of one message."""
    query = read(user(message), room=room)
    return query.rule, query.document.text, query.questions


def test_the_document_field_takes_precedence_over_files() -> None:
    file = FilePart(b"file", "a.txt")
    query = read(user("Who?", file), document="Anna is here.", question="Where?")
    assert (query.rule, query.document.text, query.questions) == (DocumentRule.FIELD, "Anna is here.", ("Where?",))


def test_files_of_all_messages_are_the_document_in_their_order() -> None:
    one, two = FilePart(b"one", "a.txt"), FilePart(b"two", "b.txt")
    query = read(user("First?", one), Message("assistant", "Yes."), user("And then?", two))
    assert (query.rule, query.questions) == (DocumentRule.FILES, ("And then?",))
    assert [part.file for part in query.document.parts] == ["a.txt", "b.txt"]


def test_earlier_messages_are_the_document_with_their_roles() -> None:
    query = read(Message("system", "Be short."), user("Anna is here."), Message("assistant", "Good."), user("Who?"))
    assert (query.rule, query.document.text) == (DocumentRule.MESSAGES, "user:\nAnna is here.\n\nassistant:\nGood.")
    assert (query.questions, query.instructions) == (("Who?",), "Be short.")
    assert query.asked == ("Be short.\n\nWho?",)


@pytest.mark.parametrize("room", [5, 1000])
def test_text_around_document_tags_is_instructions_if_it_fits(room: int) -> None:
    message = "Be brief.\n<document>\nAnna is here.\n</document>\nWho?"
    assert divided(message, room) == (DocumentRule.TAGS, "Anna is here.", ("Who?",))
    query = read(user(message), room=room)
    assert (query.left_out, query.asked) == ((True, ("Who?",)) if room == 5 else (False, ("Be brief.\n\nWho?",)))


def test_unclosed_tags_are_part_of_the_message() -> None:
    """A quadratic rule would take an hour."""
    message = "<document>" * 200_000
    assert divided(message, 10**7) == (DocumentRule.UNDIVIDED, message, (message,))


@pytest.mark.parametrize("room", [5, 1000])
@pytest.mark.parametrize("gap", ["\n\n", "\n"])
def test_the_paragraph_that_asks_is_the_question_of_a_pasted_text(gap: str, room: int) -> None:
    text = f"Anna is here.{gap}Bob too."
    assert divided(f"{text}{gap}Who?\n", room) == (DocumentRule.PARAGRAPH, text, ("Who?",))
    assert divided(f"Who?{gap}{text}", room) == (DocumentRule.FIRST, text, ("Who?",))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Summarise this:\n\nAnna is here.\n\nBob too.",
            (DocumentRule.FIRST, "Anna is here.\n\nBob too.", ("Summarise this:",)),
        ),
        ("Anna is here.\n\nSummarise this.", (DocumentRule.PARAGRAPH, "Anna is here.", ("Summarise this.",))),
        *(
            (f"Anna is here.\n\nWho?\n\n{thanks}", (DocumentRule.PARAGRAPH, "Anna is here.", ("Who?",)))
            for thanks in ("Thanks!", "Thank you so much.", "many thanks in advance")
        ),
        (
            "Anna sells tea. Who sells tea?",
            (DocumentRule.UNDIVIDED, "Anna sells tea. Who sells tea?", ("Anna sells tea. Who sells tea?",)),
        ),
    ],
)
def test_requests_colons_and_thanks_in_a_pasted_text(message: str, expected: tuple[DocumentRule, str, Any]) -> None:
    assert divided(message) == expected


LONG = "Please tell me, as precisely as you can, who of them sells the tea, and why?"


@pytest.mark.parametrize(
    ("message", "question"),
    [
        (f"Anna is here.\n\n{LONG}", LONG),
        (f"Anna is here.\n{LONG}", LONG),
        (f"Anna is here.\n\nBob too.\n\n{LONG}\n\nThanks!", LONG),
        (f"Where?\n\nAnna is here.\n\n{LONG}", LONG),
        (f"Read this:\n\nAnna is here.\n\n{LONG}", LONG),
        (f"{LONG}\n\nAnna is here.", LONG),
        (f"{LONG}\nAnna is here.", LONG),
        (f"Anna is here.\n\nQuestion: {LONG[:-1]}.", f"Question: {LONG[:-1]}."),
        (json.dumps({"context": "Anna is here.", "question": LONG}, indent=1), LONG),
        ("Anna is here.\n\nPlease note: Bob, and his brother, come later.\nWho?", "Who?"),
    ],
)
def test_a_question_that_is_too_long_is_never_read_as_document(message: str, question: str) -> None:
    """The length is rejected later, as for a question next to tags."""
    _, document, questions = divided(message, 20)
    assert questions == (question,)
    assert ("Please tell" in document, "Anna is here." in document) == (False, True)


@pytest.mark.parametrize(
    ("messages", "extra", "error"),
    [
        ([Message("system", "Be short.")], {}, "no question"),
        ([user("Who?"), Message("assistant", "Anna")], {}, "no question"),
        ([user("  ")], {}, "no question"),
        ([user("", FilePart(b"text", "a.txt"))], {}, "no question"),
        ([user("Who?", FilePart(b" ", "a.txt"))], {}, "a.txt: has no text"),
        ([user("Who?")], {"document": ""}, "document: has no text"),
        ([user("<document> </document> Who?")], {}, "has no text"),
        ([user("word " * 1000)], {}, "a separate last paragraph"),
    ],
)
def test_a_request_without_question_or_text_is_rejected(messages: list[Message], extra: Any, error: str) -> None:
    with pytest.raises(Refused, match=error):
        read(*messages, **extra)


def test_a_tool_result_is_the_document() -> None:
    call, result = Message("assistant", ""), Message("tool", "Anna is here.")
    for messages in ((user("Who?"), call, result), (result, user("Who?"))):
        query = read(*messages)
        assert (query.rule, query.document.text, query.questions) == (DocumentRule.TOOLS, "Anna is here.", ("Who?",))


@pytest.mark.parametrize("room", [40, 100_000])
@pytest.mark.parametrize("name", PROMPTS)
def test_a_template_is_divided_into_document_and_question(name: str, room: int) -> None:
    messages, rule = PROMPTS[name]
    query = found_query(messages, room)
    assert (query.rule, query.questions) == (rule, (QUESTION,))
    assert STORY in query.document.text
    for boilerplate in ("###", "Use the", "Given the", "[CDATA", "<", "```", "---", "Answer"):
        assert boilerplate not in query.document.text


def test_instructions_are_passed_if_they_fit_and_say_something() -> None:
    def instructions(name: str, room: int = 100_000) -> tuple[str, bool]:
        query = found_query(PROMPTS[name][0], room)
        return query.instructions, query.left_out

    assert instructions("documents in the system message") == ("Answer briefly.", False)
    assert instructions("documents in the system message", 30) == ("", True)
    assert instructions("LangChain, hub") == (STUFF, False)
    assert "You are an expert" in instructions("LlamaIndex, with its system message")[0]
    for name in ("LangChain, one message", "LangChain, stuffed into tags", "pasted, with a system message"):
        assert instructions(name) == ("", False)


def test_sources_are_named_passages_of_the_document() -> None:
    for name in ("Open WebUI", "documents, question last"):
        document = found_query(PROMPTS[name][0], 100_000).document
        assert [part.file for part in document.parts] == ["a.txt", "b.txt"]
        assert [document.text[part.start : part.end] for part in document.parts] == [STORY, OTHER]
    document = found_query(PROMPTS["LibreChat, text as a system message"][0], 100_000).document
    assert [part.file for part in document.parts] == ["a.txt"]


def test_earlier_messages_are_read_with_the_sources() -> None:
    document = found_query(PROMPTS["Open WebUI, second question"][0], 100_000).document
    assert document.text.index("user:\nWho plays harp?\n\nassistant:\nRoy.") < document.text.index(STORY)


def test_labels_and_questions_within_a_long_text_stay_in_it() -> None:
    """Labels, fences and questions within a text are a part of it."""
    story = "\n\n".join(f"Chapter {n}. Omar sells tea.\nNotes: none.\n---\nQuestion: why?\n```" for n in range(400))
    for messages in (
        chat("", f"<context>{story}</context>\n{QUESTION}"),
        chat("", f"Context:\n{story}\n\nQuestion: {QUESTION}"),
        chat(f"Context:\n{story}", QUESTION),
        chat(story, QUESTION),
    ):
        query = found_query(messages, 100_000)
        assert story.strip() in query.document.text
        assert query.questions == (QUESTION,)


@pytest.mark.slow
def test_hostile_prompts_are_divided_in_linear_time() -> None:
    """A quadratic rule would take an hour."""
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
        for messages in (chat("", f"{message}\n\n{QUESTION}"), chat(message, QUESTION)):
            assert found_query(messages, 10**8).document is not None


@pytest.mark.parametrize("name", PROMPTS)
async def test_the_agent_reads_the_document_of_a_template(name: str) -> None:
    client, _, sampler = scripted(None)
    messages = [{"role": item.role, "content": item.text} for item in PROMPTS[name][0]]
    answer = await client.post("/v1/chat/completions", json={"model": "palimpsest", "messages": messages})
    extra = answer.json()["palimpsest"]
    assert extra["turns"] > 1
    assert extra["input"] == PROMPTS[name][1]
    reading = "".join(prompt for prompt in sampler.prompts if "Update the memory" in prompt)
    assert "Omar sells tea" in reading
