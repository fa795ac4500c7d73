"""Episodes by step and place, the tokenizer that decodes them, and records of other formats and types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from palimpsest.app.viewer_job import export
from palimpsest.errors import DataError
from palimpsest.rollout.trajectory_file import encode_groups, group_lines
from palimpsest.text.codec import Codec
from palimpsest.types import Group, Prompt
from palimpsest.viewer.records.sources import Library, NotThere
from palimpsest.viewer.screens import group_screen
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample


def answers(path: Path, **options: Any) -> ViewerApi:
    return ViewerApi(Library([path]), **options)


def reading_group(codec: Codec) -> Group:
    """A problem whose one memory contains the evidence and an invented sentence."""
    made = group("p", (1.0,))
    section, memory = codec.encode("gold is here."), codec.encode("gold is here. Eve sings.")
    prompt = Prompt.joined([Prompt.named("memory", []), Prompt.named("section", section)])
    trajectory = made.trajectories[0]
    first, last = trajectory.turns
    completion = replace(first.completion, token_ids=tuple(memory), logprobs=(0.0,) * len(memory))
    read = replace(first, prompt_ids=tuple(prompt), spans=dict(prompt.spans), completion=completion)
    prompt_of_answer = Prompt.named("memory", memory)
    answer = replace(last, prompt_ids=tuple(prompt_of_answer), spans=dict(prompt_of_answer.spans))
    return replace(made, trajectories=(replace(trajectory, turns=(read, answer)),))


@pytest.fixture
def run(tmp_path: Path, tiny_codec: Codec) -> Path:
    return run_folder(tmp_path / "first", records={1: [reading_group(tiny_codec), group("q")]})


STEP = "/api/runs/first/steps/1"
EPISODE = f"{STEP}/groups/0/rollouts/0"


def test_steps_are_those_with_a_record(tmp_path: Path) -> None:
    api = answers(run_folder(tmp_path / "first", records={2: [group("a")], 10: [group("b")]}))
    assert api.get("/api/runs/first/steps") == [2, 10]
    assert [row["id"] for row in api.get("/api/runs/first/steps/10/episodes")["rows"]] == ["b", "b"]
    for step in ("3", "all", "..", "x", "²", "-1", "9" * 20):
        with pytest.raises(NotThere, match="record_steps"):
            api.get(f"/api/runs/first/steps/{step}/episodes")


def test_a_single_file_is_a_source_whose_step_is_all(run: Path) -> None:
    api = answers(run / "trajectories" / "step-000001.jsonl.zst")
    assert api.get("/api/runs/step-000001.jsonl.zst/steps") == ["all"]
    assert len(api.get("/api/runs/step-000001.jsonl.zst/steps/all/episodes")["rows"]) == 3


def test_a_runs_newest_checkpoint_decodes_its_episodes(run: Path, tiny_codec: Codec) -> None:
    api = answers(run)
    assert api.get(f"{STEP}/measures", {"groups": "0"}) == {}
    assert "--tokenizer" in api.get(f"{STEP}/decoder")["why"]
    assert api.get(EPISODE)["outcome"] == "answered"
    ids = tiny_codec.encode("Eve sings.")
    assert " ".join(map(str, ids[-2:])) in str(api.get(f"{EPISODE}/turns/0"))
    for name in ("step-000001", "step-000002"):
        tiny_codec.save(run / "checkpoints" / name)
    api = answers(run)
    assert api.get(f"{STEP}/decoder")["why"] is None
    measured = api.get(f"{STEP}/measures", {"groups": "0"})["0/0"]
    assert (measured["retention"], measured["invention"]) == (1.0, 0.5)


def test_a_users_tokenizer_decodes_a_single_file(tmp_path: Path, run: Path, tiny_codec: Codec) -> None:
    path = (run / "trajectories" / "step-000001.jsonl.zst").rename(tmp_path / "alone.jsonl.zst")
    (tmp_path / "tokenizer").mkdir()
    tiny_codec.save(tmp_path / "tokenizer")
    api = answers(path, tokenizer=str(tmp_path / "tokenizer"))
    assert api.get("/api/runs/alone.jsonl.zst/steps/all/measures", {"groups": "0"})["0/0"]["retention"] == 1.0
    assert "does not name its model" in answers(path).get("/api/runs/alone.jsonl.zst/steps/all/decoder")["why"]


def test_a_model_of_the_hub_outside_the_local_cache_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("network"))
    run = run_folder(tmp_path / "first", records={1: [group("a")]}, config="model:\n  path: nobody/no-such-model\n")
    why = answers(run).get(f"{STEP}/decoder")["why"]
    assert "nobody/no-such-model is neither a folder here nor in the local cache" in why


def test_groups_episodes_turns_and_tokens_are_read_by_position(run: Path, tiny_codec: Codec) -> None:
    tiny_codec.save(run / "checkpoints" / "step-000001")
    api = answers(run)
    assert api.get(f"{STEP}/groups/1")["problem"]["id"] == "q"
    episode = api.get(EPISODE)
    assert (episode["answer"], len(episode["turns"])) == ("answer 0", 2)
    assert "Eve sings." in str(api.get(f"{EPISODE}/turns/0"))
    assert api.get(f"{EPISODE}/turns/1/tokens")
    positions = (f"{STEP}/groups/2", f"{STEP}/groups/0/rollouts/1", f"{EPISODE}/turns/2", f"{EPISODE}/turns/2/tokens")
    for path in (*positions, f"{EPISODE}/turns/-1", f"{EPISODE}/turns/{'9' * 40}"):
        with pytest.raises(NotThere):
            api.get(path)


@pytest.mark.parametrize("model", ["x" * 10_000, "a\0b", ""])
def test_a_model_whose_name_no_file_can_have_shows_ids(model: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", records={1: [GOOD]})
    (run / "config.yaml").write_bytes(orjson.dumps({"model": {"path": model}}))
    folder = evaluation_folder(tmp_path / "ev", [sample("set", "a", 1.0)])
    (folder / "episodes.jsonl.zst").write_bytes(encode_groups([GOOD]))
    (folder / "summary.json").write_bytes(orjson.dumps({"model": model}))
    api = answers(tmp_path)
    for at in ("run/steps/1", "ev/steps/all"):
        assert api.get(f"/api/runs/{at}/groups/0/rollouts/0")
        why = api.get(f"/api/runs/{at}/decoder")["why"]
        assert why.startswith("Token ids are shown instead of text")
        assert len(why) < 400


GOOD = group("good", (1.0,))
LINE = orjson.loads(group_lines(group("odd", (1.0,))))
SOME_EVENT = {"kind": "memory_cut", "before_turn": 0, "detail": {"tokens": 40, "kept": 32}}
ODD: dict[str, Any] = {
    "evidence null": lambda line: line["problem"].update(metadata={"evidence": None}),
    "evidence of numbers": lambda line: line["problem"].update(metadata={"evidence": [7]}),
    "answers of numbers": lambda line: line["problem"].update(answers=[7]),
    "answers a number": lambda line: line["problem"].update(answers=7),
    "metadata a number": lambda line: line["problem"].update(metadata=7),
    "answer a number": lambda line: line.update(answer=7),
    "grade a text": lambda line: line["grade"].update(value="good"),
    "grade an object": lambda line: line["grade"].update(value={"a": 1}),
    "spans no object": lambda line: line["turns"][0].update(spans=[1]),
    "spans a text": lambda line: line["turns"][0].update(spans="x"),
    "notes no object": lambda line: line["turns"][0].update(notes=[1]),
    "before_turn a text": lambda line: line.update(events=[{**SOME_EVENT, "before_turn": "0"}]),
    "defiles of other types": lambda line: line.update(events=[{**SOME_EVENT, "detail": {"tokens": "x", "kept": 1}}]),
    "ids of an event too large": lambda line: line.update(
        events=[{**SOME_EVENT, "kind": "memory", "detail": {"token_ids": [1 << 63], "text": "x", "changed": True}}]
    ),
    "defiles no object": lambda line: line.update(events=[{**SOME_EVENT, "kind": "own", "detail": 7}]),
    "ids of texts": lambda line: line["turns"][0].update(prompt_ids=["a"]),
    "ids a number": lambda line: line["turns"][0].update(prompt_ids=7),
    "ids too large": lambda line: line["turns"][0].update(prompt_ids=[1 << 63]),
    "ids negative": lambda line: line["turns"][0].update(prompt_ids=[-1]),
    "ids of fractions": lambda line: line["turns"][0].update(prompt_ids=[0.5]),
    "grade too large": lambda line: line["grade"].update(value=1e308),
    "log-probabilities too large": lambda line: line["turns"][0].update(logprobs=[-1e308, -1e308]),
    "log-probabilities of texts": lambda line: line["turns"][0].update(logprobs=["a", "b"]),
    "turns of numbers": lambda line: line.update(turns=[7]),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_group_of_other_types_is_an_error_of_one_line_and_the_rest_is_shown(odd: str, tmp_path: Path) -> None:
    line = orjson.loads(orjson.dumps(LINE))
    ODD[odd](line)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(
        zstandard.compress(orjson.dumps(line, option=orjson.OPT_SORT_KEYS) + b"\n") + encode_groups([GOOD])
    )
    api = answers(path)
    at = f"/api/runs/{api.library.sources()[0].key}/steps/all"
    rows = api.get(f"{at}/episodes")
    assert orjson.dumps(rows)
    assert (rows["groups"], rows["torn"]) == (2, None)
    for inner in ("", "/rollouts/0", "/rollouts/0/turns/0", "/rollouts/0/turns/0/tokens"):
        with pytest.raises(DataError, match=r"a\.jsonl\.zst: group 'g-odd'") as failure:
            api.get(f"{at}/groups/0{inner}")
        assert "\n" not in str(failure.value)
        assert len(str(failure.value)) < 250
        assert api.get(f"{at}/groups/1{inner}")
    (written,) = export([path], tmp_path / "out.html")
    assert any("g-odd" in item for item in written.content.notes)


def test_an_episode_of_too_many_turns_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_screen, "MOST_TURNS", 3)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(encode_groups([group("long", (1.0,), turns=4), GOOD]))
    api = answers(path)
    at = f"/api/runs/{api.library.sources()[0].key}/steps/all"
    assert api.get(f"{at}/episodes")["rows"][0]["turns"] == 4
    with pytest.raises(DataError, match="rollout 0 has 4 turns"):
        api.get(f"{at}/groups/0/rollouts/0")
    assert api.get(f"{at}/groups/1/rollouts/0")


@pytest.mark.parametrize("number", [0, 1, 3, -1, "2", None, [2], True, 2.0, 1e30])
@pytest.mark.parametrize("first", [False, True])
def test_episodes_of_an_unknown_format_are_named_and_not_shown(number: Any, first: bool, tmp_path: Path) -> None:
    lines, at = [group_lines(group(name, (0.0,))) for name in ("tea", "ale")], 0 if first else 1
    lines[at] = lines[at].replace(b'"format":2', b'"format":' + orjson.dumps(number), 1)
    run = run_folder(tmp_path / "first")
    (run / "trajectories" / "step-000001.jsonl.zst").write_bytes(b"".join(map(zstandard.compress, lines)))
    api = answers(run)
    episodes = api.get(f"{STEP}/episodes")
    assert [row["id"] for row in episodes["rows"]] == ([] if first else ["tea"])
    assert f"format {number!r} of a trajectory is not 2, the known one" in episodes["torn"]
    with pytest.raises((NotThere, DataError)):
        api.get(f"{STEP}/groups/{at}")
