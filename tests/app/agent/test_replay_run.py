"""Episodes replayed from a turn, unchanged or with an edited memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

import palimpsest
from palimpsest import train
from palimpsest.app.agent import replay_run
from palimpsest.app.agent.recorded_origin import EpisodeRef, locate_episode
from palimpsest.app.agent.replay_run import replay
from palimpsest.errors import ConfigError, DataError, ModelError, PalimpsestError, RunError
from palimpsest.evaluation.episode_files import EPISODES, read_episodes
from palimpsest.evaluation.sample_log import SAMPLES, read_samples
from palimpsest.events import Recalled, Replayed, of_type
from palimpsest.metrics.memory_metrics import copy_fidelity
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.text.answers import unboxed
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Trajectory
from palimpsest.viewer.screens.group_screen import Opened
from support.command import Run
from support.small_run import small_run

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}
SHORT = {"policy.options.prompts": "short"}
EVERY_SECOND = "support.rewards:every_second"
TAGGED = {**BUDGETS, "reply_tokens": 64}
STEP_7 = Path("RUN/trajectories/step-000007.jsonl.zst")
AFTER = Path("evaluations") / "after" / "shard-1-of-2"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    """A run of two steps, all of whose weights are there."""
    folder = tmp_path_factory.mktemp("replayed") / "run"
    signal = {"reward.name": EVERY_SECOND, "reward.unsupported_penalty": 0.0}
    settings = {**small_run(tiny_model_folder), **signal, "credit.overlong": None}
    palimpsest.train("memagent-quickstart", settings, seed=1, out=folder, quiet=True)
    return folder


def evaluated(model: Path, out: Path, policy: str, options: dict[str, Any], **more: Any) -> Path:
    overrides = {**options, "evaluation.record": "all", "eval_sampling.temperature": 1.0}
    inputs = {"data": "synthetic", "limit": 1, "chunks": 3, "samples": 2, "baselines": False, "quiet": True, **more}
    palimpsest.evaluate(str(model), policy=policy, out=out, overrides=overrides, **inputs)
    return out


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Callable[..., Path]:
    """An evaluation by a policy with these options, which tests only read."""

    @cache
    def folder(policy: str, **options: Any) -> Path:
        sizes = {**(TAGGED if policy == "recall" else BUDGETS), **SHORT, **options}
        return evaluated(tiny_model_folder, tmp_path_factory.mktemp(policy) / "eval", policy, sizes)

    return folder


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """The run's configuration in another folder, for a changed record."""
    (tmp_path / "run" / "trajectories").mkdir(parents=True)
    return Path(shutil.copy(run / "config.yaml", tmp_path / "run")).parent


def record(step: int) -> str:
    return f"trajectories/step-{step:06d}.jsonl.zst"


def played(path: Path) -> tuple[Trajectory, Trajectory]:
    """The two episodes of a replay's file."""
    (group,) = read_groups(path).groups
    recorded, replayed = group.trajectories
    return recorded, replayed


def sampled(trajectory: Trajectory) -> list[tuple[int, ...]]:
    return [turn.completion.token_ids for turn in trajectory.turns]


@pytest.mark.parametrize("step", [1, 2])
def test_the_same_weights_replay_the_recorded_tokens(run: Path, tmp_path: Path, step: int) -> None:
    file = run / record(step)
    before = file.read_bytes()
    original = read_groups(file).groups[0].trajectories[1]
    for turn in range(len(original.turns)):
        result = replay(f"{file}#0/1", turn=turn, out=tmp_path)
        recorded, again = played(result.path)
        assert (result.parts_at, result.turn) == (None, turn)
        assert sampled(again) == sampled(recorded) == sampled(original)
        logprobs = [[item.completion.logprobs for item in trajectory.turns[:turn]] for trajectory in (again, original)]
        assert logprobs[0] == logprobs[1]
        assert result.recorded == result.replayed
        assert "which sampled it" in result.weights
    assert file.read_bytes() == before


