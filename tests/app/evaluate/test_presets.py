"""Published protocols by name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import palimpsest as library
from palimpsest.app.evaluate.evaluation_plan import Agents, choose
from palimpsest.cli.main import app
from palimpsest.config.presets import load_preset, preset_names
from palimpsest.errors import ConfigError
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.memory.registry import policy_class
from palimpsest.plugin_options import options_of
from support.command import Run
from support.endpoint_server import endpoint_server

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8, "prompts": "short"}


def eval_file(folder: Path, documents: int, problems: int = 2) -> Path:
    """As MemAgent's eval_{N}.json."""
    folder.mkdir(exist_ok=True)
    rows = [
        {"index": n, "input": f"Who ran {n}?", "answers": ["Ann"], "context": "Ann ran. " * 9, "num_docs": documents}
        for n in range(problems)
    ]
    path = folder / f"eval_{documents}.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_whole(name: str, tmp_path: Path) -> None:
    """Its policy has the options, its settings are a configuration, its commands exist, it says what differs."""
    preset = load_preset(name)
    assert preset.differences
    assert re.search(r"arXiv \d{4}\.\d{5}", preset.source.paper)
    known = options_of(policy_class(preset.policy))
    assert set(preset.options) <= set(known)
    for each in preset.sets:
        for names, make in each.each():
            assert not re.search(r"[{}]", "".join(names)), names
            for command in re.findall(r"palimpsest (data \w+)", make):
                app([*shlex.split(command), "--help"], standalone_mode=False)
    (names, _) = next(preset.sets[0].each())
    (tmp_path / names[0]).write_text("[]")
    needed = [f"{key}=http://127.0.0.1:1/v1" for key in preset.needs]
    sweep = Agents.of("embedded", None, None, needed, 0, choose(name, [str(tmp_path)])).sweep()
    assert sweep.config.policy.name == preset.policy
    assert sweep.config.data.source == str(tmp_path / names[0])


