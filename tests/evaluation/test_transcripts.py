"""Episodes as text: where a fact was read, kept, lost; bounded; nothing of it moves a terminal."""

from __future__ import annotations

import errno
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.composition import measure_memory
from palimpsest.evaluation.episode_files import Transcripts, transcript
from palimpsest.evaluation.runner import Ended, sample_of
from palimpsest.metrics.reading_trace import Texts
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Outcome, Problem, Prompt, StopReason, Trajectory, Turn

ASKED = Problem("p", "Where does Anna live?", ("Rome",), "Anna lives in Rome. Bob sleeps.")


def turn(codec: Codec, step: int, name: str, reply: str, **pieces: str) -> Turn:
    prompt = Prompt.joined([Prompt.named(piece, codec.encode(text)) for piece, text in pieces.items()])
    ids = tuple(codec.encode(reply))
    return Turn(prompt, Completion(ids, (0.0,) * len(ids), StopReason.STOP), step, name, spans=prompt.spans)


def episode(codec: Codec, **changes: Any) -> Trajectory:
    turns = (
        turn(codec, 0, "read", "Anna lives in Rome.", question="Where?", memory="none", section="Anna lives in Rome."),
        turn(codec, 1, "read", "Bob\x1b[31m sleeps.", question="Where?", memory="none", section="One.\n\nTwo."),
    )
    return Trajectory("p", "g", 0, turns, Outcome.ANSWERED, "unknown")


def test_each_turn_tells_what_was_read_and_written_one_line_each(tiny_codec: Any) -> None:
    lines = list(transcript(ASKED, episode(tiny_codec), Grade(0.0), Texts(tiny_codec)))
    assert lines == [
        "question | Where does Anna live?",
        "1 read memory | none",
        "1 read section | Anna lives in Rome.",
        "1 read reply | Anna lives in Rome.",
        "2 read section | One.",
        "2 read section | Two.",
        "2 read reply | Bob\\x1b[31m sleeps.",
        "answer | unknown",
        "gold | Rome",
        "grade | 0",
    ]


def test_an_episode_without_a_grade_tells_the_reason(tiny_codec: Any) -> None:
    lines = list(transcript(ASKED, episode(tiny_codec), Grade(None, "timed out"), Texts(tiny_codec)))
    assert lines[-1] == "grade | none: timed out"


def test_the_file_holds_whole_episodes_up_to_its_limit_and_says_that_more_are_left_out(
    tiny_codec: Any, tmp_path: Path
) -> None:
    file = Transcripts(tmp_path, 0.002)  # 2,000 bytes
    for number in range(20):
        file.add(f"set {number}", ASKED, episode(tiny_codec), Grade(0.0), Texts(tiny_codec))
    again = Transcripts(tmp_path, 0.002)
    again.add("later", ASKED, episode(tiny_codec), Grade(0.0), Texts(tiny_codec))
    text = (tmp_path / "transcripts.txt").read_text("utf-8")
    assert 1000 < len(text.encode()) <= 2000
    *whole, last = text.splitlines()
    assert last == "Further episodes are left out: evaluation.transcripts_mb=0.002"
    assert len(whole) % 10 == 0
    assert "later" not in text


def test_a_torn_line_is_cut_off_before_the_next_episode(tiny_codec: Any, tmp_path: Path) -> None:
    Transcripts(tmp_path, 1).add("first", ASKED, episode(tiny_codec), Grade(0.0), Texts(tiny_codec))
    whole = (tmp_path / "transcripts.txt").read_bytes()
    (tmp_path / "transcripts.txt").write_bytes(whole + b"first | p | ques")
    Transcripts(tmp_path, 1).add("later", ASKED, episode(tiny_codec), Grade(0.0), Texts(tiny_codec))
    assert (tmp_path / "transcripts.txt").read_bytes() == whole + whole.replace(b"first |", b"later |")


def test_a_full_disk_names_the_file(tiny_codec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda *_: Full())
    with pytest.raises(OSError, match=r"transcripts\.txt"):
        Transcripts(tmp_path, 1).add("first", ASKED, episode(tiny_codec), Grade(0.0), Texts(tiny_codec))


def test_what_is_recorded_of_an_episode_is_decoded_once(tiny_codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    played, decoded = episode(tiny_codec), list[tuple[int, ...]]()
    decode = tiny_codec.decode

    def counted(ids: Sequence[int], **how: Any) -> str:
        decoded.append(tuple(ids))
        return str(decode(ids, **how))

    monkeypatch.setattr(tiny_codec, "decode", counted)
    texts = Texts(tiny_codec)
    measured = measure_memory(ASKED, played, Grade(0.0), texts)
    lines = list(transcript(ASKED, played, Grade(0.0), texts))
    sample = sample_of(Ended("set", None, ASKED, played, Grade(0.0)), measured, texts)
    assert (set(measured) >= {"copy_fidelity"}, len(lines), sample.memory) == (True, 10, "Bob\x1b[31m sleeps.")
    assert decoded
    assert len(decoded) == len(set(decoded))
