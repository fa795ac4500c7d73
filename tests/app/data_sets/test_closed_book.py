"""What a model knows without the document is left out, at a real endpoint on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.memorized_filter import filter_known
from palimpsest.config.reward import JudgeConfig
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.errors import DataError, JudgeError, RunError
from palimpsest.progress.reporter import Silent, Tick
from support.judge_server import judge_server

ROWS = [
    {
        "_id": f"q{i}",
        "question": f"Who is {i}?",
        "answer": f"name {i}",
        "supporting_facts": [["T", 0]],
        "context": [["T", [f"Text of {i}."]], ["U", ["Other."]]],
        "level": None,
    }
    for i in range(6)
]


def asked_of(request: dict[str, Any]) -> int:
    assert "Text of" not in json.dumps(request), "the document is not shown"
    return int(request["messages"][-1]["content"].rpartition("Who is ")[2].rstrip("?"))


def knows_the_even(request: dict[str, Any], before: int) -> str:
    number = asked_of(request)
    return f"It is \\boxed{{Name {number}}}." if number % 2 == 0 and before > 5 else "I guess \\boxed{nobody}."


def config(url: str) -> JudgeConfig:
    return JudgeConfig(url=url, model="m", temperature=1.0, attempts=2, concurrency=1)


def test_known_questions_are_left_out_and_the_others_stay_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    with judge_server(lambda request, before: knows_the_even(request, before + 6)) as server:
        done = filter_known(tmp_path / "a.json", config(server.url), out=tmp_path / "out.jsonl", asks=2)
    assert (done.kept, done.known, done.unanswered) == (3, 3, 0)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ROWS[1::2]
    assert [problem.id for problem in read_problems(tmp_path / "out.jsonl")] == ["q1", "q3", "q5"]
    assert len(server.requests) == 3 + 2 * 3  # a known one is not asked again
    assert not any("response_format" in request for request in server.requests)
    assert {request["temperature"] for request in server.requests} == {1.0}


def test_one_right_reply_of_several_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS[:2]))
    seen: dict[int, int] = {}

    def second_time(request: dict[str, Any], _: int) -> str:
        number = asked_of(request)
        seen[number] = seen.get(number, 0) + 1
        return f"name {number}" if number == 0 and seen[0] == 3 else "nobody"

    with judge_server(second_time) as server:
        done = filter_known(tmp_path / "a.json", config(server.url), out=tmp_path / "out.jsonl", asks=3)
    assert (done.kept, done.known) == (1, 1)


def test_questions_without_a_reply_stay_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))

    def refuses_one(request: dict[str, Any], _: int) -> Any:
        return (401, "no") if asked_of(request) == 3 else "nobody"

    with judge_server(refuses_one) as server:
        done = filter_known(tmp_path / "a.json", config(server.url), out=tmp_path / "out.jsonl", asks=1)
    assert (done.kept, done.unanswered) == (6, 1)
    with judge_server(lambda *_: (401, "no")) as server, pytest.raises(JudgeError, match="status 401"):
        filter_known(tmp_path / "a.json", config(server.url), out=tmp_path / "none.jsonl", asks=1)
    assert not (tmp_path / "none.jsonl").exists()


def test_a_probing_that_was_ended_goes_on_and_asks_for_what_is_lacking(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    out = tmp_path / "out.jsonl"

    class Stops(Silent):
        """Ends it after four questions."""

        @contextmanager
        def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
            ticks = iter(range(4))

            def tick(done: int = 1, *, note: str | None = None) -> None:
                if next(ticks) == 3:
                    raise RunError("stopped")

            yield tick

    with judge_server(lambda request, before: knows_the_even(request, before + 6)) as server:
        with pytest.raises(RunError, match="stopped"):
            filter_known(tmp_path / "a.json", config(server.url), out=out, asks=2, progress=Stops())
        asked = {asked_of(request) for request in server.requests}
        assert not out.exists()
        before = len(server.requests)
        done = filter_known(tmp_path / "a.json", config(server.url), out=out, asks=2)
        again = {asked_of(request) for request in server.requests[before:]}
    assert (done.kept, done.known) == (3, 3)
    assert len(asked & again) <= len(asked) - 4  # what was found is not asked for again
    assert [json.loads(line) for line in out.read_text().splitlines()] == ROWS[1::2]
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "out.jsonl"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--endpoint", "ftp://x"), "--endpoint 'ftp://x': give one like http://127.0.0.1:8000/v1"),
        (("--endpoint", "http://a:b@x/v1"), "--endpoint: the address holds a user or a password"),
        (("--api-key-env", "NOT_THERE_X"), "--api-key-env=NOT_THERE_X: the environment has no such variable"),
        (("--model", ""), "--model '': give another value"),
    ],
)
def test_errors_name_the_options_of_the_command(
    more: tuple[str, ...], told: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    given = {"--endpoint": "http://127.0.0.1:1/v1", "--model": "m", "--out": str(tmp_path / "out")}
    given |= {more[0]: more[1]}
    options = [word for pair in given.items() for word in pair]
    assert told in refused("data", "filter", str(tmp_path / "a.json"), *options)


def test_the_command_tells_the_counts(tmp_path: Path, palimpsest: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    with judge_server(lambda request, before: knows_the_even(request, before + 6)) as server:
        command = ["data", "filter", str(tmp_path / "a.json"), "--endpoint", server.url, "--model", "m"]
        done = palimpsest(*command, "--out", str(tmp_path / "out.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "3 questions; left out, answered without the document: 3" in done.stdout


def test_what_cannot_be_filtered_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    with judge_server(lambda request, _: f"name {asked_of(request)}") as server:
        with pytest.raises(DataError, match="all 6 questions are answered without"):
            filter_known(tmp_path / "a.json", config(server.url), out=tmp_path / "out.jsonl")
        with pytest.raises(RunError, match="is there"):
            filter_known(tmp_path / "a.json", config(server.url), out=tmp_path / "a.json")
    assert not (tmp_path / "out.jsonl").exists()
