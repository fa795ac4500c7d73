"""Evaluation: nothing leaves the denominator unseen, and a killed run loses nothing that was finished."""

from __future__ import annotations

import asyncio
import json
import math
import os
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.quickstart.quickstart_plan import resolve_quickstart
from palimpsest.app.quickstart.quickstart_run import Shard, samples_of
from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import DataError, RunError, SamplerError
from palimpsest.evaluation.runner import Arena, Entry, Measure, play_entries, summaries_of
from palimpsest.evaluation.sample_log import IDENTITY, SAMPLES, Cell, Sample, SampleLog, read_samples
from palimpsest.evaluation.statistics import wilson
from palimpsest.evaluation.summary import EvalSummary, score, summarise
from palimpsest.files import NoRegularFile
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Outcome, Problem, SamplingParams, StopReason, Trajectory

CELL = Cell("eval", None, None, "agent")


@dataclass
class EchoSampler:
    """Repeats the end of the prompt; fails for prompts that hold a forbidden token; counts what is in flight."""

    max_context: int = 512
    fails_on: int | None = None
    stops_after: int | None = None
    calls: int = 0
    flying: int = 0
    most: int = 0

    async def generate(self, prompt_ids: Any, params: SamplingParams, **options: Any) -> Completion:
        self.calls += 1
        if self.stops_after is not None and self.calls > self.stops_after:
            raise KeyboardInterrupt
        self.flying += 1
        self.most = max(self.most, self.flying)
        for _ in range(len(prompt_ids) % 5 + 1):
            await asyncio.sleep(0)
        self.flying -= 1
        if self.fails_on in prompt_ids:
            raise SamplerError("no")
        ids = tuple(prompt_ids[-3:])
        return Completion(ids, (0.0,) * len(ids), StopReason.STOP)


@dataclass
class OneCall(MemoryPolicy):
    """Asks once with the question's tokens."""

    async def run(self, problem: Problem, model: Model) -> Answered:
        if not problem.context:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        completion = await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=4)
        return Answered(model.codec.decode(completion.token_ids, control=False))


@dataclass
class Contains:
    """1.0 if the gold stands in the answer; ungraded where the episode was lost."""

    graded: list[str] = field(default_factory=list)

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        self.graded.append(problem.id)
        if not trajectory.outcome.gradable:
            return Grade(None, "lost")
        right = float(problem.answers[0] in (trajectory.answer or ""))
        return Grade(right, breakdown={"em": right})


def problems(count: int = 6) -> list[Problem]:
    """Every second question ends in its answer."""
    return [
        Problem(
            f"p{i}",
            f"question number {i}: {'yes' if i % 2 else 'no'}",
            ("yes",),
            "text",
            {"chunks": 1 + i % 3},
        )
        for i in range(count)
    ]


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


def test_accuracy_is_the_share_of_all_problems(tiny_codec: Codec, tmp_path: Path) -> None:
    summary = play(tiny_codec, tmp_path)
    right = [line["value"] for line in lines(tmp_path)]
    assert summary.accuracy.mean == sum(right) / 6
    assert 0 < sum(right) < 6


def test_an_episode_without_an_answer_is_wrong_and_not_missing(tiny_codec: Codec) -> None:
    given = [*problems(3), Problem("empty", "question?", ("yes",), None)]
    summary = play(tiny_codec, problems=given)
    assert (summary.problems, summary.graded, summary.ungraded) == (4, 4, 0)
    assert summary.outcomes["empty_context"] == 1
    assert summary.accuracy.mean == pytest.approx(1 / 4)


def test_a_lost_episode_is_reported_beside_the_accuracy(tiny_codec: Codec) -> None:
    given = problems(4)
    bad = tiny_codec.encode("§")[0]
    given.append(Problem("lost", "§ yes", ("yes",), "text"))
    summary = play(tiny_codec, sampler=EchoSampler(fails_on=bad), problems=given)
    assert (summary.problems, summary.graded, summary.ungraded) == (5, 4, 1)
    assert summary.ungraded_reasons == {"lost (sampler_error: no)": 1}
    assert summary.accuracy.mean == 2 / 4


def test_at_most_so_many_episodes_are_in_flight(tiny_codec: Codec) -> None:
    sampler = EchoSampler()
    play(tiny_codec, sampler=sampler, concurrency=3, problems=problems(20))
    assert sampler.most == 3