def test_a_document_read_in_several_passes_is_replayed_once(tmp_path: Path, evaluation: Callable[..., Path]) -> None:
    folder = evaluation("parallel", passes=3)
    original = read_episodes(folder / EPISODES).groups[0].trajectories[0]
    passes = [turn.notes.get("reading") for turn in original.turns]
    assert {0, 1} <= set(passes)
    for turn in (0, passes.index(1), len(passes) - 1):
        result = replay(f"{folder}#0/0", turn=turn, out=tmp_path)
        assert (result.parts_at, result.document) == (None, "the document is from the recorded prompts")


@pytest.mark.parametrize("policy", ["overwrite", "recall", "retrieval"])
def test_the_next_turn_shows_the_edited_memory(policy: str, tmp_path: Path, evaluation: Callable[..., Path]) -> None:
    folder = str(evaluation(policy))
    unchanged = replay(folder, group=0, rollout=1, turn=1, out=tmp_path)
    assert unchanged.parts_at is None
    last = len(played(unchanged.path)[0].turns) - 1
    for turn in (1, last):
        recorded, again = played(replay(folder, group=0, rollout=1, turn=turn, memory="Anna", out=tmp_path).path)
        assert sampled(again)[: turn - 1] == sampled(recorded)[: turn - 1]
        (event,) = of_type(again.events, Replayed)
        assert (event.memory or "").strip() == "Anna"
        ids = again.turns[turn].piece("memory")
        assert ids is not None
        assert len(ids) == len(again.turns[turn - 1].completion.token_ids) or policy == "recall"
        assert again.turns[turn].prompt_ids != recorded.turns[turn].prompt_ids


def test_an_edited_memory_is_input_of_the_agent(tmp_path: Path, tiny_model_folder: Path, palimpsest: Run) -> None:
    inputs = "Zyx"  # in no section
    penalised = {**small_run(tiny_model_folder), "reward.unsupported_penalty": 1.0, "reward.name": EVERY_SECOND}
    folder = tmp_path / "run"
    train("memagent-quickstart", penalised, seed=1, out=folder, quiet=True)
    location = f"{folder / record(1)}#0/1"
    turn = len(read_groups(folder / record(1)).groups[0].trajectories[1].turns) - 1
    result = replay(location, turn=turn, memory=inputs, out=tmp_path)
    (group,) = read_groups(result.path).groups
    recorded, again = (readings(item, GroupTexts(Codec.load(result.model))) for item in group.trajectories)
    assert [item.substituted for item in again] == [False] * (turn - 1) + [True]
    wrote = recorded[: turn - 1]  # all that is the agent's own in both
    share = copy_fidelity(wrote)
    assert result.replayed.value == pytest.approx(1.0 if share is None else share)
    assert (result.given, result.to_json()["given"]) == (True, True)
    assert replay(location, turn=turn, out=tmp_path).given is False
    done = palimpsest("replay", location, "--turn", str(turn + 1), "--memory", inputs, "--out", str(tmp_path))
    assert "the edited memory counts as input" in done.stdout


def test_the_memory_an_episode_begins_with_can_be_another(run: Path, tmp_path: Path) -> None:
    result = replay(f"{run / record(1)}#0/0", turn=0, memory="Anna", out=tmp_path)
    recorded, again = played(result.path)
    assert again.turns[0].piece("memory") != recorded.turns[0].piece("memory")
    assert again.turns[0].piece("section") == recorded.turns[0].piece("section")
    (group,) = read_groups(result.path).groups
    shown = Opened(group, Codec.load(result.model))
    assert [shown.story(at).steps[0].before.text.strip() for at in (0, 1)] == ["", "Anna"]


