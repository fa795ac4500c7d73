"""Published policies as one file each: GRU-Mem's gates and MHM's heads, checked and played."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from palimpsest.cli.main import app
from palimpsest.config.schema import PolicyConfig
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.policy_check import check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.metrics.memory_metrics import evidence_retention, unsupported
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.plugins import load
from palimpsest.text.sentences import flat
from palimpsest.training.supervised.supervised_loop import read_trajectories
from palimpsest.types import Grade, Problem, Trajectory
from support.agents import base_codec, played

ROOT = Path(__file__).parents[2]
GATED, HEADS, NOTES = "examples.gated:GatedPolicy", "examples.heads:HeadsPolicy", "examples.notes:NotesPolicy"
LINES = ("Bob has a cat.", "It is cold.", "Anna is blue.", "No one ran.")
PROBLEM = Problem("p", "Who is blue?", ("Anna",), "".join(f"{line}\n" for line in LINES), {"evidence": [LINES[2]]})
SIZES = {"chunk_boundary": "line", "question_tokens": 60, "memory_tokens": 40, "answer_tokens": 12}
SKIP, GO, END = "<check>no</check>", "<next>continue</next>", "<next>end</next>"
WRITE = "<check>yes</check><update>Anna is blue.</update>"


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


def policy(name: str, **options: Any) -> MemoryPolicy:
    line = max(len(base_codec().encode(f"{line}\n")) for line in LINES)
    sizes = {} if name == NOTES else SIZES
    return build_policy(PolicyConfig(name=name, options={**sizes, "chunk_size": line, **options}))


def play(made: MemoryPolicy, *replies: str) -> Trajectory:
    return played(made, list(replies), PROBLEM)[0]


def details(trajectory: Trajectory, kind: str) -> list[dict[str, Any]]:
    return [dict(event.detail) for event in trajectory.events if event.kind == kind]


@pytest.mark.parametrize("name", [GATED, HEADS, NOTES])
def test_the_check_passes(name: str, capsys: pytest.CaptureFixture[str], tiny_codec: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["check", name, "chunk_size=64"])
    assert ended.value.code == 0, capsys.readouterr().out
    made = policy(name, chunk_size=20)
    findings = check_policy(made, tiny_codec, made.required_context(tiny_codec))  # without a token to spare
    assert [finding.message for finding in findings if not finding.passed] == []


def test_notes_are_read_side_by_side_and_each_event_belongs_to_its_turn() -> None:
    trajectory = play(policy(NOTES), "none", "Anna is blue.")
    notes = [event for event in trajectory.events if event.kind == "noted"]
    assert [turn.name for turn in trajectory.turns] == ["note"] * len(notes) + ["answer"]
    assert [event.before_turn for event in notes] == list(range(1, len(notes) + 1))


# ---- gates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["docs/how-to/custom-policy.md", "examples/gated.py", "examples/frozen_reader.py"])
def test_the_documented_trainings_of_an_example_start(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"\\?\\\n\s*", " ", (ROOT / file).read_text("utf-8"))
    commands = re.findall(r"palimpsest (train memagent-quickstart policy\.name=.*)", text)
    assert commands
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            app([*shlex.split(command), "--dry-run"])
        assert ended.value.code == 0, capsys.readouterr().err


def test_a_closed_update_gate_keeps_the_memory_and_an_open_exit_gate_ends_the_reading() -> None:
    trajectory = play(policy(GATED, reply_tokens=120), WRITE + GO, SKIP + GO, SKIP + END)
    assert [event["text"] for event in details(trajectory, "memory")] == ["Anna is blue."] * 3
    assert [event["changed"] for event in details(trajectory, "memory")] == [True, False, False]
    assert [turn.name for turn in trajectory.turns] == ["read"] * 3 + ["answer"]
    assert details(trajectory, "exit") == [{"chunk": 2, "unread": 1}]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (WRITE, "no <next>"),
        ("<check>maybe</check>" + GO, "<check> says 'maybe', not no or yes"),
        ("<check>yes</check>" + GO, "no <update>"),
        (WRITE + WRITE + END, "2 times <check>"),
    ],
)
def test_a_malformed_reply_keeps_the_memory_and_reads_on(reply: str, reason: str) -> None:
    trajectory = play(policy(GATED, reply_tokens=120), WRITE + GO, reply, SKIP + END)
    assert [event["text"] for event in details(trajectory, "memory")] == ["Anna is blue."] * 3
    assert [event["reason"] for event in details(trajectory, "malformed")] == [reason]


def test_gate_rewards_by_hand() -> None:
    """Line 3 of 4 holds the evidence: writing is right there alone, and ending from there on."""
    layer = load("layer", "examples.gated:GateReward")(base_codec())
    trajectory = play(policy(GATED, reply_tokens=120), SKIP + GO, WRITE + GO, WRITE + GO, "broken")
    grade = layer(PROBLEM, trajectory, Grade(1.0))
    assert grade.per_turn == (2.0, 1.0, 1.0, 0.0, 0.0)
    assert (grade.value, grade.breakdown) == (1.0, {"gates": 0.8})


# ---- heads --------------------------------------------------------------------------------------------------------


def test_a_turn_rewrites_the_least_recently_updated_head_and_sees_all() -> None:
    trajectory = play(policy(HEADS, heads=2), "Bob.", "Cold.", "Blue.", "Ran.")
    decode = base_codec().decode
    pieces = [tuple(decode(turn.piece(name) or ()) for name in ("memory", "other_heads")) for turn in trajectory.turns]
    none = "No previous memory"
    assert pieces == [(none, none), (none, "Bob."), ("Bob.", "Cold."), ("Cold.", "Blue."), ("Blue.\nRan.", "")]


def test_memory_metrics_cover_all_heads_together() -> None:
    trajectory = play(policy(HEADS, heads=2), LINES[0], LINES[1], LINES[2], "Omar is red.")
    reads = readings(trajectory, GroupTexts(base_codec()))
    assert [reading.memory_after.text for reading in reads][1:] == [
        f"{LINES[0]}\n{LINES[1]}",
        f"{LINES[2]}\n{LINES[1]}",
        f"{LINES[2]}\nOmar is red.",
    ]
    assert [evidence_retention(PROBLEM, read.memory_after.text) for read in reads] == [0.0, 0.0, 1.0, 1.0]
    assert [unsupported(read) for read in reads] == [(), (), (), ("Omar is red.",)]
    assert not reads[3].memory_after.holds(flat(LINES[1]))


# ---- a script that teaches a format --------------------------------------------------------------------------


def test_episodes_of_a_script_have_the_form_of_its_policy_and_are_imitated(tmp_path: Path) -> None:
    """The commands of docs/how-to/warm-start.md, smaller."""
    page = (ROOT / "docs/how-to/warm-start.md").read_text("utf-8")
    evaluate, imitate, _ = (
        page.split("## Any reply format")[1].split("```")[1].removeprefix("sh\n").strip().splitlines()
    )
    for command in (evaluate.replace("--limit 300", "--limit 12"), imitate.replace("max_steps=300", "max_steps=1")):
        words = shlex.split(command.replace("runs/", f"{tmp_path}/"))[1:]
        assert app(words, standalone_mode=False) in (None, 0)
    chosen = read_trajectories(tmp_path / "script", min_grade=1.0)
    assert chosen.below > 0  # it guesses among the facts about a person
    gates = [event.detail for one in chosen.trajectories for event in one.events if event.kind == "gates"]
    assert len(gates) == 2 * len(chosen.trajectories)  # no reply was malformed
    assert {gate["update"] for gate in gates} == {True, False}
    assert (tmp_path / "gates" / "checkpoints" / "step-000001").is_dir()