def test_the_summary_does_not_depend_on_concurrency(tiny_codec: Codec) -> None:
    assert play(tiny_codec, concurrency=1) == play(tiny_codec, concurrency=6)


def test_a_second_run_plays_nothing_again(tiny_codec: Codec, tmp_path: Path) -> None:
    first = play(tiny_codec, tmp_path)
    sampler = EchoSampler()
    assert play(tiny_codec, tmp_path, sampler) == first
    assert sampler.calls == 0
    assert len(lines(tmp_path)) == 6


def test_an_interrupted_run_goes_on_where_it_stopped(tiny_codec: Codec, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(tiny_codec, tmp_path, EchoSampler(stops_after=3), concurrency=1)
    assert len(lines(tmp_path)) == 3
    sampler = EchoSampler()
    assert play(tiny_codec, tmp_path, sampler) == play(tiny_codec)
    assert sampler.calls == 3


def test_ungraded_episodes_are_played_again(tiny_codec: Codec, tmp_path: Path) -> None:
    bad = tiny_codec.encode("§")[0]
    given = [*problems(2), Problem("lost", "§ yes", ("yes",), "text")]
    play(tiny_codec, tmp_path, EchoSampler(fails_on=bad), problems=given)
    sampler = EchoSampler()
    summary = play(tiny_codec, tmp_path, sampler, problems=given)
    assert sampler.calls == 1
    assert summary.ungraded == 0


def test_a_log_cut_at_any_byte_loses_the_torn_episode_only(tiny_codec: Codec, tmp_path: Path) -> None:
    whole = play(tiny_codec, tmp_path)
    data = (tmp_path / SAMPLES).read_bytes()
    start = data[:-1].rfind(b"\n") + 1
    for cut in range(start, len(data)):
        (tmp_path / SAMPLES).write_bytes(data[:cut])
        sampler = EchoSampler()
        assert play(tiny_codec, tmp_path, sampler) == whole
        assert sampler.calls == 1
        assert len(lines(tmp_path)) == 6


def test_a_damaged_line_is_counted_and_its_episode_played_again(tiny_codec: Codec, tmp_path: Path) -> None:
    whole = play(tiny_codec, tmp_path)
    data = (tmp_path / SAMPLES).read_bytes().splitlines(keepends=True)
    data[2] = b'{"set": "eval", "id": 3\n'
    (tmp_path / SAMPLES).write_bytes(b"".join(data))
    assert read_samples(tmp_path / SAMPLES)[1] == 1
    sampler, warnings = EchoSampler(), list[str]()
    assert play(tiny_codec, tmp_path, sampler, on_warning=warnings.append) == whole
    assert sampler.calls == 1
    assert len(warnings) == 1
    assert f"{tmp_path / SAMPLES}: 1 unreadable lines" in warnings[0]


EDITED = [
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
]


@pytest.mark.parametrize(
    ("field", "value", "checksum"),
    [("value", "7", "old"), ("value", "1.0", "none"), *((*edit, own) for edit in EDITED for own in ("old", "right"))],
)
def test_an_edited_line_is_no_result(field: str, value: str, checksum: str, tiny_codec: Codec, tmp_path: Path) -> None:
    whole = play(tiny_codec, tmp_path)
    first, *rest = (tmp_path / SAMPLES).read_text("utf-8").splitlines(keepends=True)
    values = json.loads(first)
    old = values.pop("crc32")
    edited = json.dumps({**values, field: "HERE"}).replace('"HERE"', value)
    right = zlib.crc32(json.dumps(json.loads(edited), ensure_ascii=False, sort_keys=True).encode())
    if checksum != "none":
        edited = f'{edited[:-1]}, "crc32": {old if checksum == "old" else right}}}'
    (tmp_path / SAMPLES).write_text("".join([edited, "\n", *rest]), "utf-8")
    found, unreadable = read_samples(tmp_path / SAMPLES)
    assert (len(found), unreadable) == (5, 1)
    assert play(tiny_codec, tmp_path) == whole


def test_what_is_nested_too_deep_is_unreadable(tiny_codec: Codec, tmp_path: Path) -> None:
    whole = play(tiny_codec, tmp_path, identity={"seed": 0})
    with (tmp_path / SAMPLES).open("a") as log:
        log.write("[" * 100_000 + "\n")
    assert read_samples(tmp_path / SAMPLES)[1] == 1
    assert play(tiny_codec, tmp_path, identity={"seed": 0}) == whole
    (tmp_path / IDENTITY).write_text("[" * 100_000)
    with pytest.raises(RunError, match="not readable"):
        play(tiny_codec, tmp_path, identity={"seed": 0})


def test_a_log_of_another_evaluation_is_not_continued(tiny_codec: Codec, tmp_path: Path) -> None:
    play(tiny_codec, tmp_path, identity={"model": "a", "seed": 0})
    play(tiny_codec, tmp_path, identity={"model": "a", "seed": 0})
    with pytest.raises(RunError, match="model was 'a', is 'b'"):
        play(tiny_codec, tmp_path, identity={"model": "b", "seed": 0})
    assert json.loads((tmp_path / IDENTITY).read_text())["model"] == "a"


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
def test_a_length_that_is_no_number_costs_no_episode(
    tiny_codec: Codec, tmp_path: Path, metadata: dict[str, Any], length: int | None
) -> None:
    play(tiny_codec, tmp_path, problems=[Problem("p", "question: yes", ("yes",), "text", metadata)])
    assert [line["length"] for line in lines(tmp_path)] == [length]


def test_repeated_ids_are_refused(tiny_codec: Codec) -> None:
    with pytest.raises(DataError, match="p0 occurs 2 times"):
        play(tiny_codec, problems=[*problems(2), *problems(1)])


def test_one_pool_plays_several_entries_and_keeps_their_cells_apart(tiny_codec: Codec, tmp_path: Path) -> None:
    cells = [CELL, replace(CELL, set="other"), replace(CELL, size=4), replace(CELL, player="recall")]
    cells += [replace(CELL, baseline=True, player="retrieval")]
    entries = [Entry(cell, OneCall(), problems(count)) for count, cell in enumerate(cells, 1)]
    samples = asyncio.run(play_entries(entries, arena_of(tiny_codec, EchoSampler()), out=tmp_path))
    assert [(each.cell, each.problems) for each in summaries_of(entries, samples)] == [
        (cell, count) for count, cell in enumerate(cells, 1)
    ]
    logged, _ = read_samples(tmp_path / SAMPLES)
    assert {(sample.cell, sample.id) for sample in logged} == {
        (cell, f"p{at}") for count, cell in enumerate(cells, 1) for at in range(count)
    }


def test_a_cell_that_is_named_twice_is_refused(tiny_codec: Codec) -> None:
    entries = [Entry(CELL, OneCall(), problems(1)), Entry(CELL, OneCall(), problems(2)[1:])]
    with pytest.raises(DataError, match="2 evaluations are called agent, eval"):
        asyncio.run(play_entries(entries, arena_of(tiny_codec, EchoSampler())))


def test_measures_of_the_caller_are_logged_and_averaged(tiny_codec: Codec, tmp_path: Path) -> None:
    summary = play(tiny_codec, tmp_path, measure=lambda p, t, g, _: {"x": float(p.id[1:])} if p.id != "p5" else {})
    assert summary.measures == {"x": (0 + 1 + 2 + 3 + 4) / 5}
    assert sum("x" in line["measures"] for line in lines(tmp_path)) == 5


def sample(index: int, value: float | None, length: int | None = None, tokens: int = 10) -> Sample:
    return Sample(
        **asdict(CELL),
        id=f"p{index}",
        question="q",
        answers=("a",),
        answer="a",
        memory=None,
        outcome="answered",
        value=value,
        reason=None,
        length=length,
        turns=1,
        prompt_tokens=tokens,
        sampled_tokens=2,
    )


def test_figures_by_document_length_agree_with_counting_by_hand() -> None:
    rows = [sample(0, 1.0, 4, 10), sample(1, 0.0, 4, 30), sample(2, 1.0, 16, 100), sample(3, None, 16, 0)]
    summary = summarise(CELL, rows)
    by_length = {part.length: part for part in summary.lengths}
    assert (by_length[4].accuracy.mean, by_length[4].tokens_per_document) == (0.5, 22.0)
    assert (by_length[16].accuracy.mean, by_length[16].problems, by_length[16].graded) == (1.0, 2, 1)
    assert summary.accuracy.mean == pytest.approx(2 / 3)


def test_the_order_of_samples_does_not_matter() -> None:
    rows = [sample(i, i / 7) for i in range(7)]
    assert summarise(CELL, rows) == summarise(CELL, rows[::-1])


def shard_of(folder: Path, model: Path, *overrides: str) -> Shard:
    small = ["evaluation.sizes=[1]", "data.curriculum=null", "data.synthetic.chunks=1"]
    small += ["policy.options.memory_tokens=4", "policy.options.answer_tokens=4", "policy.options.question_tokens=60"]
    config = resolve_quickstart("memagent", [f"model.path={model}", *small, *overrides]).config
    plain = config.evaluation.model_copy(update={"baselines": {}})
    return Shard(config.model_copy(update={"evaluation": plain}), folder, "agent", str(model))


def test_a_resumed_quickstart_plays_anew_what_was_sampled_otherwise_and_counts_what_is_asked_for_alone(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    parts, messages = list[int](), list[str]()

    def say(said: int | str) -> None:
        (messages if isinstance(said, str) else parts).append(said)

    def turns_of(shard: Shard) -> int:
        return sum(sample.turns for sample in shard.samples())

    def play_with(*overrides: str) -> tuple[Shard, int]:
        shard, before = shard_of(tmp_path, tiny_model_folder, *overrides), sum(parts)
        asyncio.run(shard.play(say))
        return shard, sum(parts) - before

    started, first = play_with("evaluation.problems=2")
    assert first == turns_of(started) >= 2
    grown, more = play_with("evaluation.problems=3")
    assert more == turns_of(grown) - first >= 1
    (cell,) = samples_of([grown])
    assert (cell.player, cell.size, cell.unit, cell.baseline) == ("agent", 1, "chunks", False)
    assert len(samples_of([grown])[cell]) == 3
    shrunk, fewer = play_with("evaluation.problems=1")
    assert fewer == 0
    assert {own: len(samples) for own, samples in samples_of([shrunk]).items()} == {cell: 1}
    warm, second = play_with("evaluation.problems=2", "eval_sampling.temperature=1.0")
    assert second == turns_of(warm) >= 2
    assert [text.startswith("weights or settings changed") for text in messages] == [True]
    assert len(read_samples(warm.path / SAMPLES)[0]) == 2
    assert len(read_samples(tmp_path / "evaluations" / "after" / "shard-1-of-1.old-1" / SAMPLES)[0]) == 3


@pytest.mark.parametrize(("right", "n"), [(0, 10), (3, 10), (64, 64), (1, 1)])
def test_wilsons_interval_is_where_the_score_test_just_accepts(right: int, n: int) -> None:
    """Independent check: at each end p, |right/n - p| is 1.96 standard errors of p."""
    for end in wilson(right, n):
        if 0 < end < 1:
            assert abs(right / n - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, abs=1e-4)
    low, high = wilson(right, n)
    assert low <= right / n <= high


def test_fractional_values_get_an_interval_that_repeats() -> None:
    values = [0.0, 0.5, 1.0, 0.25] * 10
    first = score(values)
    assert first == score(values)
    assert first.low is not None
    assert first.high is not None
    spread = 1.96 * 0.37 / math.sqrt(40)  # normal approximation
    assert first.high - first.low == pytest.approx(2 * spread, rel=0.25)


def test_lone_surrogates_and_control_characters_do_not_break_the_log(tmp_path: Path) -> None:
    odd = replace(sample(0, 1.0), question="q\ud800\x1b\u2028", answer="line\nbreak")
    with SampleLog(tmp_path) as log:
        log.append(odd)
        log.append(sample(1, 1.0))
    found, unreadable = read_samples(tmp_path / SAMPLES)
    assert (len(found), unreadable) == (2, 0)
    assert found[0].answer == "line\nbreak"


@pytest.mark.parametrize("name", ["samples.jsonl", "evaluation.json"])
def test_a_pipe_in_an_evaluation_is_named_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((NoRegularFile, RunError)) as error:
        SampleLog(tmp_path, {"a": 1})
    assert str(tmp_path / name) in str(error.value)
