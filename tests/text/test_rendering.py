"""What a model's folder says of a conversation: the variables of its template, what ends a turn, whether it thinks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import ModelConfig, RunConfig
from palimpsest.errors import ConfigError, ModelError
from palimpsest.provenance import evaluation_identity
from palimpsest.runs.resume_rules import changes
from palimpsest.text.chat import chat_pieces
from palimpsest.text.codec import Codec
from palimpsest.text.template import user_turn
from palimpsest.training.supervised.conversations import Conversation, trajectory_of
from support.models import CHAT_TEMPLATE

THINKING = CHAT_TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
)
PHI = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GLM = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model_folder, tmp_path / "model")


def with_tokens(folder: Path, *tokens: str, template: str) -> dict[str, int]:
    """Give a folder further control tokens and another template; the ids of the tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}


def thinking(folder: Path, **variables: Any) -> Codec:
    (folder / "chat_template.jinja").write_text(THINKING)
    return Codec.load(ModelConfig(path=str(folder), chat_template_kwargs=variables))


def test_variables_of_the_template_are_passed_wherever_a_prompt_is_built(folder: Path) -> None:
    shut = "<think>\n\n</think>\n\n"
    for variables, tail in (({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, shut)):
        codec = thinking(folder, **variables)
        for ids in (user_turn(codec, "{question}", ("question",)).pieces[-1], chat_pieces(codec).generation):
            assert codec.decode(ids).endswith(f"<|im_start|>assistant\n{tail}")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"enable_thinkin": False}, "looks up no enable_thinkin; did you mean enable_thinking?"),
        ({"reasoning": "high"}, "model.chat_template_kwargs.reasoning='high': the chat template looks up no reasoning"),
    ],
)
def test_variables_that_a_template_does_not_know_are_refused(
    variables: dict[str, Any], said: str, folder: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        thinking(folder, **variables)
    assert said in str(caught.value)


def test_thinking_that_a_model_has_not_may_be_off(folder: Path) -> None:
    Codec.load(ModelConfig(path=str(folder), chat_template_kwargs={"enable_thinking": False}))


@pytest.mark.parametrize("key", ["messages", "tokenize", "not a name"])
def test_what_is_no_variable_of_a_template_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.chat_template_kwargs\.{key}"):
        load_recipe("memagent-quickstart", {"model": {"chat_template_kwargs": {key: 1}}})


def test_qwen3_recipes_do_not_think_and_a_resumed_run_cannot_begin_to() -> None:
    config = load_recipe("memagent-vime-qwen3-4b")
    assert config.model.chat_template_kwargs == {"enable_thinking": False}
    model = config.model.model_copy(update={"chat_template_kwargs": {"enable_thinking": True}})
    (change,) = changes(config, config.model_copy(update={"model": model}))
    assert (change.key, change.verdict) == ("model.chat_template_kwargs.enable_thinking", "refused")
    assert RunConfig.model_validate(config.model_dump()) == config


def test_one_variable_of_the_template_is_overridden_by_its_name() -> None:
    overridden = load_recipe("memagent-vime-qwen3-4b", ["model.chat_template_kwargs.enable_thinking=true"])
    assert overridden.model.chat_template_kwargs == {"enable_thinking": True}


def test_samples_of_a_model_that_thinks_are_not_mixed_with_those_of_one_that_does_not(folder: Path) -> None:
    off = load_recipe("memagent-quickstart", [f"model.path={folder}"])
    model = off.model.model_copy(update={"chat_template_kwargs": {"enable_thinking": True}})
    assert evaluation_identity(off, {}) != evaluation_identity(off.model_copy(update={"model": model}), {})


def test_a_conversation_is_rendered_with_the_runs_variables_and_a_rows_own_before_them(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ effort }} {{ enable_thinking }} " + CHAT_TEMPLATE)
    variables = {"effort": "low", "enable_thinking": True}
    codec = Codec.load(ModelConfig(path=str(folder), chat_template_kwargs=variables))
    said = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    for own, shown in ((None, "low True "), (False, "low False ")):
        trajectory = trajectory_of(Conversation("c", "here", said, (), own), codec)
        assert codec.decode(trajectory.turns[0].prompt_ids).startswith(shown)


def test_ends_of_a_turn_come_from_generation_config(folder: Path) -> None:
    before = Codec.load(folder).stop_ids
    ids = with_tokens(folder, "<|user|>", "<|observation|>", "<|other|>", template=CHAT_TEMPLATE)
    wanted = [ids["<|user|>"], ids["<|observation|>"]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, *wanted, 100, 99_999]}))
    assert Codec.load(folder).stop_ids == (*before, *wanted)  # 100 is a word, 99,999 is nothing


@pytest.mark.parametrize(("template", "end"), [(PHI, "<|end|>"), (GLM, "<|user|>")])
def test_what_a_template_puts_after_a_reply_ends_a_turn(template: str, end: str, folder: Path) -> None:
    ids = with_tokens(folder, "<|user|>", "<|assistant|>", "<|end|>", template=template)
    (folder / "generation_config.json").unlink()
    stops = Codec.load(folder).stop_ids
    assert ids[end] in stops
    assert ids["<|assistant|>"] not in stops


def test_a_template_that_drops_the_message_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['role'] }}")
    with pytest.raises(ModelError, match="shows a user message not as it stands"):
        Codec.load(folder)


def test_no_prompt_depends_on_the_clock(folder: Path) -> None:
    dated = "{{ strftime_now('%d %b %Y') }} {{ date_string }} " + CHAT_TEMPLATE
    (folder / "chat_template.jinja").write_text(dated)
    codec = Codec.load(folder)
    assert codec.decode(user_turn(codec, "{question}", ("question",)).pieces[0]).startswith("26 Jul 2024 26 Jul 2024 ")


@pytest.mark.parametrize(
    ("form", "shown"),
    [("%Y-%m-%d", "2024-07-26"), ("%Y", "2024"), ("%d %b %Y", "26 Jul 2024"), ("%B %d, %Y", "July 26, 2024")],
)
def test_a_template_gets_one_day_in_the_form_it_asks_for(form: str, shown: str, folder: Path) -> None:
    date = (
        "{% if strftime_now('%Y') | int < 2000 %}{{ raise_exception('no year') }}{% endif %}{{ strftime_now('FORM') }} "
    )
    (folder / "chat_template.jinja").write_text(date.replace("FORM", form) + CHAT_TEMPLATE)
    assert Codec.load(folder).render([{"role": "user", "content": "a"}]).startswith(shown + " ")