@pytest.mark.parametrize("policy", ["overwrite", "recall", "retrieval"])
def test_the_recorded_memory_changes_nothing(
    policy: str, tmp_path: Path, evaluation: Callable[..., Path], tiny_model_folder: Path
) -> None:
    folder = shutil.copytree(evaluation(policy, memory_tokens=24), tmp_path / "eval")
    edited = replay(f"{folder}#0/0", turn=1, memory="Anna lives in Rome.", out=tmp_path)
    _, again = played(edited.path)
    assert replay(f"{folder}#0/0", turn=0, memory="none", out=tmp_path / "start").parts_at is None
    (folder / EPISODES).write_bytes(
        encode_groups([_as_recorded(folder, again, Codec.load(str(tiny_model_folder)).stop_ids[0])])
    )
    for text in ("Anna lives in Rome.", " Anna lives in Rome. "):
        same = replay(f"{folder}#0/0", turn=1, memory=text, out=tmp_path / "again")
        assert (same.parts_at, same.first_seen) == (None, 1)
        before, after = played(same.path)
        assert sampled(after) == sampled(before) != sampled(again)  # which lacks the end token


def _as_recorded(folder: Path, again: Trajectory, stop: int) -> Group:
    """The evaluation's group with the replayed episode, whose reply has an end token."""
    group = read_episodes(folder / EPISODES).groups[0]
    first = again.turns[0].completion
    ids = (*first.token_ids, stop)
    ended = replace(again.turns[0], completion=replace(first, token_ids=ids, logprobs=(0.0,) * len(ids)))
    events = tuple(event for event in again.events if not isinstance(event.what, Replayed))
    changed = replace(again, turns=(ended, *again.turns[1:]), events=events, rollout=0)
    return replace(group, trajectories=(changed,), grades=group.grades[:1])


@pytest.mark.parametrize("policy", ["overwrite", "recall", "retrieval"])
def test_an_edited_memory_is_not_filtered_like_a_reply(
    policy: str, tmp_path: Path, evaluation: Callable[..., Path], tiny_codec: Codec
) -> None:
    folder = evaluation(policy, grounded="verbatim")
    for turn, memory, shown in ((1, "Zyx", "Zyx"), (1, "", "none"), (3, "Zyx", "Zyx"), (3, "", "none")):
        result = replay(f"{folder}#0/0", turn=turn, memory=memory, out=tmp_path)
        _, again = played(result.path)
        ids = again.turns[turn].piece("memory")
        assert ids is not None
        assert tiny_codec.decode(ids).strip() == shown
        (event,) = of_type(again.events, Replayed)
        assert (event.memory or "").strip() == memory or result.parts_at is None  # nothing was remembered before
        assert result.first_seen == turn


@pytest.mark.parametrize("policy", ["overwrite", "recall"])
def test_an_empty_memory_is_the_policys_initial_memory(
    policy: str, tmp_path: Path, evaluation: Callable[..., Path], palimpsest: Run
) -> None:
    episode = f"{evaluation(policy, memory_tokens=24)}#0/0"
    result = replay(episode, turn=1, memory="", out=tmp_path)
    recorded, again = played(result.path)
    assert result.memory == ""
    assert again.turns[1].piece("memory") == recorded.turns[0].piece("memory")
    assert replay(episode, turn=0, memory=" ", out=tmp_path).parts_at is None
    line = palimpsest("replay", episode, "--turn", "2", "--memory", "", "--out", str(tmp_path)).stdout.splitlines()[0]
    assert (line.startswith("re-run from turn 2"), "nothing" in line) == (True, True)


def test_a_partly_read_document_is_drawn_again(run: Path, copied: Path, tmp_path: Path) -> None:
    (copied / "checkpoints").symlink_to(run / "checkpoints")
    (group,) = read_groups(run / record(1)).groups
    cut = tuple(replace(item, turns=item.turns[:2]) for item in group.trajectories)
    (copied / record(1)).write_bytes(encode_groups([replace(group, trajectories=cut)]))
    result = replay(f"{copied / record(1)}#0/0", turn=1, out=tmp_path)
    assert "from the episode's data" in result.document
    assert sampled(played(result.path)[1]) == sampled(group.trajectories[0])


