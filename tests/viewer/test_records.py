"""Which files hold a source's episodes, which tokenizer decodes them, and that neither is written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palimpsest.text.codec import Codec
from palimpsest.viewer.records.sources import Library, NotThere
from palimpsest.viewer.screens import group_screen
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample, state_of


def answers(path: Path, **options: Any) -> ViewerApi:
    return ViewerApi(Library([path]), **options)


def reading_group(codec: Codec) -> Any:
    """A problem whose one memory holds the evidence and a sentence from nowhere."""
    from dataclasses import replace

    from palimpsest.types import Prompt

    made = group("p", (1.0,))
    section, memory = codec.encode("gold is here."), codec.encode("gold is here. Eve sings.")
    prompt = Prompt.joined([Prompt.named("memory", []), Prompt.named("section", section)])
    trajectory = made.trajectories[0]
    first, last = trajectory.turns
    completion = replace(first.completion, token_ids=tuple(memory), logprobs=(0.0,) * len(memory))
    read = replace(first, prompt_ids=tuple(prompt), spans=dict(prompt.spans), completion=completion)
    told = Prompt.named("memory", memory)
    answer = replace(last, prompt_ids=tuple(told), spans=dict(told.spans))
    return replace(made, trajectories=(replace(trajectory, turns=(read, answer)),))


def test_steps_are_those_with_a_record_and_unknown_ones_are_told(tmp_path: Path) -> None:
    told = answers(run_folder(tmp_path / "first", records={2: [group("a")], 10: [group("b")]}))
    assert told.get("/api/runs/first/steps") == [2, 10]
    assert [row["id"] for row in told.get("/api/runs/first/steps/10/episodes")["rows"]] == ["b", "b"]
    for step in ("3", "all", "..", "x", "²", "-1", "9" * 20):
        with pytest.raises(NotThere, match="record_steps"):
            told.get(f"/api/runs/first/steps/{step}/episodes")


def test_a_file_alone_is_a_source_whose_step_is_all(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first", records={1: [group("a")]})
    told = answers(run / "trajectories" / "step-000001.jsonl.zst")
    assert told.get("/api/runs/step-000001.jsonl.zst/steps") == ["all"]
    assert len(told.get("/api/runs/step-000001.jsonl.zst/steps/all/episodes")["rows"]) == 2


def test_a_runs_newest_checkpoint_decodes_its_episodes(tmp_path: Path, tiny_codec: Codec) -> None:
    run = run_folder(tmp_path / "first", records={1: [reading_group(tiny_codec)]})
    told = answers(run)
    assert told.get("/api/runs/first/steps/1/measures", {"groups": "0"}) == {}
    assert "--tokenizer" in told.get("/api/runs/first/steps/1/decoder")["why"]
    for name in ("step-000001", "step-000002"):
        tiny_codec.save(run / "checkpoints" / name)
    told = answers(run)
    assert told.get("/api/runs/first/steps/1/decoder")["why"] is None
    measured = told.get("/api/runs/first/steps/1/measures", {"groups": "0"})["0/0"]
    assert measured["retention"] == 1.0
    assert measured["invention"] == 0.5


def test_a_tokenizer_that_is_given_decodes_a_file_alone(tmp_path: Path, tiny_codec: Codec) -> None:
    run = run_folder(tmp_path / "first", records={1: [reading_group(tiny_codec)]})
    path = (run / "trajectories" / "step-000001.jsonl.zst").rename(tmp_path / "alone.jsonl.zst")
    (tmp_path / "tokenizer").mkdir()
    tiny_codec.save(tmp_path / "tokenizer")
    told = answers(path, tokenizer=str(tmp_path / "tokenizer"))
    assert told.get("/api/runs/alone.jsonl.zst/steps/all/measures", {"groups": "0"})["0/0"]["retention"] == 1.0
    assert "does not name its model" in answers(path).get("/api/runs/alone.jsonl.zst/steps/all/decoder")["why"]


def test_a_model_of_the_hub_that_is_not_in_the_local_cache_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("asked the network"))
    run = run_folder(tmp_path / "first", records={1: [group("a")]}, config="model:\n  path: nobody/no-such-model\n")
    why = answers(run).get("/api/runs/first/steps/1/decoder")["why"]
    assert "nobody/no-such-model is neither a folder here nor in the local cache" in why


EPISODE = "/api/runs/first/steps/1/groups/0/rollouts/0"


def test_a_group_its_episodes_turns_and_tokens_are_told_by_their_places(tmp_path: Path, tiny_codec: Codec) -> None:
    run = run_folder(tmp_path / "first", records={1: [reading_group(tiny_codec), group("q")]})
    tiny_codec.save(run / "checkpoints" / "step-000001")
    told = answers(run)
    assert told.get("/api/runs/first/steps/1/groups/1")["problem"]["id"] == "q"
    episode = told.get(EPISODE)
    assert (episode["answer"], len(episode["turns"])) == ("answer 0", 2)
    assert "Eve sings." in str(told.get(f"{EPISODE}/turns/0"))
    assert told.get(f"{EPISODE}/turns/1/tokens")
    for path in (
        "/api/runs/first/steps/1/groups/2",
        "/api/runs/first/steps/1/groups/0/rollouts/1",
        f"{EPISODE}/turns/2",
        f"{EPISODE}/turns/2/tokens",
        f"{EPISODE}/turns/-1",
        f"{EPISODE}/turns/{'9' * 40}",
    ):
        with pytest.raises(NotThere):
            told.get(path)


def test_without_a_tokenizer_an_episode_is_shown_as_ids(tmp_path: Path, tiny_codec: Codec) -> None:
    run = run_folder(tmp_path / "first", records={1: [reading_group(tiny_codec)]})
    told = answers(run)
    assert told.get(EPISODE)["outcome"] == "answered"
    ids = tiny_codec.encode("Eve sings.")
    assert " ".join(map(str, ids[-2:])) in str(told.get(f"{EPISODE}/turns/0"))


def test_only_the_last_few_groups_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_folder(tmp_path / "first", records={1: [group(f"p{place}") for place in range(6)]})
    told = answers(run)
    for place in range(6):
        told.get(f"/api/runs/first/steps/1/groups/{place}")
    assert len(told.opened._groups) == group_screen.MOST_GROUPS
    monkeypatch.setattr(group_screen, "MOST_TOKENS", 1)
    told.get("/api/runs/first/steps/1/groups/0")
    assert len(told.opened._groups) == 1


def test_nothing_that_is_asked_for_changes_the_folder(tmp_path: Path, tiny_codec: Codec) -> None:
    run = run_folder(
        tmp_path / "first",
        [{"step": 1, "reward/mean": 0.5}],
        records={1: [reading_group(tiny_codec)]},
        events=[{"kind": "x"}],
    )
    tiny_codec.save(run / "checkpoints" / "step-000001")
    evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1", [sample("set", "a", 1.0)])
    before = state_of(run)
    told = answers(run)
    for path in (
        "/api/runs",
        "/api/runs/first",
        *(f"/api/runs/first/{name}" for name in ("metrics", "timings", "events", "alarms", "items", "steps")),
        "/api/runs/first/steps/1/episodes",
        "/api/runs/first/steps/1/decoder",
        "/api/runs/first/steps/1/groups/0",
        EPISODE,
        f"{EPISODE}/turns/0",
        f"{EPISODE}/turns/0/tokens",
    ):
        told.get(path)
    told.get("/api/runs/first/steps/1/measures", {"groups": "0"})
    assert state_of(run) == before