def test_the_command_plays_what_is_there_names_what_is_not_and_continues(
    palimpsest: Run, tiny_model_folder: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "data", tmp_path / "out"
    eval_file(folder, 50), eval_file(folder, 100)
    words = ("--preset", "ruler-hqa", "--model", str(tiny_model_folder), "--data", str(folder), "--policy", "overwrite")
    done = palimpsest("eval", *words, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert (
        f"{folder} lacks eval_200.json, eval_400.json, eval_800.json, eval_1600.json, eval_3200.json, eval_6400.json, "
        "left out; palimpsest data download memagent-eval-N for each N, or palimpsest data build --source "
        "hotpot_dev.json --documents 200,400,800,1600,3200,6400 --split eval=128 --out NEW" in done.stderr
    )
    assert "not as the preset says: overwrite.chunk_size=" in done.stderr  # in a window of 512 tokens
    assert "eval_50" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert [row["name"] for row in summary["evaluations"]] == ["eval_50", "eval_100"]
    assert summary["preset"]["name"] == "ruler-hqa"
    assert "eval_200.json" in summary["preset"]["missing"]
    samples, _ = read_samples(out / "samples.jsonl")
    eval_file(folder, 200)
    again = palimpsest("eval", *words, "--out", str(out))
    assert again.returncode == 0, again.stderr
    assert read_samples(out / "samples.jsonl")[0][: len(samples)] == samples
    assert {sample.name for sample in read_samples(out / "samples.jsonl")[0] if not sample.baseline} == {
        "eval_50", "eval_100", "eval_200",
    }  # fmt: skip


def test_a_preset_on_an_endpoint_goes_on_where_it_was(palimpsest: Run, tiny_model_folder: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "data", tmp_path / "out"
    eval_file(folder, 50)
    budgets = [word for name, value in BUDGETS.items() for word in ("--set", f"{name}={value}")]
    with endpoint_server() as server:
        words = ("--preset", "ruler-hqa", "--base-url", server.url, "--model", "served", "--data", str(folder))
        asked = ("eval", *words, "--tokenizer", str(tiny_model_folder), "--policy", "overwrite", *budgets)
        first = palimpsest(*asked, "--limit", "1", "--out", str(out))
        assert first.returncode == 0, first.stderr
        again = palimpsest(*asked, "--out", str(out))
        assert again.returncode == 0, again.stderr
    assert "baseline: eval_50, closed book" in again.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert summary["model_endpoint"]["url"] == server.url
    assert (summary["evaluations"][0]["problems"], summary["preset"]["name"]) == (2, "ruler-hqa")
    sampled = [body for body in server.asked if body["temperature"]]  # the others found the mode out
    assert {(body["temperature"], body["top_p"]) for body in sampled} == {(0.7, 0.95)}
    assert len(sampled) >= sum(row["turns_per_document"] for row in summary["evaluations"]) * 2


def test_what_the_user_says_goes_before_the_preset_and_is_told(tiny_model_folder: Path, tmp_path: Path) -> None:
    eval_file(tmp_path / "data", 50)
    changes: dict[str, Any] = {**BUDGETS, "eval_sampling.temperature": 0.0}
    evaluation = library.evaluate(
        tiny_model_folder, tmp_path / "data", preset="ruler-hqa", overrides=changes, limit=1, quiet=True
    )
    assert evaluation.config.reward.name == "sub_em"
    assert evaluation.config.eval_sampling.model_dump() == {"temperature": 0.0, "top_p": 0.95}
    assert evaluation.preset is not None
    assert evaluation.preset["changed"] == [
        "overwrite.chunk_size=64 in place of 5000",
        "overwrite.memory_tokens=8 in place of 1024",
        "overwrite.answer_tokens=8 in place of 1024",
        "eval_sampling.temperature=0.0 in place of 0.7",
        "limit=1",
        "eval_50: 1 problems in place of 128",
    ]


def test_sets_stand_from_few_to_many_documents_and_baselines_after_the_agent(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    """Not by tokens: the set of fewer documents has the longer ones here."""
    many, few = eval_file(tmp_path, 100, 1), eval_file(tmp_path, 50, 1)
    few.write_text(few.read_text().replace("Ann ran. ", "Ann ran far away. "))
    done = library.evaluate(tiny_model_folder, [str(many), str(few)], overrides=BUDGETS, quiet=True)
    names = [row[""] for row in done.table]
    assert names[:2] == ["eval_50", "eval_100"]
    assert [name for name in names if "closed" in name] == ["eval_50, closed book", "eval_100, closed book"]


def test_presets_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    app(["eval", "--presets"], standalone_mode=False)
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == preset_names()
    app(["eval", "--preset", "ruler-hqa", "--show"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "arXiv 2507.02259" in shown
    assert f"- {load_preset('ruler-hqa').differences[0]}" in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("ruler-hqq", ["."]), "no such preset; did you mean ruler-hqa"),
        (("ruler-hqa", None), "give the folder of its files as --data DIR, not nothing"),
        (("ruler-hqa", ["a", "b"]), "not a, b"),
        (("babilong", ["EMPTY"]), r"EMPTY holds none of its files, such as qa1_4k\.json; palimpsest data download"),
    ],
)
def test_what_a_preset_cannot_be_played_on_is_refused(
    given: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    with pytest.raises(ConfigError, match=message):
        choose(*given)


def test_a_judged_preset_asks_for_its_judge(tmp_path: Path) -> None:
    (tmp_path / "locomo10.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"--preset locomo needs the address of a judge.*--set reward\.judge\.url"):
        Agents.of("embedded", None, None, (), 0, choose("locomo", [str(tmp_path)]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("optoins: {}", "optoins"),
        ("settings: {temperature: 1}", "settings.temperature: is no dotted key"),
        ("sets: [{files: ['eval_{length}.json'], make: x}]", "the name of a file, with {task} and {size} alone"),
    ],
)
def test_a_preset_of_ones_own_is_validated(line: str, message: str, tmp_path: Path) -> None:
    text = "about: x\nsource: {paper: y}\npolicy: overwrite\ndifferences: [z]\n"
    sets = "" if line.startswith("sets") else "sets: [{files: [a.json], make: x}]\n"
    (tmp_path / "mine.yaml").write_text(text + sets)
    if sets:
        assert load_preset(str(tmp_path / "mine.yaml")).about == "x"
    (tmp_path / "mine.yaml").write_text(text + sets + line + "\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_preset(str(tmp_path / "mine.yaml"))


def test_a_preset_plays_the_published_questions(real_data: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    """A set that our own build makes of them."""
    from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
    from palimpsest.app.datasets.question_splits import read_splits

    splits = read_splits("eval=4")
    build_contexts([real_data / "hotpotqa_dev_50.json"], Contexts((50,), splits=splits), out=tmp_path / "set")
    options: Any = {
        "preset": "ruler-hqa",
        "limit": 2,
        "baselines": False,
        "quiet": True,
        "overrides": {"chunk_size": 200},
    }
    evaluation = library.evaluate(tiny_model_folder, tmp_path / "set", **options)
    assert [(summary.name, summary.problems) for summary in evaluation.summaries] == [("eval_50", 2)]
    assert all(sample.turns > 10 for sample in evaluation)