def test_the_nearest_weights_replace_missing_ones(run: Path, copied: Path, tmp_path: Path) -> None:
    shutil.copy(run / record(2), copied / record(2))
    assert replay(f"{copied / record(2)}#0/0", turn=0, out=tmp_path).weights == (
        "the weights that training started from, the nearest: no checkpoint of step 1, which sampled it, exists"
    )


def test_the_record_has_keys_of_groups(
    run: Path, copied: Path, tmp_path: Path, evaluation: Callable[..., Path]
) -> None:
    (group,) = read_groups(run / record(2)).groups
    assert group.key == (1, "train", 2, 0)
    renamed = replace(group, trajectories=tuple(replace(item, group_id="any") for item in group.trajectories))
    (copied / "checkpoints").symlink_to(run / "checkpoints")
    (copied / record(2)).write_bytes(encode_groups([renamed, replace(group, key=())]))
    assert replay(f"{copied / record(2)}#0/1", turn=0, out=tmp_path).parts_at is None
    with pytest.raises(DataError, match="no key"):
        replay(f"{copied / record(2)}#1/1", turn=0, out=tmp_path)
    assert read_episodes(evaluation("overwrite") / EPISODES).groups[0].key == (0, "eval", "overwrite, 3 chunks")


def test_a_replay_is_a_record_of_two_and_the_same_replay_the_same_file(run: Path, tmp_path: Path) -> None:
    first, again = (replay(f"{run / record(1)}#0/0", turn=1, memory="Anna", out=tmp_path / name) for name in "ab")
    assert first.path.read_bytes() == again.path.read_bytes()
    (group,) = read_groups(first.path).groups
    assert [item.rollout for item in group.trajectories] == [0, 1]
    with pytest.raises(ConfigError, match="is a replay"):
        replay(f"{first.path}#0/1", turn=1, out=tmp_path)


