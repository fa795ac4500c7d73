"""Leagues of published agents: imported prompts, protocols' files, weights in a folder and at an endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from palimpsest import league
from palimpsest.app.league.league_run import method_config
from palimpsest.config.league import LeagueConfig
from palimpsest.errors import ConfigError
from palimpsest.evaluation.sample_log import read_samples
from support.endpoint_server import Server, endpoint_server

PROMPTS = {
    "read": "Problem: {question}\nMemory: {memory}\nSection: {section}\nNew memory:",
    "answer": "Problem: {question}\nMemory: {memory}\nAnswer in \\boxed{}:",
}
MERGE = {"merge": "Problem: {question}\nMemory: {memory}\nNotes:\n{replies}\nNew memory:"}
SMALL = {"question_tokens": 60, "chunk_size": 60, "memory_tokens": 20, "answer_tokens": 20}
PROTOCOLS = {"eval/ruler-hqa": "hqa", "eval/2wiki-long": "2wiki", "eval/distant-evidence": "distant"}
FILES = {
    "hqa/eval_50.json": 1,
    "hqa/eval_100.json": 3,
    "2wiki/eval_50.jsonl": 1,
    "distant/eval_hotpotqa_6400_min_distance_100.json": 2,
    "distant/eval_2wikimultihopqa_6400_min_distance_100.json": 2,
}


def rows(count: int) -> list[dict[str, Any]]:
    text = "The color of Anna is blue. The pet of Boris is a cat. " * count
    return [{"context": text, "input": f"what is the color of {name}?", "answers": ["blue"], "index": index}
            for index, name in enumerate(("Anna", "Boris"))]  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> LeagueConfig:
    monkeypatch.chdir(tmp_path)
    for name, count in FILES.items():
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(rows(count)) if path.suffix == ".json" else "\n".join(map(json.dumps, rows(count))))
    Path("own.yaml").write_text(yaml.safe_dump(PROMPTS))
    Path("merged.yaml").write_text(yaml.safe_dump(PROMPTS | MERGE))
    served = {"train": False, "tokenizer": str(tiny_model_folder), "model": "served"}
    methods = {
        "weights": {"policy": "overwrite", "model": str(tiny_model_folder), "train": False,
                    "options": {**SMALL, "prompts": "own.yaml"}},
        "served": {"policy": "parallel", **served, "options": {**SMALL, "prompts": "merged.yaml", "merge_tokens": 100}},
    }  # fmt: skip
    return LeagueConfig.model_validate(
        {
            "league": "mine",
            "metric": "reward",
            "protocols": PROTOCOLS,
            "held_out": ["eval/distant-evidence"],
            "seeds": [0],
            "problems": 2,
            "overrides": {"policy.options.layout": "memory_first", "model.dtype": "float32"},
            "methods": methods,
        }
    )


def served_at(config: LeagueConfig, url: str) -> LeagueConfig:
    values = config.model_dump()
    for method in values["methods"].values():
        method["base_url"] = url if method["model"] == "served" else None
    return LeagueConfig.model_validate(values)


def test_published_agents_play_the_protocols_files_in_one_table(config: LeagueConfig) -> None:
    with endpoint_server(Server(takes="chat")) as server:
        made = league(served_at(config, server.url), out="out", quiet=True)
    assert not made.failed
    table = json.loads(Path("out/league.json").read_text())
    assert table["families"] == ["ruler-hqa", "2wiki-long"]
    assert table["held_out"] == ["distant-evidence hotpotqa_6400", "distant-evidence 2wikimultihopqa_6400"]
    assert [row["name"] for row in table["rows"]] == ["weights", "served"]
    for row in table["rows"]:
        cells = {(cell["family"], cell["size"]): cell for cell in row["cells"]}
        assert list(cells) == [("ruler-hqa", 50), ("ruler-hqa", 100), ("2wiki-long", 50),
                               *((name, 100) for name in table["held_out"])]  # fmt: skip
        assert all(cell["n"] == 2 for cell in cells.values())
        assert [Path(name).name for name in row["evaluations"]] == ["ruler-hqa", "2wiki-long", "distant-evidence"]
        samples, _ = read_samples(Path("out") / row["evaluations"][0] / "samples.jsonl")
        ones = [one.value for one in samples if one.set == "eval_50"]
        assert cells["ruler-hqa", 50]["accuracy"] == pytest.approx(fmean(value for value in ones if value is not None))
        mean = {one["size"]: one["accuracy"] for one in row["mean"]}
        assert mean[50] == pytest.approx((cells["ruler-hqa", 50]["accuracy"] + cells["2wiki-long", 50]["accuracy"]) / 2)
        assert mean[100] == cells["ruler-hqa", 100]["accuracy"], "the distances of held-out files are no lengths"
    assert {body["model"] for body in server.asked} == {"served"}


def test_a_file_that_appears_is_played_by_the_same_call(config: LeagueConfig) -> None:
    values = config.model_dump() | {"protocols": {"eval/ruler-hqa": "hqa"}, "held_out": []}
    values["methods"] = {"weights": values["methods"]["weights"]}
    Path("hqa/eval_100.json").rename("later.json")
    for count in (1, 2):
        made = league(LeagueConfig.model_validate(values), out="out", quiet=True)
        assert not made.failed
        assert [row["n"] for row in made.to_json()["rows"][0]["cells"]] == [2] * count
        assert (made.fall(made.rows[0]) is None) == (count == 1)
        if count == 1:
            Path("later.json").rename("hqa/eval_100.json")
    values["methods"]["weights"]["options"]["memory_tokens"] = 16
    made = league(LeagueConfig.model_validate(values), out="out", quiet=True)
    assert not made.failed
    assert made.to_json()["rows"][0]["memory_tokens"] == 16
    assert Path("out/evals/weights-untrained-0/ruler-hqa.old-1").is_dir()


@pytest.mark.parametrize(
    ("method", "policy"),
    [
        ({"recipe": "parallel-quickstart"}, "parallel"),
        ({}, "overwrite"),
        ({"recipe": "rememr1-7b", "train": False}, "recall"),
        ({"train": False, "policy": "passages"}, "passages"),
    ],
)
def test_a_protocol_is_played_by_the_agent_of_the_methods_recipe(method: dict[str, Any], policy: str) -> None:
    made = LeagueConfig.model_validate({"protocols": {"eval/ruler-hqa": "hqa"}, "methods": {"mine": method}})
    own, played = (method_config(made, made.methods["mine"], 0, name) for name in (None, "eval/ruler-hqa"))
    assert (played.policy.name, played.recipe) == (policy, "ruler-hqa")
    if "recipe" in method or not method:
        assert (played.policy, played.model) == (own.policy, own.model)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"protocols": {"eval/ruler-hqa": "nowhere"}}, "protocols.eval/ruler-hqa"),
        ({"protocols": {"memagent-quickstart": "hqa"}}, "protocols.memagent-quickstart"),
    ],
)
def test_protocols_without_files_are_refused_before_anything_is_written(
    changes: dict[str, Any], key: str, config: LeagueConfig
) -> None:
    with pytest.raises(ConfigError, match=key):
        league(LeagueConfig.model_validate(config.model_dump() | changes | {"held_out": []}), out="out", quiet=True)
    assert not Path("out").exists()
