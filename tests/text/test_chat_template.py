"""Chat templates of a model's folder: their variables, the ends of a turn, and templates of trl and axolotl."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import ModelConfig, RunConfig
from palimpsest.errors import ConfigError, ModelError
from palimpsest.provenance import evaluation_identity
from palimpsest.runs.resume_rules import changes
from palimpsest.text.chat import chat_pieces, native_style, opening
from palimpsest.text.chat_template import check_template
from palimpsest.text.codec import Codec
from palimpsest.text.template import user_turn
from palimpsest.text.tool_calls import FORMATS
from palimpsest.tools.tool import SearchTool
from palimpsest.training.supervised.conversations import Conversation, trajectory_of
from support.models import CHAT_TEMPLATE
from support.template_files import RESULTS, TEMPLATES, codec_of, found

THINKING = CHAT_TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
)
PHI = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GLM = PHI.replace("<|end|>", "")


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model_folder, tmp_path / "model")


def with_tokens(folder: Path, *tokens: str, template: str) -> dict[str, int]:
    """Give a folder more control tokens and another template; returns the ids of the tokens."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}


def loaded(folder: Path, template: str, **variables: Any) -> Codec:
    (folder / "chat_template.jinja").write_text(template)
    return Codec.load(ModelConfig(path=str(folder), chat_template_kwargs=variables))


def test_variables_of_the_template_are_passed_to_every_prompt(folder: Path) -> None:
    shut = "<think>\n\n</think>\n\n"
    for variables, tail in (({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, shut)):
        codec = loaded(folder, THINKING, **variables)
        for ids in (user_turn(codec, "{question}", ("question",)).pieces[-1], chat_pieces(codec).generation):
            assert codec.decode(ids).endswith(f"<|im_start|>assistant\n{tail}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"enable_thinkin": False}, "looks up no enable_thinkin; did you mean enable_thinking?"),
        ({"reasoning": "high"}, "model.chat_template_kwargs.reasoning='high': the chat template looks up no reasoning"),
    ],
)
def test_unknown_variables_are_rejected(variables: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        loaded(folder, THINKING, **variables)
    assert message in str(caught.value)


def test_thinking_may_be_off_for_a_template_without_it(folder: Path) -> None:
    assert loaded(folder, CHAT_TEMPLATE, enable_thinking=False).encode("a")


@pytest.mark.parametrize("key", ["messages", "tokenize", "not a name"])
def test_reserved_and_invalid_names_of_variables_are_rejected(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.chat_template_kwargs\.{key}"):
        load_recipe("memagent-quickstart", {"model": {"chat_template_kwargs": {key: 1}}})


def test_qwen3_recipes_do_not_think_and_a_resumed_run_cannot_start_to() -> None:
    config = load_recipe("memagent-vime-qwen3-4b")
    assert config.model.chat_template_kwargs == {"enable_thinking": False}
    thinking = load_recipe("memagent-vime-qwen3-4b", ["model.chat_template_kwargs.enable_thinking=true"])
    assert thinking.model.chat_template_kwargs == {"enable_thinking": True}
    (change,) = changes(config, thinking)
    assert (change.key, change.verdict) == ("model.chat_template_kwargs.enable_thinking", "refused")
    assert RunConfig.model_validate(config.model_dump()) == config


def test_variables_are_part_of_the_identity_of_an_evaluation(folder: Path) -> None:
    off = load_recipe("memagent-quickstart", [f"model.path={folder}"])
    model = off.model.model_copy(update={"chat_template_kwargs": {"enable_thinking": True}})
    assert evaluation_identity(off, {}) != evaluation_identity(off.model_copy(update={"model": model}), {})


def test_variables_of_a_row_override_those_of_the_run(folder: Path) -> None:
    template = "{{ effort }} {{ enable_thinking }} " + CHAT_TEMPLATE
    codec = loaded(folder, template, effort="low", enable_thinking=True)
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    for related, shown in ((None, "low True "), (False, "low False ")):
        trajectory = trajectory_of(Conversation("c", "here", messages, (), related), codec)
        assert codec.decode(trajectory.turns[0].prompt_ids).startswith(shown)


def test_ends_of_a_turn_come_from_generation_config(folder: Path) -> None:
    before = Codec.load(folder).stop_ids
    ids = with_tokens(folder, "<|user|>", "<|observation|>", "<|other|>", template=CHAT_TEMPLATE)
    wanted = [ids["<|user|>"], ids["<|observation|>"]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, *wanted, 100, 99_999]}))
    assert Codec.load(folder).stop_ids == (*before, *wanted)  # 100 is a word, 99,999 is nothing


@pytest.mark.parametrize(("template", "end"), [(PHI, "<|end|>"), (GLM, "<|user|>")])
def test_the_token_after_a_reply_in_the_template_ends_a_turn(template: str, end: str, folder: Path) -> None:
    ids = with_tokens(folder, "<|user|>", "<|assistant|>", "<|end|>", template=template)
    (folder / "generation_config.json").unlink()
    stops = Codec.load(folder).stop_ids
    assert ids[end] in stops
    assert ids["<|assistant|>"] not in stops


def test_a_template_that_drops_the_message_is_rejected(folder: Path) -> None:
    with pytest.raises(ModelError, match="shows a user message with changes"):
        loaded(folder, "{{ messages[0]['role'] }}")


@pytest.mark.parametrize(
    ("form", "shown"),
    [("%Y-%m-%d", "2024-07-26"), ("%Y", "2024"), ("%d %b %Y", "26 Jul 2024"), ("%B %d, %Y", "July 26, 2024")],
)
def test_a_template_gets_one_fixed_day_in_the_requested_format(form: str, shown: str, folder: Path) -> None:
    check = "{% if strftime_now('%Y') | int < 2000 %}{{ raise_exception('no year') }}{% endif %}"
    codec = loaded(folder, f"{check}{{{{ strftime_now('{form}') }}}} {{{{ date_string }}}} " + CHAT_TEMPLATE)
    assert codec.render([{"role": "user", "content": "a"}]).startswith(f"{shown} 26 Jul 2024 ")
    prompt = user_turn(codec, "{question}", ("question",)).pieces[0]
    assert codec.decode(prompt).startswith(f"{shown} 26 Jul 2024 ")


# ---- templates of trl and axolotl ----------------------------------------------------------------------------

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
    """The token that starts a result need not be a stop token."""
    pieces = chat_pieces(codec := codec_of(TEMPLATES[name], without=("<|tool_response>",)))
    assert "tool_call" not in codec.decode([*pieces.end, *pieces.to_results])


def test_the_documented_templates_cover_every_format() -> None:
    assert set(FORMATS) <= {one["calls"] for one in EXPECTED.values()}
