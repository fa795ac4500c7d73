"""League files: what they inherit, what they refuse, and the configuration of each method."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from palimpsest.app.league.league_run import method_config
from palimpsest.config.league import LeagueConfig, load_league
from palimpsest.config.load import dump_config, shipped
from palimpsest.config.section import leaves
from palimpsest.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["small", "laptop"])
def test_shipped_leagues_are_complete_and_stay_the_same_when_dumped(name: str, tmp_path: Path) -> None:
    league = load_league(name)
    for method in league.methods.values():
        for seed in league.seeds:
            config = method_config(league, method, seed)
            assert config.seed == seed
            assert config.data.synthetic.evaluated == league.sets
            assert config.train.max_tokens == dict(leaves(league.overrides))["train.max_tokens"]
            assert config.policy.options.get("memory_tokens") in (None, 24)
    assert load_league(written(tmp_path, dump_config(league))) == league


def test_the_published_league_has_its_agents_with_their_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(shipped("leagues")) == {"small", "laptop", "published"}
    monkeypatch.chdir(tmp_path)
    league = load_league("published")
    with pytest.raises(ConfigError, match=r"prompts/memagent\.yaml: no such file"):
        method_config(league, league.methods["memagent-7b"], 0)
    texts = {"read": "{question} {memory} {section}", "answer": "{question} {memory}"}
    recalled = {name: f"{{recalled}} {text}" for name, text in texts.items()}
    merge = {"merge": "{question} {memory} {replies}"}
    Path("prompts").mkdir()
    for name, each in {"memagent": texts, "rememr1": recalled, "pi-mem": texts | merge}.items():
        Path(f"prompts/{name}.yaml").write_text(yaml.safe_dump(each))
    for method in league.methods.values():
        config = method_config(league, method, 0, "eval/ruler-hqa")
        assert config.model.path == method.model
        assert config.eval_sampling.temperature == 0.7
        assert config.reward.name == "sub_em_either"
        assert config.policy.options.get("chunk_size", 5000) == 5000
        assert config.evaluation.files


def test_a_file_adds_a_method_removes_another_and_changes_a_key_of_all(tmp_path: Path) -> None:
    text = """
extends: small
overrides: {train.max_steps: 3}
methods: {closed_book: null, lead: {train: false}, mine: {policy: overwrite, options: {memory_tokens: 12}}}
"""
    league = load_league(written(tmp_path, text), ["problems=4", "optim.learning_rate=1e-4"])
    small = load_league("small")
    assert set(league.methods) == {*small.methods, "mine"} - {"closed_book"}
    assert (league.problems, league.league) == (4, "mine")
    assert league.methods["lead"] == small.methods["lead"].model_copy(update={"train": False})
    assert (small.methods["whole_window"].policy, small.methods["whole_window"].train) == ("full_context", False)
    config = method_config(league, league.methods["mine"], 0)
    assert (config.train.max_steps, config.optim.learning_rate) == (3, 1e-4)
    assert config.policy.options["memory_tokens"] == 12
    assert config.policy.options["chunk_size"] == 36, "of the recipe"


def test_a_policy_gets_the_options_it_has_and_the_families_it_can_learn() -> None:
    league = load_league("laptop")
    whole = method_config(league, league.methods["whole_window"], 0)
    assert "memory_tokens" not in whole.policy.options
    assert whole.policy.options["answer_tokens"] == dict(leaves(league.overrides))["policy.options.answer_tokens"]
    assert whole.data.synthetic.starts is None, "it takes no memory"
    assert method_config(league, league.methods["overwrite"], 0).data.synthetic.starts is not None
    assert "several" not in method_config(league, league.methods["lead"], 0).data.synthetic.task
    assert "several" in whole.data.synthetic.task


def test_a_method_with_another_policy_keeps_no_options(tmp_path: Path) -> None:
    league = load_league(written(tmp_path, "extends: laptop\nmethods: {retrieval: {policy: overwrite, train: false}}"))
    assert (league.methods["retrieval"].options, league.methods["parallel"].options) == ({}, {"merge_tokens": 96})


def test_an_entry_of_an_inherited_method_changes_the_keys_that_it_names(tmp_path: Path) -> None:
    own = "{parallel: {options: {memory_tokens: 20}}, lead: {overrides: {train.batch_size: 8}}}"
    league = load_league(written(tmp_path, f"extends: laptop\nmethods: {own}"))
    assert league.methods["parallel"].options == {"merge_tokens": 96, "memory_tokens": 20}
    assert dict(leaves(league.methods["lead"].overrides)) == {"cold_start": None, "train.batch_size": 8}


def test_a_methods_model_comes_after_the_leagues_and_its_documents_before_a_recipes_files() -> None:
    names = {"one": {}, "two": {"model": "embedded-lead"}, "real": {"recipe": "memagent-smollm2"}}
    league = LeagueConfig.model_validate({"overrides": {"model.path": "embedded"}, "methods": names})
    configs = {name: method_config(league, method, 0) for name, method in league.methods.items()}
    assert {name: config.model.path for name, config in configs.items()} == {
        "one": "embedded", "two": "embedded-lead", "real": "embedded",
    }  # fmt: skip
    assert configs["real"].data.val_files is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("methods: {}", "methods"),
        ("seeds: [0]", "methods"),
        ("methods: {../x: {}}", "../x"),
        ("methods: {a-untrained: {}}", "a-untrained"),
        ("methods: {a: {polcy: overwrite}}", "methods.a.polcy: no such key; did you mean policy?"),
        ("methods: {a: {}}\nreference: b", "reference=b"),
        ("methods: {a: {}}\nseeds: [0, 0]", "seeds=[0, 0]"),
        ("methods: {a: {}}\nheld_out: [needle]", "held_out=needle"),
        ("methods: {a: {}}\ndocuments: [50]", "documents=[50]"),
        ("methods: {a: {}}\ndata: []", "data=[]"),
        ("methods: {a: {}}\noverrides: {policy.name: recall}", "policy.name"),
        (f"methods: {{{'a' * 101}: {{}}}}", "up to 100"),
        ("methods: {a: {base_url: http://127.0.0.1:1/v1}}", "base_url"),
        ("methods: {a: {overrides: {engine.api_key: x}}}", "engine.api_key"),
        ("extends: nothing.yaml", "nothing.yaml"),
        ("- a", "expected keys"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_its_key(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_league(written(tmp_path, text))
    assert named in str(refused.value)


def test_a_file_that_extends_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="extend each other"):
        load_league(written(tmp_path, "extends: mine.yaml"))


def test_null_removes_a_method_but_is_a_value_among_the_overrides(tmp_path: Path) -> None:
    league = load_league(
        written(tmp_path, "extends: laptop\noverrides: {data.curriculum: null}"), ["methods.lead=null"]
    )
    assert "lead" not in league.methods
    config = method_config(league, league.methods["overwrite"], 0)
    assert (config.data.curriculum, config.credit.overlong) == (None, None)
