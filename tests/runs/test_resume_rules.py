"""Configuration changes of a resume: allowed, warned of, or rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import RunConfig
from palimpsest.errors import RunError
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.resume_rules import changes, identity
from palimpsest.runs.run_folder import RunFolder, load_config, open_run
from support.fakes import small_config

CONFIG = small_config()


def changed(**sections: Any) -> RunConfig:
    """CONFIG with some fields replaced, e.g. changed(train={"max_steps": 9})."""
    values = CONFIG.model_dump(mode="json")
    for name, value in sections.items():
        values[name] = {**(values[name] or {}), **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(values)


def quiet(path: Path, config: RunConfig = CONFIG, **options: Any) -> RunFolder:
    return open_run(path, config, on_warning=lambda _: None, **options)


ALLOWED = [
    {"recipe": "renamed"},
    {"logging": {"report_to": ["console"]}},
    *({"train": {name: number}} for name, number in (("max_steps", 9), ("save_steps", 1), ("save_total_limit", 5))),
    *({"train": {name: number}} for name, number in (("eval_steps", 3), ("record_steps", 2))),
    {"evaluation": {"processes": 8}},
]
WARNED = [
    {"engine": {"max_num_seqs": 8}},
    {"model": {"device": "cpu"}},
    {"train": {"episode_timeout_s": 5.0}},
    {"optim": {"learning_rate": 1e-3}},
    {"eval_sampling": {"temperature": 0.5}},
]
SERVERS = {"url": "http://a:1"}, {"url": "http://b:2"}


def test_a_resume_may_name_other_addresses_of_roles_and_environments() -> None:
    reader, other = (changed(roles={"reader": server}) for server in SERVERS)
    assert [(each.key, each.verdict) for each in changes(reader, other)] == [("roles.reader.url", "warned")]
    assert identity(reader) == identity(other) != identity(changed(roles={"reader": {"model": "m"}}))
    games, moved = (changed(environment={"name": "openenv", "options": server}) for server in SERVERS)
    assert [each.verdict for each in changes(games, moved)] == ["warned"]


REFUSED = [
    {"seed": 1},
    {"model": {"path": "other"}},
    {"model": {"dtype": "bfloat16"}},
    {"policy": {"options": {"chunk_size": 3}}},
    {"data": {"curriculum": {"chunks": [1, 2]}}},
    {"credit": {"adv_estimator": "mean_std"}},
    {"loss": {"clip_ratio_high": 0.3}},
    {"sampling": {"top_p": 0.9}},
    {"train": {"group_size": 8}},
]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (change, name)
        for name, all in (("allowed", ALLOWED), ("warned", WARNED), ("refused", REFUSED))
        for change in all
    ],
    ids=str,
)
def test_a_resume_with_one_field_changed_does_what_the_table_says(tmp_path: Path, change: Any, verdict: str) -> None:
    warnings: list[str] = []
    path = tmp_path / "run"
    quiet(path).close()
    config = changed(**change)
    if verdict == "refused":
        key = changes(CONFIG, config)[0].key
        with pytest.raises(RunError, match=f"can't change {key}: .* -> "):
            open_run(path, config, resume=True)
        assert load_config(path) == CONFIG
        assert identity(config) != identity(CONFIG)
        return
    with open_run(path, config, resume=True, on_warning=warnings.append):
        assert warnings[0].startswith(f"resumed with another {changes(CONFIG, config)[0]}")
        assert ("later steps differ" in warnings[0]) == (verdict == "warned")
    assert load_config(path) == config
    assert read_rows(path / "events.jsonl")[1]["changes"][0]["verdict"] == verdict
    assert identity(config) == identity(CONFIG)


def searching(source: str, **options: Any) -> RunConfig:
    return changed(policy={"name": "prune", "options": {"tools": {"search": {"source": source, **options}}}})


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (searching("http://a:1"), searching("https://b:2"), "warned"),
        (searching("http://a:1"), searching("http://a:1", token_env="OTHER"), "warned"),
        (searching("http://a:1"), searching("http://a:1", timeout_s=3.0), "warned"),
        (searching("http://a:1"), searching("http://a:1", topk=3), "refused"),
        (searching("http://a:1"), searching("problem"), "refused"),
        (searching("indexes/a"), searching("indexes/b"), "refused"),
        (
            changed(optim={"lr_scheduler_type": "cosine"}),
            changed(optim={"lr_scheduler_type": "cosine"}, train={"max_steps": 99}),
            "warned",
        ),
    ],
)
def test_the_verdict_of_a_search_server_and_of_steps_under_a_schedule_that_ends(
    before: RunConfig, after: RunConfig, verdict: str
) -> None:
    assert [change.verdict for change in changes(before, after)] == [verdict]
    assert (identity(before) == identity(after)) == (verdict != "refused")


def test_a_resume_to_fewer_steps_than_were_done_is_rejected_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    quiet(path, changed(train={"max_steps": 30})).close()
    (path / "checkpoints" / "step-000030").mkdir(parents=True)
    (path / "checkpoints" / "step-000030" / "manifest.json").write_text('{"sha256"}')
    (path / "checkpoints" / "step-99999999999999999999").mkdir()  # no checkpoint: it has no manifest
    before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    refusal = r"train\.max_steps=12: .*run already has 30 steps; .* such as train\.max_steps=60"
    with pytest.raises(RunError, match=refusal):
        quiet(path, changed(train={"max_steps": 12}), resume=True)
    assert {file: file.read_bytes() for file in path.iterdir() if file.is_file()} == before
    quiet(path, changed(train={"max_steps": 60}), resume=True).close()
