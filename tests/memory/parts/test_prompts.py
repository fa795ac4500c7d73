"""Prompts from a user's YAML file: checked at start and stored with the run."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from palimpsest.app.config_resolution import Agent, run_config
from palimpsest.app.starter_files import prompt_file
from palimpsest.config.load import MAX_PROMPT_BYTES, dump_config, load_recipe, parse_config
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.policy_check import ScriptedModel
from palimpsest.memory.registry import build_policy
from palimpsest.models.checkpoint_manifest import MANIFEST, sealed
from palimpsest.plugin_kinds import KINDS
from palimpsest.text.template import user_turn
from support.agents import base_codec, world
from support.command import Run

SMALL = {"chunk_size": 20, "question_tokens": 60, "memory_tokens": 12, "answer_tokens": 8}
READ = "Task: {question}\n<old>{memory}</old>\n<part>{section}</part>\nNew memory:"
ANSWER = "Task: {question}\n<old>{memory}</old>\nThe answer:"
TEXTS = {"read": READ, "answer": ANSWER, "empty_memory": "nothing yet"}


def built(texts: dict[str, Any], name: str = "overwrite", **options: Any) -> Any:
    sizes = SMALL if name == "overwrite" else {}
    return build_policy(PolicyConfig(name=name, options={**sizes, **options, "prompts": texts}))


def first_prompt(policy: Any, codec: Any) -> tuple[int, ...]:
    model = ScriptedModel(codec, lambda prompt, limit: [codec.stop_ids[0]], max_context=20_480)
    document = "Alice drinks tea." if policy.reads_documents else None
    asyncio.run(model.play(policy, dataclasses.replace(world(), context=document)))
    return model.prompts[0]


@pytest.mark.parametrize("prompts", ["standard", "short"])
@pytest.mark.parametrize("name", KINDS["policy"].shipped)
def test_a_file_of_a_shipped_wording_gives_the_same_prompts(name: str, prompts: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(prompt_file(PolicyConfig(name=name, options={"prompts": prompts})), "utf-8")
    shipped = build_policy(PolicyConfig(name=name, options={"prompts": prompts}))
    mine = build_policy(PolicyConfig(name=name, options={"prompts": str(file)}))
    assert first_prompt(mine, base_codec()) == first_prompt(shipped, base_codec())
    wording, copied = shipped.wording(), mine.wording()
    assert wording is not None
    assert copied is not None
    assert copied.as_file() == wording.as_file()


@pytest.mark.parametrize("text", ["nothing yet...", "a\n...", "a\n...\n", "a\n\n"])
def test_dots_at_the_end_of_a_text_stay(text: str) -> None:
    shown = prompt_file(PolicyConfig(name="overwrite", options={"prompts": {**TEXTS, "empty_memory": text}}))
    assert yaml.safe_load(shown)["empty_memory"] == text


def test_the_model_sees_the_wording_of_the_file() -> None:
    codec = base_codec()
    filled = READ.replace("{question}", "Who?").replace("{memory}", "nothing yet").replace("{section}", "Ann ran.")
    rendered = codec.tokenizer.apply_chat_template(
        [{"role": "user", "content": filled}], tokenize=False, add_generation_prompt=True
    )
    read, _ = built(TEXTS).templates(codec)
    values = {"question": "Who?", "memory": "nothing yet", "section": "Ann ran."}
    prompt = read.fill({name: codec.encode(text) for name, text in values.items()})
    assert codec.decode(prompt) == rendered


def test_tool_agents_take_their_texts_from_a_file() -> None:
    texts = {"system": "Use tools.", "user_prune": "Ask: {question} with {tools}", "pruned": "gone: {ids}"}
    codec = base_codec()
    policy = built({**texts, "result": "({id}) {text}", "schemas": False}, "prune")
    opening = codec.decode(first_prompt(policy, codec))
    assert "<|im_start|>system\nUse tools.<|im_end|>" in opening
    assert "Ask: What does Alice drink? with search prune_context<|im_end|>" in opening
    assert policy.shown("a1", "{id}") == "(a1) {id}"


def test_a_system_message_comes_first_if_the_chat_template_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = base_codec()
    read, answer = built({**TEXTS, "system": "Be {{brief}}."}).templates(codec)
    for template in (read, answer):
        assert codec.decode(template.pieces[0]).startswith("<|im_start|>system\nBe {brief}.<|im_end|>\n")

    class WithoutSystem:
        chat_template = "x"

        def __init__(self, tokenizer: Any) -> None:
            self.backend_tokenizer = tokenizer.backend_tokenizer

        def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
            return "".join(m["content"] for m in messages if m["role"] == "user")

    monkeypatch.setattr(codec, "tokenizer", WithoutSystem(codec.tokenizer))
    with pytest.raises(ConfigError, match="shows no system message"):
        user_turn(codec, "{question}", ("question",), "Be brief.")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({**TEXTS, "read": READ.replace("{memory}", "{memry}")}, ".read has no slot {memry}; did you mean memory?"),
        ({**TEXTS, "read": READ.replace("{memory}", "")}, ".read lacks {memory}; it must contain {question}, "),
        ({**TEXTS, "read": READ + "{memory}"}, ".read has {memory} 2 times"),
        ({**TEXTS, "read": " \n"}, ".read is empty"),
        ({**TEXTS, "read": 5}, ".read=5: must be text"),
        ({"read": READ}, ".answer is missing"),
        ({**TEXTS, "anwser": ANSWER}, ".anwser is unknown to the texts of this policy; did you mean answer?"),
        ({**TEXTS, "empty_memory": "{memory}"}, ".empty_memory has no slot {memory}; it has none"),
        ({**TEXTS, "system": "\ue000memory\ue001"}, ".system contains U+E000"),
    ],
)
def test_an_invalid_text_is_rejected_by_its_key(texts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        built(texts)
    assert str(error.value).startswith("policy.options.prompts" + message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_only_regular_files_are_opened(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match=r"mine.yaml: not a regular file"):
        load_recipe("memagent-quickstart", [f"policy.options.prompts={tmp_path / 'mine.yaml'}"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; palimpsest recipes show RECIPE --prompts"),
        ("read: [", "not valid YAML"),
        ("- read", "expected texts by name"),
        ("read: " + "9" * 6000, "not valid YAML (invalid value: Exceeds the limit"),
        ("read: !!python/object/apply:os.getcwd []", "not valid YAML (could not determine a constructor"),
        ("read: " + "x" * MAX_PROMPT_BYTES, "longer than 1,000,000 bytes"),
        ('read: "\\ud800"', "read: '\\ud800' contains half a character"),
    ],
)
def test_an_unreadable_file_is_rejected_by_its_name(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as error:
        load_recipe("memagent-quickstart", [f"policy.options.prompts={file}"])
    assert str(error.value).startswith(f"policy.options.prompts={file}: ")
    assert message in str(error.value)


def test_other_braces_are_text_and_double_ones_write_the_name_of_a_slot() -> None:
    codec = base_codec()
    _, answer = built({**TEXTS, "answer": ANSWER + " in \\boxed{}, {{memory}} is not filled"}).templates(codec)
    assert "in \\boxed{}, {memory} is not filled" in codec.decode(answer.pieces[-1])


def test_control_tokens_of_the_file_are_control_tokens() -> None:
    codec = base_codec()
    control = next(codec.decode([i]) for i in sorted(codec.control_ids) if i in codec.stop_ids)
    plain = first_prompt(built(TEXTS), codec)
    marked = first_prompt(built({**TEXTS, "read": READ + control, "empty_memory": control}), codec)
    assert sum(i in codec.control_ids for i in marked) == sum(i in codec.control_ids for i in plain) + 1


def written(tmp_path: Path, **texts: str) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**TEXTS, **texts}))
    return file


def test_the_configuration_of_a_run_contains_the_texts_and_a_resume_uses_them(tmp_path: Path) -> None:
    file, out = written(tmp_path), tmp_path / "run"
    overrides = [f"policy.options.prompts={file}", f"train.variant={{options: {{prompts: {file}}}}}"]
    config = run_config("memagent-quickstart", overrides, out=out)
    out.mkdir()
    (out / "config.yaml").write_text(dump_config(config))
    assert config.policy.options["prompts"] == TEXTS
    assert config.train.variant is not None
    assert config.train.variant.options["prompts"] == TEXTS
    assert parse_config(dump_config(config)) == config
    written(tmp_path, answer="Now {question} and {memory}")
    assert run_config("memagent-quickstart", overrides, out=out, resume=True) == config
    file.unlink()
    assert run_config("memagent-quickstart", overrides, out=out, resume=True) == config


def test_a_model_is_evaluated_with_the_wording_of_its_training(tmp_path: Path) -> None:
    config = run_config("memagent-quickstart", [f"policy.options.prompts={written(tmp_path)}"])
    (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(dump_config(config))
    (tmp_path / "run" / "checkpoints" / "step-000001" / MANIFEST).write_bytes(
        sealed({"format": 1, "step": 1, "identity": "", "state": {}, "files": {}})
    )
    for model in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-000001"):
        assert Agent(model).config({}).policy.options["prompts"] == TEXTS
    assert Agent(tmp_path / "run", overrides=["prompts=short"]).config({}).policy.options["prompts"] == "short"
    assert Agent(tmp_path / "run", policy="full_context").config({}).policy.options == {}


def test_the_command_line_prints_texts_and_checks_files(palimpsest: Any, refused: Any, tmp_path: Path) -> None:
    done = palimpsest("recipes", "show", "memagent-7b", "policy.options.prompts=short", "--prompts")
    file = tmp_path / "mine.yaml"
    file.write_text(done.stdout)
    assert palimpsest("check", "overwrite", f"prompts={file}").returncode == 0
    file.write_text(done.stdout.replace("{memory}", "{memo}"))
    assert "policy.options.prompts.read has no slot {memo}" in refused("check", "overwrite", f"prompts={file}")
    assert refused("check", "overwrite", "chunk_size=2.5").strip() == (
        "error: policy.options.chunk_size=2.5: must be a whole number"
    )


def test_a_policy_without_texts_has_no_prompt_file() -> None:
    with pytest.raises(ConfigError, match="takes no file of prompts"):
        prompt_file(PolicyConfig(name="examples.quotes:QuotesPolicy"))


def test_the_error_of_a_missing_text_names_the_command_that_prints_it(palimpsest: Run, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(palimpsest("recipes", "show", "memagent-7b", "--prompts").stdout)
    with pytest.raises(ConfigError, match="read_section_first is missing: layout=section_first shows it") as error:
        build_policy(load_recipe("memagent-quickstart", [f"policy.options.prompts={file}"]).policy)
    command = str(error.value).partition("; palimpsest ")[2].partition(" prints")[0]
    file.write_text(palimpsest(*command.replace("RECIPE", "memagent-7b").split()).stdout)
    build_policy(load_recipe("memagent-quickstart", [f"policy.options.prompts={file}"]).policy)
