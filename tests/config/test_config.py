"""Recipes and overrides: typed values in, one-line errors out."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.keys import all_keys, dotted_keys, keys_of, section_of
from palimpsest.config.load import (
    dump_config,
    load_recipe,
    parse_config,
    quickstarts,
    recipe_names,
    recipe_text,
    split_override,
)
from palimpsest.config.other_names import OTHER_NAMES
from palimpsest.config.reward import RewardConfig
from palimpsest.config.schema import PolicyConfig, RunConfig, suspicious
from palimpsest.config.yaml_text import MAX_CHARACTERS, read
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import build_policy

SHIPPED = recipe_names()
PUBLISHED = [name for name in SHIPPED if name not in quickstarts().values()]


def rejected(*overrides: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, name="mine", overrides=overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_survives_being_written_and_read(name: str) -> None:
    config = load_recipe(name)
    assert parse_config(dump_config(config)) == config
    assert config.recipe == name


REMEMR1 = ("rememr1-3b", "rememr1-7b", "rememr1-code")
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")  # which are rejected
TEXT = st.text(CHARACTERS) | st.from_regex(r"[-+]?[0-9._]{0,4}[eE]?[-+]?[0-9]{0,3}", fullmatch=True)


@settings(max_examples=30)
@given(TEXT, TEXT)
@example("1e5", "12e3")
@example("W\x85", "\u2028")
def test_no_text_is_read_back_as_anything_else(key: str, value: str) -> None:
    config = RunConfig(recipe=value, policy=PolicyConfig(options={key: value}))
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize("name", SHIPPED)
def test_the_policies_of_a_recipe_can_be_built(name: str) -> None:
    config = load_recipe(name)
    for policy in (config.policy, *config.evaluation.baselines.values(), *config.evaluation.trained_baselines.values()):
        build_policy(policy)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_value_of_a_published_recipe_names_its_source(name: str) -> None:
    for line in recipe_text(name).splitlines():
        key, colon, value = line.partition(":")
        exempt = key.strip() in {"recipe", "prompts"}  # a name and a wording of this project
        if colon and value.split("#")[0].strip() and not line.startswith("#") and not exempt and key.strip() != "name":
            assert "#" in value, line


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("memagent-14b", {"batch_size": 256, "num_minibatches": 16, "group_size": 16, "eval_on_start": True}),
        ("memact-cold-start", {"batch_size": 256, "max_steps": 72}),
        *((name, {"eval_on_start": True, "metric_for_best_model": "accuracy"}) for name in REMEMR1),
    ],
)
def test_published_recipes_have_the_numbers_of_papers_and_scripts(name: str, values: dict[str, Any]) -> None:
    config = load_recipe(name)
    assert {key: getattr(config.train, key) for key in values} == values
    assert config.data.shuffle is (name == "memact-cold-start")


def test_published_recipes_have_the_budgets_of_papers_and_scripts() -> None:
    options, second = (load_recipe(name).policy.options for name in ("memagent-7b", "memagent-14b-stage2"))
    budgets = [options[key] for key in ("chunk_size", "memory_tokens", "answer_tokens", "max_chunks")]
    assert (budgets, second["max_chunks"] * second["chunk_size"]) == ([5000, 1024, 1024, 8], 60_000)
    for name in REMEMR1:
        for key in ("question_tokens", "memory_tokens", "answer_tokens", "max_chunks"):
            (line,) = [text for text in recipe_text(name).splitlines() if text.strip().startswith(f"{key}:")]
            assert "# config:" in line


def test_a_value_belongs_to_its_reader() -> None:
    """The text is parsed once."""
    first, second = read("a: [1]"), read("a: [1]")
    first["a"].append(2)
    assert second == read("a: [1]") == {"a": [1]}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=1e-6", 1e-6),
        ("a=.5", 0.5),
        ("a=12", 12),
        ("a=true", True),
        ("a=no", "no"),
        ("a=null", None),
        ("a=", None),
        ("a=[1, 2]", [1, 2]),
        ("a={b: 1}", {"b": 1}),
        ("a=my_module:MyPolicy", "my_module:MyPolicy"),
        ("a=x=y", "x=y"),
        ("a=007", "007"),
        ("a=1_000", 1000),
    ],
)
def test_values_are_read_as_yaml(override: str, expected: object) -> None:
    key, value = split_override(override)
    assert key == "a"
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"train.max_off_policy_steps={2**63}", "train.max_off_policy_steps: a number of 64 bits; at most 63 are"),
        (f"policy.options.size=[{-(2**63) - 1}]", "policy.options.size: a number of 64 bits"),
        ('reward.name="\\ud800:x"', r"reward.name: .* contains half a character"),
        (r'model.path="a\0b"', r"model\.path: 'a\\x00b' contains a NUL character"),
        (r'roles={"a\0b": {}}', r"roles: 'a\\x00b' contains a NUL character"),
        ('roles={"\\ud800": {}}', r"roles: .* contains half a character"),
        ("policy.options.day=2026-01-01", "policy.options.day: a date can't be stored"),
        ("policy.options.names=!!set {a}", "policy.options.names: a set can't be stored"),
        ("policy.options.map={1: 2}", "policy.options.map.1=1: names there must be text"),
    ],
)
def test_values_that_a_file_cannot_contain_are_rejected(override: str, message: str) -> None:
    assert re.search(message, rejected(override))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_number_survives_the_command_line(value: float) -> None:
    assert split_override(f"a={value!r}")[1] == value


def test_later_overrides_win_and_open_sections() -> None:
    config = parse_config("", overrides=["train.max_steps=3", "train.max_steps=4", "data.curriculum.chunks=[1, 8]"])
    assert config.train.max_steps == 4
    assert config.data.curriculum is not None
    assert config.data.curriculum.chunks == (1, 8)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_custom_reward_replaces_the_reward_of_the_recipe(name: str) -> None:
    mine = load_recipe(name, {"reward.name": "my_module:my_reward"})
    assert mine.reward == RewardConfig(name="my_module:my_reward", timeout_s=load_recipe(name).reward.timeout_s)
    assert mine.credit.adv_estimator != "state_mix"


def test_other_reward_overrides_apply_to_a_custom_reward() -> None:
    overrides = {"reward.name": "my_module:mine", "reward.unsupported_penalty": 0.5, "reward.state": {"format": 0.5}}
    mine = load_recipe("rememr1-quickstart", overrides)
    assert mine.reward.state is not None
    assert (mine.reward.unsupported_penalty, mine.reward.state.format) == (0.5, 0.5)
    assert (mine.credit.adv_estimator, mine.credit.options["alpha"]) == ("state_mix", 0.8)
    again = parse_config(dump_config(mine), overrides={"reward.name": "my_module:other"})
    assert again.reward.unsupported_penalty == 0.5


def test_a_smaller_batch_has_fewer_minibatches_unless_they_are_named() -> None:
    def loaded(*overrides: str) -> int:
        return load_recipe("memagent-quickstart", overrides).train.num_minibatches

    assert (loaded("train.batch_size=4"), loaded("train.batch_size=64")) == (4, 8)
    assert loaded("train.batch_size=4", "train.num_minibatches=2") == 2
    assert loaded("train={batch_size: 2}") == loaded("train.batch_size=2") == 2
    with pytest.raises(ConfigError, match=r"train\.num_minibatches=6 exceeds train\.batch_size=4"):
        loaded("train.batch_size=4", "train.num_minibatches=6")
    with pytest.raises(ConfigError, match=r"train\.batch_size"):
        loaded("train.batch_size=0")


def test_a_file_as_the_data_leaves_the_curriculum_of_drawn_documents() -> None:
    assert load_recipe("memagent-quickstart", ["data.train_files=mine.jsonl"]).data.curriculum is None
    drawn = load_recipe("memagent-quickstart", ["data.train_files=synthetic"])
    assert drawn.data.curriculum is not None
    searched = load_recipe("memact-quickstart", ["data.train_files=mine.jsonl", "cold_start=null", "data.search={}"])
    assert searched.data.curriculum is None
    with pytest.raises(ConfigError, match=r"data\.curriculum sets the length"):
        load_recipe("memagent-quickstart", ["data.train_files=mine.jsonl", "data.curriculum.chunks=[1, 2]"])


@pytest.mark.parametrize(
    ("name", "override", "keys"),
    [
        ("memagent-quickstart", "train.batch_size=2", ["train.num_minibatches"]),
        ("memagent-quickstart", "data.train_files=a.jsonl", ["data.curriculum.advance_at", "data.curriculum.chunks"]),
        ("rememr1-quickstart", "engine.name=m:E", ["engine.micro_batch_tokens"]),
        ("memagent-quickstart", "train.max_steps=2", []),
    ],
)
def test_a_warning_names_the_keys_of_the_recipe_that_an_override_replaces(
    name: str, override: str, keys: list[str], recwarn: pytest.WarningsRecorder
) -> None:
    config = load_recipe(name, [override])
    warned = [str(warning.message).partition("replace its ")[2] for warning in recwarn]
    assert sorted(", ".join(warned).split(", ") if warned else []) == keys
    recwarn.clear()
    parse_config(config.model_dump_json(), overrides=["seed=2"])
    assert not recwarn.list


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("optim.learning_rte=1", "unknown key optim.learning_rte; did you mean optim.learning_rate?"),
        ("learning_rate=1", "did you mean optim.learning_rate"),
        ("optim.lr=1", "unknown key optim.lr; did you mean optim.learning_rate?"),
        ("train.learning_rate=1", "did you mean optim.learning_rate"),
        ("train.steps=8", "did you mean train.max_steps?"),
        ("cold_start.steps=8", "did you mean cold_start.max_steps?"),
        ("actor.ppo_mini_batch_size=8", "did you mean train.num_minibatches?"),
        ("loss.loss_agg_mode=token", "did you mean credit.agg_mode?"),
        ("cluster.tensor_parallel=2", "did you mean cluster.tensor_parallel_size?"),
        ("train.k0=1", "unknown key train.k0; train has max_steps, max_tokens, batch_size, "),
        ("train={max_steps: 1, foo: 2}", "unknown key train.foo; train has max_steps, "),
        ("credit.overlong.bufer=1", "did you mean credit.overlong.buffer?"),
        ("zzz=1", "unknown key zzz; known: recipe, seed, model, "),
        ("actor_rollout_ref.rollout.n=8", "did you mean train.group_size?"),
        ("actor_rollout_ref.rollout.name=vllm", "did you mean sampler.name?"),
        ("algorithm.filter_groups.enable=true", "did you mean credit.dynamic_sampling?"),
        ("algorithm.gamma=0.9", "no equivalent: there is no critic"),
        ("actor_rollout_ref.actor.ppo_epochs=2", "no equivalent: each rollout batch is used once"),
        ("model.name=x", "did you mean model.path?"),
        ("policy.chunk_size=5", "did you mean policy.options.chunk_size?"),
        ("engine.name=vllm", "sampler.name=vllm"),
        ("credit.adv_estimator=gae", "no critic"),
        ("reward.name=judge", "reward.final_answer.match=judge"),
    ],
)
def test_an_unknown_key_gets_a_key_as_its_hint(override: str, hint: str) -> None:
    assert hint in rejected(override)


WRONG: tuple[Any, ...] = (
    "no such thing", "", 1.5, -1, 0, True, None, math.nan, math.inf, 10**18, [], [1, 2], ["a"], [[1]], {"a": 1}, {},
    {"a": [1]}, {1: 2}, [{"name": 3}], {"a": {"trained": "x"}}, [0.9], [0.9, "x"], [1, 2, 3],
)  # fmt: skip
PYDANTICS = re.compile(
    r"[Ii]nput|should|valid (integer|number|string|dict|list|tuple|boolean)|pars|pydantic|\[key\]|something else"
)
ENDPOINT_TEXT = "engine: {name: endpoint, url: 'http://127.0.0.1:8000/v1'}"
ENDPOINT = {"engine.name": "endpoint", "engine.url": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        *((key.name, {}) for key in all_keys()),
        *((key.name, ENDPOINT) for key in keys_of(EndpointEngineConfig, "engine.", None)),
    ],
)
def test_invalid_values_of_every_key_name_it_without_the_validators_words(key: str, settings: dict[str, Any]) -> None:
    messages = list[str]()
    for value in WRONG:
        try:
            parse_config("", overrides={**settings, key: value})
        except ConfigError as error:
            messages.append(str(error))
    assert [message for message in messages if key.rpartition(".")[2] in message]
    assert not [message for message in messages if PYDANTICS.search(message)]


READS = "must be a whole number, at least 1 and at most 4096, or auto or off or null"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.max_steps=many", "train.max_steps='many': must be a whole number, at least 1"),
        ("train.max_steps=0", "train.max_steps=0: must be a whole number, at least 1"),
        ("optim.learning_rate=fast", "optim.learning_rate='fast': must be a number, above 0"),
        ("engine.speculative_reads=.nan", f"engine.speculative_reads=nan: {READS}, and finite"),
        ("engine.speculative_reads=0", f"engine.speculative_reads=0: {READS}"),
        ("engine.speculative_reads=yes", f"engine.speculative_reads='yes': {READS}"),
        ("data.shuffle=maybe", "data.shuffle='maybe': must be true or false"),
        ("model.path=3", "model.path=3: must be text"),
        ("policy.options=3", "policy.options=3: must be a mapping"),
        ("optim.betas=[0.9]", "optim.betas=[0.9]: must be a list of 2"),
        ("optim.betas=[0.9, x]", "optim.betas.1='x': must be a number"),
        ("optim.betas=[2, 3]", "optim.betas=[2.0, 3.0]: use two numbers of at least 0 and below 1, e.g. [0.9, 0.999]"),
        ("evaluation.sizes=4", "evaluation.sizes=4: must be a list, each a whole number, e.g. [4]"),
        ("evaluation.baselines={a: 3}", "evaluation.baselines.a is a section with the keys name, options"),
        ("roles={critic: 3}", "roles.critic is a section with the keys model, url, temperature, max_tokens"),
        ("roles={1: {}}", "roles.1=1: names there must be text"),
        ("train.variant={share: 0.5, options: {}}", "train.variant.options={}: must be a mapping, and not empty"),
        ("optim.eps=.nan", "optim.eps=nan: must be a number, above 0, and finite"),
        ("data.synthetic.task=[]", "data.synthetic.task=[]: name one family or several, each once"),
        (
            "credit.agg_mode=tokn",
            "credit.agg_mode='tokn': choose one of token, segment, trajectory, prompt; did you mean token?",
        ),
    ],
)
def test_every_kind_of_invalid_value_names_what_it_must_be(setting: str, message: str) -> None:
    assert rejected(setting).removeprefix(f"override {setting}: ") == message


@pytest.mark.parametrize(
    ("overrides", "text", "parts"),
    [
        (["optim.eps=.inf"], "", ["finite"]),
        ([], "train: {max_steps: many}", ["recipe mine: train.max_steps='many'"]),
        (
            ["loss.importance_sampling_cap=2"],
            "",
            ["override loss.importance_sampling_cap=2", "loss.old_logprobs=recom"],
        ),
        (["train.num_minibatches=9"], "", ["train.num_minibatches=9", "train.batch_size=8"]),
        (["credit.adv_estimator=leave_one_out", "train.group_size=1"], "", ["=leave_one_out", "train.group_size=1"]),
        (["sampling.temperature=0", "train.group_size=4"], "", ["sampling.temperature=0", "train.group_size=4"]),
        (["sampling=hot"], "", ["sampling is a section with the keys temperature, top_p"]),
        (["train.max_steps.x=3"], "", ["train.max_steps is a value, not a section"]),
        (["train.max_steps.x=3"], "train: {max_steps: 3}", ["not a section"]),
        ([], "train:\n  steps: 1\n  steps: 2\n", ["given twice"]),
        ([], "seed: 1" + " " * MAX_CHARACTERS, [f"not valid YAML ({MAX_CHARACTERS + 7} characters"]),
        ([], "train:\n  ? [1]\n  : 2\n  ? [1]\n  : 2\n", ["unhashable key"]),
        ([], "a: [1", []),
        ([], "- 1\n- 2", []),
        ([], "just text", []),
        (["engine.concurrency=0"], ENDPOINT_TEXT, ["engine.concurrency=0: must be a whole number, at least 1"]),
        (["engine.mode=chats"], ENDPOINT_TEXT, ["choose one of auto, tokens, completions, chat; did you mean chat?"]),
        (["engine.concurency=3"], ENDPOINT_TEXT, ["did you mean engine.concurrency?"]),
        *(([override], "", ["expected key=value"]) for override in ("steps", "=3", "train.=3", ".steps=3")),
    ],
)
def test_invalid_recipes_and_overrides_are_one_line(overrides: list[str], text: str, parts: list[str]) -> None:
    message = rejected(*overrides, text=text)
    assert all(part in message for part in parts)
    assert "\n" not in message
    assert text or "recipe" not in message  # which has no part in it


def test_several_mistakes_are_named_on_one_line() -> None:
    mistakes = rejected("train.max_steps=0", "optim.epz=1").split("; ")
    assert [mistake.split(maxsplit=1)[0] for mistake in mistakes] == ["override", "did", "train.max_steps=0:"]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train.max_off_policy_steps=10000", "train.max_off_policy_steps=10000"),
        ("optim.warmup_steps=100000", "optim.warmup_steps=100000"),
        ("optim.learning_rate=1000", "optim.learning_rate=1000"),
        ("loss.entropy_coeff=-100", "loss.entropy_coeff=-100"),
    ],
)
def test_a_setting_that_is_probably_a_mistake_is_reported(override: str, key: str) -> None:
    config = load_recipe("memagent-quickstart", [override])
    assert [reason.partition(" ")[0].rstrip(":") for reason in suspicious(config)] == [key]


@pytest.mark.parametrize("recipe", SHIPPED)
def test_no_shipped_recipe_has_a_suspicious_setting(recipe: str) -> None:
    assert suspicious(load_recipe(recipe)) == []


def test_every_key_has_a_meaning() -> None:
    assert [key.name for key in all_keys() if not key.meaning] == []


def test_names_of_other_trainers_map_to_existing_keys() -> None:
    assert set(OTHER_NAMES.values()) <= set(dotted_keys())


@pytest.mark.parametrize(
    "setting",
    [
        "optim.betas=[true, 0.9]",
        "data.curriculum.chunks=[true, 2]",
        "train.max_off_policy_steps=true",
    ],
)
def test_true_is_not_a_number_in_a_list(setting: str) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{key}=.*must be (a number|numbers), not true or false"):
        load_recipe("memagent-quickstart", [setting])


def test_the_first_of_many_unknown_keys_are_listed_and_the_rest_counted() -> None:
    message = rejected(text="train:\n" + "".join(f"  k{number}: 1\n" for number in range(20_000)))
    assert message.count("unknown key") == 5
    assert "unknown key train.k4;" in message
    assert message.endswith("; and 19995 more")


def test_a_recipe_that_is_neither_shipped_nor_a_file_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean memagent-7b"):
        load_recipe("memagent-8b")


def test_a_recipe_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 7\n")
    config = load_recipe(str(path))
    assert (config.recipe, config.seed) == ("mine", 7)


def test_keys_include_those_of_optional_sections() -> None:
    keys = set(dotted_keys())
    assert {"train.max_steps", "credit.overlong.buffer", "data.curriculum.advance_at"} <= keys
    assert all(section_of(key) is None for key in ("train.max_steps", "policy.options.chunk_size", "nope"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("policy: {name: prune, options: {tools: {search: {source: 'http://h:1', token: hush}}}}", "search.token"),
        ("policy: {name: 'mine:P', options: {service: {api_key: hush}}}", "service.api_key"),
        ("policy: {name: 'mine:P', options: {openai_api_key: hush}}", "openai_api_key"),
        ("policy: {name: 'mine:P', options: {servers: ['http://me:hush@h:1/']}}", "policy.options.servers"),
        ("policy: {name: prune, options: {tools: {search: {source: 'http://me:hush@h:1'}}}}", "search.source"),
        ("reward: {judge: {url: 'http://me:hush@h:1/v1', model: m}}", "reward.judge.url"),
    ],
)
def test_a_secret_in_a_configuration_is_rejected_and_not_shown(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(text)
    assert key in str(error.value)
    assert "hush" not in str(error.value)
    assert "\n" not in str(error.value)


def test_the_name_of_a_variable_is_no_secret() -> None:
    parse_config("policy: {name: prune, options: {tools: {search: {source: 'http://h:1', token_env: SEARCH_TOKEN}}}}")
    parse_config("credit: {agg_mode: token}")
