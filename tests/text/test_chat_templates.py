"""Chat templates of trl and axolotl, if they are installed, against what the docs say about their models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from palimpsest.errors import ModelError
from palimpsest.text.chat import chat_pieces, native_style, opening
from palimpsest.text.chat_template import check_template
from palimpsest.text.tool_calls import FORMATS
from palimpsest.tools.tool import SearchTool
from support.template_files import RESULTS, TEMPLATES, codec_of, found

EXPECTED: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
NAMES = TEMPLATES.keys() & EXPECTED.keys()
needs_templates = pytest.mark.skipif(not NAMES, reason="needs trl or axolotl installed, or PALIMPSEST_TEMPLATES")
TOOLS = json.dumps([SearchTool().spec.function()])


@needs_templates
@pytest.mark.parametrize("name", sorted(NAMES))
def test_calls_and_results_of_templates_are_as_documented(name: str) -> None:
    assert found(TEMPLATES[name]) == EXPECTED[name]


@needs_templates
@pytest.mark.parametrize("name", sorted(NAMES))
def test_templates_show_user_turns_and_tools(name: str) -> None:
    codec = codec_of(TEMPLATES[name])
    try:
        check_template(name, codec.tokenizer, {})
    except ModelError:
        assert EXPECTED[name]["calls"].startswith("rejected")
        return
    question = "What does Omar <b> sell?"
    filled = codec.decode(opening(codec, "", "{q}", ("q",), "[]", "").fill({"q": codec.encode(question)}))
    assert filled == codec.render([{"role": "user", "content": question}], add_generation_prompt=False)
    native = native_style(codec)
    shown = codec.decode(opening(codec, "", "{q}", ("q",), TOOLS, "I am it.", bool(native)).fill({"q": []}))
    assert ("I am it." in shown) is (native is None)
    assert "search" in shown or native is None


@needs_templates
@pytest.mark.parametrize("name", sorted(name for name in NAMES if EXPECTED[name]["calls"] == "gemma4"))
def test_templates_leave_the_syntax_of_a_call_to_the_reply(name: str) -> None:
    """Also where the token that starts a result is no stop token."""
    pieces = chat_pieces(codec := codec_of(TEMPLATES[name], without=("<|tool_response>",)))
    assert "tool_call" not in codec.decode([*pieces.end, *pieces.to_results])


def test_the_documented_templates_cover_every_format() -> None:
    assert set(FORMATS) <= {one["calls"] for one in EXPECTED.values()}
