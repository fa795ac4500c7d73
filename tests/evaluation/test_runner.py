"""Evaluation: no episode leaves the denominator unreported, and a killed run loses no finished episode."""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.quickstart.quickstart_plan import resolve_quickstart
from palimpsest.app.quickstart.quickstart_run import Shard, samples_of
from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import DataError, RunError, SamplerError
from palimpsest.evaluation.runner import Arena, Entry, Measure, play_entries, summaries_of
from palimpsest.evaluation.sample_log import IDENTITY, SAMPLES, Cell, SampleLog, read_samples
from palimpsest.evaluation.summary import EvalSummary
from palimpsest.files import NoRegularFile
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Outcome, Problem, SamplingParams, StopReason, Trajectory
from support.evaluations import sample

CELL = Cell("eval", None, None, "agent")


@dataclass
class EchoSampler:
    """Repeats the end of the prompt; fails for prompts with a forbidden token; counts calls in flight and tasks."""

    max_context: int = 512
    fails_on: int | None = None
    stops_after: int | None = None
    calls: int = 0
    in_flight: int = 0
    most: int = 0
    tasks: int = 0

    async def generate(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Completion:
        self.calls += 1
        if self.stops_after is not None and self.calls > self.stops_after:
            raise KeyboardInterrupt
        self.in_flight += 1
        self.most, self.tasks = max(self.most, self.in_flight), max(self.tasks, len(asyncio.all_tasks()))
        for _ in range(len(prompt_ids) % 5 + 1):
            await asyncio.sleep(0)
        self.in_flight -= 1
        if self.fails_on in prompt_ids:
            raise SamplerError("no")
        ids = tuple(prompt_ids[-3:])
        return Completion(ids, (0.0,) * len(ids), StopReason.STOP)


class OneCall(MemoryPolicy):
    async def run(self, problem: Problem, model: Model) -> Answered:
        if not problem.context:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        completion = await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=4)
        return Answered(model.codec.decode(completion.token_ids, control=False))