@pytest.mark.parametrize(
    ("episode", "options", "location"),
    [
        ("a.jsonl.zst#3/2", {"turn": 5}, EpisodeRef(Path("a.jsonl.zst"), 3, 2, 5)),
        ("a.jsonl.zst", {"group": 3, "rollout": 2}, EpisodeRef(Path("a.jsonl.zst"), 3, 2)),
        ("RUN#/r/q/s/7/e/3/2/t/5", {}, EpisodeRef(STEP_7, 3, 2, 5)),
        ("RUN#/r/q/s/7/e/3/2/t/5?sort=reward", {"turn": 1}, EpisodeRef(STEP_7, 3, 2, 1)),
        ("RUN", {"step": 7, "group": 0, "rollout": 1}, EpisodeRef(STEP_7, 0, 1)),
        ("RUN#/r/q/s/after.shard-1-of-2/e/3/0/t/5", {}, EpisodeRef(Path("RUN") / AFTER / EPISODES, 3, 0, 5)),
        ("EVAL#/e/3/2/t/5", {}, EpisodeRef(Path("EVAL") / EPISODES, 3, 2, 5)),
        ("EVAL#/r/eval/s/all/e/3/2", {}, EpisodeRef(Path("EVAL") / EPISODES, 3, 2)),
    ],
)
def test_an_episode_is_located_by_a_path_a_link_or_options(
    episode: str, options: dict[str, int], location: EpisodeRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN" / "trajectories").mkdir(parents=True)
    for folder in (Path("EVAL"), Path("RUN") / AFTER):
        folder.mkdir(parents=True)
        (folder / EPISODES).touch()
    assert locate_episode(episode, **options) == location


@pytest.mark.parametrize(
    ("error", "message", "episode", "options"),
    [
        (ConfigError, "set --turn", "{file}#0/0", {}),
        (ConfigError, "--turn 100: the episode has", "{file}#0/0", {"turn": 99}),
        (ConfigError, "group is missing", "{file}", {"turn": 0}),
        (ConfigError, "no such file or folder", "none", {"turn": 0}),
        (ConfigError, "#here names no episode", "{file}#here", {"turn": 0}),
        (ConfigError, "set --step", "{run}#/e/0/0/t/0", {}),
        (DataError, "--group 9 is not one of its 1 groups", "{file}#9/0", {"turn": 0}),
        (DataError, "--rollout 9 is not one of the 2", "{file}#0/9", {"turn": 0}),
        (ConfigError, "shorten it", "{file}#0/0", {"turn": 1, "memory": "word " * 40}),
        (RunError, "belongs to no run", "{stray}#0/0", {"turn": 0}),
        (DataError, "can't be read", "none.jsonl.zst#0/0", {"turn": 0}),
        (ConfigError, r"has \d+ tokens, policy.options.reply_tokens=10; shorten it", "{recall}#0/0", {"turn": 1}),
        (DataError, "--group 88 is not one of its", "{gone}", {"turn": 0, "group": 88}),
        (ModelError, "if it moved, set --model", "{gone}", {"turn": 0, "group": 0}),
        (ModelError, "model gone", "{gone}", {"turn": 0, "model": "gone"}),
    ],
)
def test_an_impossible_replay_is_refused_in_a_line(
    error: type[PalimpsestError], message: str, episode: str, options: dict[str, Any], run: Path, tmp_path: Path,
    evaluation: Callable[..., Path], tiny_model_folder: Path,
) -> None:  # fmt: skip
    folders: dict[str, Any] = {"run": run, "file": run / record(1), "stray": tmp_path / "step-000001.jsonl.zst"}
    shutil.copy(folders["file"], folders["stray"])
    if "recall" in episode:
        folders["recall"], options = evaluation("recall", reply_tokens=10), {**options, "memory": "Anna Anna"}
    if "gone" in episode:
        shutil.copytree(tiny_model_folder, tmp_path / "model")
        folders["gone"] = evaluated(tmp_path / "model", tmp_path / "eval", "overwrite", BUDGETS)
        (tmp_path / "model").rename(tmp_path / "moved")
        replay(str(folders["gone"]), turn=0, out=tmp_path, group=0, model=str(tmp_path / "moved"))
    with pytest.raises(error, match=message) as refused:
        replay(episode.format(**folders), out=tmp_path / "out", **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "odd",
    [
        lambda line: line.update(group_id=0.5),
        lambda line: line["problem"].update(id=7),
        lambda line: line["problem"].update(metadata=0.5),
        lambda line: line["turns"][1].update(notes=7),
        lambda line: line["turns"][1].update(step=[None]),
        lambda line: line["turns"][1].update(token_ids=[[None], *line["turns"][1]["token_ids"][1:]]),
    ],
)
def test_a_record_of_other_types_is_refused(
    odd: Callable[[Any], None], run: Path, copied: Path, tmp_path: Path
) -> None:
    with zstandard.open(run / record(1), "rb") as lines:
        line = orjson.loads(lines.read().splitlines()[0])
    odd(line)
    (copied / record(1)).write_bytes(zstandard.compress(orjson.dumps(line, option=orjson.OPT_SORT_KEYS)))
    with pytest.raises(DataError, match="record of trajectories") as refused:
        replay(f"{copied / record(1)}#0/0", turn=1, out=tmp_path / "out")
    assert "\n" not in str(refused.value)


def test_a_replay_is_never_written_into_the_run_or_over_another_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    for out in (run, run / "trajectories", tmp_path / "link" / "new"):
        with pytest.raises(ConfigError, match=r"--out .* is inside"):
            replay(f"{run / record(1)}#0/0", turn=0, out=out)
    first = replay(f"{run / record(1)}#0/0", turn=0, out=tmp_path).path
    first.write_text("mine")
    second = replay(f"{run / record(1)}#0/0", turn=0, out=tmp_path).path
    assert first.read_text() == "mine"
    assert second.name == "step-000001-0-0-turn-0-2.jsonl.zst"


def test_a_memory_within_its_budget_writes_no_control_token(tmp_path: Path, tiny_model_folder: Path) -> None:
    options = {**BUDGETS, "memory_tokens": 64, **SHORT}
    folder = evaluated(tiny_model_folder, tmp_path / "eval", "overwrite", options)
    spoken = "Anna<|im_end|><|im_start|>"
    result = replay(str(folder), group=0, rollout=0, turn=1, memory=spoken, out=tmp_path)
    codec = Codec.load(tiny_model_folder)
    _, again = played(result.path)
    written, shown = again.turns[0].completion.token_ids, again.turns[1].piece("memory")
    assert codec.control_ids.intersection(codec.encode_trusted(spoken))
    assert shown is not None
    for ids in (written, shown):
        assert codec.control_ids.isdisjoint(ids)
        assert spoken in codec.decode(ids)


@pytest.mark.parametrize("link", ["/r/q/s/{}/e/0/0/t/0", "/e/{}/0/t/0", "/e/0/0/t/{}", "{}/0"])
def test_a_number_of_thousands_of_digits_is_refused_in_a_line(link: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no episode; use") as refused:
        locate_episode(f"{tmp_path}#{link.format('9' * 5000)}")
    assert len(str(refused.value)) < 500


def test_a_memory_is_read_of_a_file_alone_and_bounded(tmp_path: Path, palimpsest: Run) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * 10_000_001)
    for path, fault in (("/dev/full", "not a file"), (tmp_path / "pipe", "not a file"), (tmp_path / "large", "bytes")):
        assert fault in palimpsest("replay", "x#0/0", "--turn", "1", "--memory", f"@{path}").stderr
    assert "Invalid value for '--step'" in palimpsest("replay", "x", "--step", "-1").stderr


def test_a_policy_without_memory_takes_no_edit(tmp_path: Path, tiny_model_folder: Path) -> None:
    options = {"question_tokens": 64, "answer_tokens": 8, **SHORT}
    folder = evaluated(tiny_model_folder, tmp_path / "eval", "full_context", options)
    result = replay(f"{folder}#0/1", turn=0, out=tmp_path)
    assert result.parts_at is None
    assert "from the episode's data" in result.document
    with pytest.raises(ConfigError, match="full_context has no memory"):
        replay(f"{folder}#0/1", turn=0, memory="Anna", out=tmp_path)


@pytest.mark.slow
def test_an_agent_that_searches_its_document_needs_it_to_be_played_on(tmp_path: Path, tiny_model_folder: Path) -> None:
    data = tmp_path / "data.jsonl"
    row = {"id": "a", "question": "Where does Anna live?", "answers": ["Rome"], "context": "Anna lives in Rome.\n" * 4}
    data.write_text(json.dumps(row) + "\n")
    tools = {"search": {"source": "document"}}
    options = {"context_tokens": 480, "turn_tokens": 16, "max_turns": 3, "tools": tools, **SHORT}
    folder = evaluated(tiny_model_folder, tmp_path / "eval", "prune", options, data=str(data), chunks=None)
    result = replay(f"{folder}#0/1", turn=0, out=tmp_path)
    assert result.parts_at is None
    assert result.document == "the document is from the episode's data"
    data.rename(tmp_path / "elsewhere.jsonl")
    with pytest.raises(DataError, match=r"lacks the whole document.*restore the data"):
        replay(f"{folder}#0/1", turn=0, out=tmp_path)


def test_a_recall_is_repeated(tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**TAGGED, **SHORT, "memory_tokens": 24}
    folder = evaluated(tiny_model_folder, tmp_path / "eval", "recall", options, samples=1)
    codec = Codec.load(tiny_model_folder)
    first = replay(f"{folder}#0/0", turn=1, memory="Anna lives in Rome.", out=tmp_path / "first")
    _keep(folder, played(first.path)[1])
    with monkeypatch.context() as asking:  # a random model makes no query
        asking.setattr(
            replay_run, "_reply", lambda policy, ids, *_: policy.reply(codec, ids, codec.encode("Where is Anna?"))
        )
        second = replay(f"{folder}#0/0", turn=2, memory="Bo has a cat.", out=tmp_path / "second")
    _keep(folder, played(second.path)[1])
    unchanged = replay(f"{folder}#0/0", turn=2, out=tmp_path)
    assert unchanged.parts_at is None
    edited = replay(f"{folder}#0/0", turn=2, memory="Bo has a dog.", out=tmp_path)
    for again in (played(unchanged.path)[1], played(edited.path)[1]):
        (recalled,) = of_type(again.events, Recalled)
        assert (recalled.query.strip(), recalled.chunk) == ("Where is Anna?", 0)
        shown = again.turns[2].piece("recalled")
        assert shown is not None
        assert "Anna lives in Rome." in codec.decode(shown)
    assert edited.first_seen == 2


def _keep(folder: Path, again: Trajectory) -> None:
    """Make what was played on the record of an evaluation."""
    group = read_episodes(folder / EPISODES).groups[0]
    events = tuple(event for event in again.events if not isinstance(event.what, Replayed))
    remaining = replace(group, trajectories=(replace(again, rollout=0, events=events),), grades=(Grade(0.0),))
    (folder / EPISODES).write_bytes(encode_groups([remaining]))


def test_the_agents_first_episode_is_the_default(tmp_path: Path, tiny_model_folder: Path) -> None:
    folder = evaluated(tiny_model_folder, tmp_path / "eval", "overwrite", BUDGETS, baselines=True)
    groups = read_episodes(folder / EPISODES).groups
    places = {group.trajectories[0].group_id: location for location, group in enumerate(groups)}
    logged, _ = read_samples(folder / SAMPLES)
    (agent,) = {places[item.group_id] for item in logged if not item.baseline}
    (closed,) = {places[item.group_id] for item in logged if item.player == "closed book"}
    with pytest.raises(ConfigError, match=f"'closed book, .* is a baseline .* the first is --group {agent}$"):
        replay(f"{folder}#{closed}/0", turn=0, out=tmp_path)
    by_place = replay(str(folder), group=agent, rollout=0, turn=1, out=tmp_path)
    assert replay(str(folder), turn=1, out=tmp_path).path == by_place.path
    assert by_place.parts_at is None


def test_the_command_shows_both_ends(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    (tmp_path / "memory.txt").write_text("Anna\n")
    command = ["replay", f"{run / record(2)}#/e/0/1/t/1", "--memory", f"@{tmp_path / 'memory.txt'}"]
    done = palimpsest(*command, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "re-run from turn 2, with the memory: Anna"
    assert [line.partition(" ")[0] for line in lines[1:3]] == ["recorded", "replayed"]
    assert "the checkpoint step-000001, which sampled it" in done.stderr
    result: dict[str, Any] = json.loads(palimpsest(*command, "--out", str(tmp_path), "--json").stdout)
    assert result.keys() >= {"recorded", "replayed", "weights", "document", "path"}
    assert lines[-1] == f"palimpsest view {result['path']} --tokenizer {result['model']}"
    one, other = (sampled(item) for item in played(Path(result["path"])))
    assert one[0] != other[0]  # the edited memory is no replayed reply
    assert result["parts_at"] == next(at for at in range(1, len(one)) if one[at] != other[at])
    assert lines[3] == f"turn {result['parts_at'] + 1} is the first with another reply"
    same = palimpsest("replay", f"{run / record(2)}#/e/0/1/t/1", "--out", str(tmp_path)).stdout.splitlines()
    assert same[3] == "every reply from turn 2 equals the recorded one, token for token"
    assert result["model"].endswith("checkpoints/step-000001")
    assert f"answer: {unboxed(result['replayed']['answer'])}" in lines[2]