class Contains:
    """1.0 if the gold is in the answer; a lost episode is ungraded."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        if not trajectory.outcome.gradable:
            return Grade(None, "lost")
        right = float(problem.answers[0] in (trajectory.answer or ""))
        return Grade(right, breakdown={"em": right})


def problems(count: int = 6) -> list[Problem]:
    """Problems of which every second question ends in its answer."""
    texts = [f"question number {i}: {'yes' if i % 2 else 'no'}" for i in range(count)]
    return [Problem(f"p{i}", text, ("yes",), "text", {"chunks": 1 + i % 3}) for i, text in enumerate(texts)]


def play(codec: Codec, out: Path | None = None, sampler: EchoSampler | None = None, **options: Any) -> EvalSummary:
    entries = [Entry(CELL, OneCall(), options.pop("problems", problems()))]
    arena = arena_of(codec, sampler or EchoSampler(), options.pop("measure", None))
    samples = asyncio.run(play_entries(entries, arena, out=out, **options))
    (summary,) = summaries_of(entries, samples)
    return summary


def arena_of(codec: Codec, sampler: EchoSampler, measure: Measure | None = None) -> Arena:
    return Arena(sampler, codec, Contains(), SamplingConfig(temperature=0.0), (0,), measure=measure)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / SAMPLES).read_text("utf-8").splitlines()]


def test_an_episode_without_an_answer_is_wrong_and_not_missing(tiny_codec: Codec) -> None:
    summary = play(tiny_codec, problems=[*problems(3), Problem("empty", "question?", ("yes",), None)])
    assert (summary.problems, summary.graded, summary.ungraded) == (4, 4, 0)
    assert summary.outcomes["empty_context"] == 1
    assert summary.accuracy.mean == pytest.approx(1 / 4)


def test_a_lost_episode_is_reported_next_to_the_accuracy_and_played_again(tiny_codec: Codec, tmp_path: Path) -> None:
    four_and_lost = [*problems(4), Problem("lost", "§ yes", ("yes",), "text")]
    summary = play(tiny_codec, tmp_path, EchoSampler(fails_on=tiny_codec.encode("§")[0]), problems=four_and_lost)
    assert (summary.problems, summary.graded, summary.ungraded) == (5, 4, 1)
    assert summary.ungraded_reasons == {"lost (sampler_error: no)": 1}
    assert summary.accuracy.mean == 2 / 4
    sampler = EchoSampler()
    assert play(tiny_codec, tmp_path, sampler, problems=four_and_lost).ungraded == 0
    assert sampler.calls == 1


@pytest.mark.parametrize("concurrency", [1, 3, 100_000])
def test_concurrency_bounds_episodes_in_flight_and_tasks_and_changes_no_summary(
    concurrency: int, tiny_codec: Codec
) -> None:
    sampler = EchoSampler()
    assert play(tiny_codec, sampler=sampler, concurrency=concurrency) == play(tiny_codec)
    assert sampler.most == min(concurrency, 6)
    assert sampler.tasks <= 2 * 6 + 2


def test_an_interrupted_run_continues_where_it_stopped(tiny_codec: Codec, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(tiny_codec, tmp_path, EchoSampler(stops_after=3), concurrency=1)
    assert len(lines(tmp_path)) == 3
    sampler = EchoSampler()
    assert play(tiny_codec, tmp_path, sampler) == play(tiny_codec)
    assert sampler.calls == 3


def test_a_log_cut_at_any_byte_loses_only_the_torn_episode(tiny_codec: Codec, tmp_path: Path) -> None:
    complete = play(tiny_codec, tmp_path)
    data = (tmp_path / SAMPLES).read_bytes()
    start = data[:-1].rfind(b"\n") + 1
    for cut in range(start, len(data)):
        (tmp_path / SAMPLES).write_bytes(data[:cut])
        sampler = EchoSampler()
        assert play(tiny_codec, tmp_path, sampler) == complete
        assert sampler.calls == 1
        assert len(lines(tmp_path)) == 6


def test_a_damaged_line_is_counted_and_its_episode_played_again(tiny_codec: Codec, tmp_path: Path) -> None:
    complete = play(tiny_codec, tmp_path)
    data = (tmp_path / SAMPLES).read_bytes().splitlines(keepends=True)
    data[2] = b'{"set": "eval", "id": 3\n'
    (tmp_path / SAMPLES).write_bytes(b"".join(data))
    assert read_samples(tmp_path / SAMPLES)[1] == 1
    sampler, warnings = EchoSampler(), list[str]()
    assert play(tiny_codec, tmp_path, sampler, on_warning=warnings.append) == complete
    assert sampler.calls == 1
    assert len(warnings) == 1
    assert f"{tmp_path / SAMPLES}: 1 unreadable lines" in warnings[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("value", "NaN"),
        ("value", "true"),
        ("value", "1e999"),
        ("turns", '"2"'),
        ("turns", "-1"),
        ("prompt_tokens", "1" + "0" * 400),
        ("metrics", "[]"),
        ("metrics", '{"em": "1"}'),
        ("id", '["a"]'),
        ("answers", '"a"'),
        ("questions", "[{}]"),
        ("crc33", "1"),
    ],
)
@pytest.mark.parametrize("checksum", ["old", "right", "none"])
def test_an_edited_line_is_no_result(field: str, value: str, checksum: str, tiny_codec: Codec, tmp_path: Path) -> None:
    summary = play(tiny_codec, tmp_path)
    first, *rest = (tmp_path / SAMPLES).read_text("utf-8").splitlines(keepends=True)
    values = json.loads(first)
    old = values.pop("crc32")
    edited = json.dumps({**values, field: "HERE"}).replace('"HERE"', value)
    right = zlib.crc32(json.dumps(json.loads(edited), ensure_ascii=False, sort_keys=True).encode())
    if checksum != "none":
        edited = f'{edited[:-1]}, "crc32": {old if checksum == "old" else right}}}'
    (tmp_path / SAMPLES).write_text("".join([edited, "\n", *rest]), "utf-8")
    samples, unreadable = read_samples(tmp_path / SAMPLES)
    assert (len(samples), unreadable) == (5, 1)
    assert play(tiny_codec, tmp_path) == summary


def test_a_log_of_another_evaluation_is_not_continued(tiny_codec: Codec, tmp_path: Path) -> None:
    identity = {"model": "a", "seed": 0}
    for _ in range(2):
        play(tiny_codec, tmp_path, identity=identity)
    with pytest.raises(RunError, match="model was 'a', is 'b'"):
        play(tiny_codec, tmp_path, identity={"model": "b", "seed": 0})
    assert json.loads((tmp_path / IDENTITY).read_text())["model"] == "a"
    with (tmp_path / SAMPLES).open("a") as log:
        log.write("[" * 100_000 + "\n")  # nested too deep
    play(tiny_codec, tmp_path, identity=identity)
    assert read_samples(tmp_path / SAMPLES)[1] == 1
    (tmp_path / IDENTITY).write_text("[" * 100_000)
    with pytest.raises(RunError, match="not readable"):
        play(tiny_codec, tmp_path, identity=identity)


def test_lone_surrogates_and_control_characters_do_not_break_the_log(tmp_path: Path) -> None:
    with SampleLog(tmp_path) as log:
        log.append(sample("a", 1.0, question="q\ud800\x1b\u2028", answer="line\nbreak"))
        log.append(sample("b", 1.0))
    samples, unreadable = read_samples(tmp_path / SAMPLES)
    assert (len(samples), unreadable) == (2, 0)
    assert samples[0].answer == "line\nbreak"


def test_a_log_longer_than_one_read_is_complete(
    tiny_codec: Codec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = play(tiny_codec, tmp_path)
    data, pread, sampler = (tmp_path / SAMPLES).read_bytes(), os.pread, EchoSampler()
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, len(data) // 2), at))
    assert play(tiny_codec, tmp_path, sampler) == summary
    assert (sampler.calls, (tmp_path / SAMPLES).read_bytes()) == (0, data)


def test_two_processes_cannot_write_one_log(tmp_path: Path) -> None:
    with SampleLog(tmp_path), pytest.raises(RunError, match="another process"):
        SampleLog(tmp_path)
    SampleLog(tmp_path).close()


@pytest.mark.parametrize(
    ("metadata", "length"),
    [
        ({"chunks": ["a", "b"]}, None),
        ({"chunks": ["a", "b"], "num_docs": 20}, 20),
        ({"num_docs": "many"}, None),
        ({"num_docs": 20, "chunks": 4}, 4),
    ],
)
def test_a_length_that_is_not_a_number_loses_no_episode(
    tiny_codec: Codec, tmp_path: Path, metadata: dict[str, Any], length: int | None
) -> None:
    play(tiny_codec, tmp_path, problems=[Problem("p", "question: yes", ("yes",), "text", metadata)])
    assert [line["length"] for line in lines(tmp_path)] == [length]


def test_repeated_ids_are_rejected(tiny_codec: Codec) -> None:
    with pytest.raises(DataError, match="p0 occurs 2 times"):
        play(tiny_codec, problems=[*problems(2), *problems(1)])


def test_one_pool_plays_several_entries_in_separate_cells(tiny_codec: Codec, tmp_path: Path) -> None:
    cells = [CELL, replace(CELL, set="other"), replace(CELL, size=4), replace(CELL, player="recall")]
    cells += [replace(CELL, baseline=True, player="retrieval")]
    entries = [Entry(cell, OneCall(), problems(count)) for count, cell in enumerate(cells, 1)]
    samples = asyncio.run(play_entries(entries, arena_of(tiny_codec, EchoSampler()), out=tmp_path))
    assert [(summary.cell, summary.problems) for summary in summaries_of(entries, samples)] == [
        (cell, count) for count, cell in enumerate(cells, 1)
    ]
    logged, _ = read_samples(tmp_path / SAMPLES)
    assert {(sample.cell, sample.id) for sample in logged} == {
        (cell, f"p{at}") for count, cell in enumerate(cells, 1) for at in range(count)
    }


def test_a_cell_that_is_named_twice_is_rejected(tiny_codec: Codec) -> None:
    entries = [Entry(CELL, OneCall(), problems(1)), Entry(CELL, OneCall(), problems(2)[1:])]
    with pytest.raises(DataError, match="2 evaluations are called agent, eval"):
        asyncio.run(play_entries(entries, arena_of(tiny_codec, EchoSampler())))


def test_custom_measures_are_logged_and_averaged(tiny_codec: Codec, tmp_path: Path) -> None:
    summary = play(tiny_codec, tmp_path, measure=lambda p, t, g, _: {"x": float(p.id[1:])} if p.id != "p5" else {})
    assert summary.measures == {"x": (0 + 1 + 2 + 3 + 4) / 5}
    assert sum("x" in line["measures"] for line in lines(tmp_path)) == 5


def shard_of(folder: Path, model: Path, *overrides: str) -> Shard:
    small = ["evaluation.sizes=[1]", "data.curriculum=null", "data.synthetic.chunks=1"]
    small += [f"policy.options.{key}_tokens={n}" for key, n in {"memory": 4, "answer": 4, "question": 60}.items()]
    config = resolve_quickstart("memagent", [f"model.path={model}", *small, *overrides]).config
    plain = config.evaluation.model_copy(update={"baselines": {}})
    return Shard(config.model_copy(update={"evaluation": plain}), folder, "agent", str(model))


def test_a_resumed_quickstart_replays_only_samples_of_other_settings_and_counts_only_requested_ones(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    turns, messages = list[int](), list[str]()

    def report(progress: int | str) -> None:
        (messages if isinstance(progress, str) else turns).append(progress)

    def turns_of(shard: Shard) -> int:
        return sum(sample.turns for sample in shard.samples())

    def play_with(*overrides: str) -> tuple[Shard, int]:
        shard, before = shard_of(tmp_path, tiny_model_folder, *overrides), sum(turns)
        asyncio.run(shard.play(report))
        return shard, sum(turns) - before

    started, first = play_with("evaluation.problems=2")
    assert first == turns_of(started) >= 2
    grown, more = play_with("evaluation.problems=3")
    assert more == turns_of(grown) - first >= 1
    ((cell, samples),) = samples_of([grown]).items()
    assert (cell.player, cell.size, cell.unit, cell.baseline, len(samples)) == ("agent", 1, "chunks", False, 3)
    shrunk, fewer = play_with("evaluation.problems=1")
    assert fewer == 0
    assert {cell: len(samples) for cell, samples in samples_of([shrunk]).items()} == {cell: 1}
    warm, second = play_with("evaluation.problems=2", "eval_sampling.temperature=1.0")
    assert second == turns_of(warm) >= 2
    assert [text.startswith("weights or settings changed") for text in messages] == [True]
    assert len(read_samples(warm.path / SAMPLES)[0]) == 2
    assert len(read_samples(tmp_path / "evaluations" / "after" / "shard-1-of-1.old-1" / SAMPLES)[0]) == 3


@pytest.mark.parametrize("name", ["samples.jsonl", "evaluation.json"])
def test_a_pipe_in_an_evaluation_is_an_error(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((NoRegularFile, RunError)) as error:
        SampleLog(tmp_path, {"a": 1})
    assert str(tmp_path / name) in str(error.value)
