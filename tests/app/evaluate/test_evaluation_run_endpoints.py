"""Evaluations whose model is behind an address: every mode, every kind of policy, killed, down and moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest import evaluate
from palimpsest.engines.endpoint import client as client_module
from palimpsest.evaluation.sample_log import read_samples
from support.agents import family_codec
from support.command import Run
from support.endpoint_server import Server, endpoint_server, reply
from support.interrupting import killed_at
from support.judge_server import Reply, honest, judge_server
from support.small_run import small_evaluation

LIMIT = ("engine.concurrency=2",)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.EndpointClient, "pause", 0.001)


def command(server: Server, tokenizer: Path, out: Path, *more: str) -> list[str]:
    """Four documents, read with small budgets."""
    words = small_evaluation(Path("served"), out)
    return [*words, "--base-url", server.url, "--tokenizer", str(tokenizer), *more]


def summary(out: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return read


@pytest.mark.parametrize("mode", ["tokens", "completions", "chat"])
def test_a_policy_plays_on_an_endpoint_and_the_summary_says_what_was_exact(
    mode: str, tmp_path: Path, tiny_model_folder: Path, palimpsest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_ENDPOINT", "s3cret")
    out = tmp_path / "out"
    with endpoint_server(Server(takes=mode)) as server:
        done = palimpsest(*command(server, tiny_model_folder, out, "--api-key-env", "OF_THE_ENDPOINT"))
    assert done.returncode == 0, done.stderr
    result = summary(out)["model_endpoint"]
    assert (result["url"], result["model"], result["mode"]) == (server.url, "served", mode)
    assert result["exact_ids"] is result["exact_prompt_ids"] is result["logprobs"] is (mode == "tokens")
    assert done.stderr.count(f"mode {mode}: ") == 1
    samples, _ = read_samples(out / "samples.jsonl")
    assert len(samples) == 4
    assert {sample.outcome for sample in samples} <= {"answered", "answer_truncated"}
    assert not [file for file in out.iterdir() if b"s3cret" in file.read_bytes()]


@pytest.mark.parametrize(("family", "played"), [("gemma4", False), ("llama3", True)])
def test_gemma_tool_calls_need_token_prompts(family: str, played: bool, tmp_path: Path, palimpsest: Run) -> None:
    """Gemma's calls are control tokens."""
    family_codec(family).save(tmp_path / "tokenizer")
    with endpoint_server(Server(takes="completions", speak=lambda body: "FINAL_ANSWER: Rome")) as server:
        done = palimpsest(
            *("eval", "served", "--base-url", server.url, "--tokenizer", str(tmp_path / "tokenizer"), "--limit", "1"),
            *("--data", "synthetic_search", "--objectives", "1", "--policy", "prune", "--no-baselines"),
            *("context_tokens=4000", "turn_tokens=256"),
        )
    assert done.returncode == (0 if played else 2), done.stderr
    assert ("engine.mode=completions" in done.stderr) is not played


SERVED: dict[str, Any] = {"root": "/a/Qwen3-8B", "name": "served-1"}


@pytest.mark.parametrize(
    ("other", "message"),
    [({**SERVED, "takes": "chat"}, "another evaluation (endpoint"), ({**SERVED, "root": "/b/Qwen3-4B"}, "Qwen3-4B")],
)
def test_an_evaluation_resumes_at_another_address_but_not_with_another_mode_or_model(
    other: dict[str, Any], message: str, tmp_path: Path, tiny_model_folder: Path, palimpsest: Run
) -> None:
    out = tmp_path / "out"
    with endpoint_server(Server(**SERVED)) as first:
        assert palimpsest(*command(first, tiny_model_folder, out, "--limit", "2")).returncode == 0
    assert summary(out)["model_endpoint"]["served"] == "root=Qwen3-8B, model=served-1"
    with endpoint_server(Server(**SERVED | {"root": "/b/Qwen3-8B"})) as second:
        assert palimpsest(*command(second, tiny_model_folder, out, "--limit", "4")).returncode == 0
    samples, _ = read_samples(out / "samples.jsonl")
    assert len(samples) == 4
    assert sum(sample.turns for sample in samples) == len(first.asked) - 1 + len(second.asked) - 1  # and a probe each
    with endpoint_server(Server(**other)) as server:
        ended = palimpsest(*command(server, tiny_model_folder, out, "--limit", "5"))
    assert (ended.returncode, message in ended.stderr) == (2, True)
    assert ("endpoint.served was" in ended.stderr) == ("takes" not in other)
    assert len(read_samples(out / "samples.jsonl")[0]) == 4


def test_replies_of_another_model_end_an_evaluation(tmp_path: Path, tiny_model_folder: Path, palimpsest: Run) -> None:
    out = tmp_path / "out"
    with endpoint_server(Server(name="served-1")) as server:

        def renamed(number: int) -> None:
            server.name = "served-2" if number > 9 else "served-1"

        server.fault = renamed
        ended = palimpsest(*command(server, tiny_model_folder, out, "engine.concurrency=1"))
    assert ended.returncode == 2
    assert all(word in ended.stderr for word in (f"error: {server.url}", "'served-1'", "'served-2'"))
    remaining, _ = read_samples(out / "samples.jsonl")
    assert sum(sample.value is not None for sample in remaining) >= 1


def test_an_evaluation_resumes_once_the_endpoint_is_up(
    tmp_path: Path, tiny_model_folder: Path, palimpsest: Run
) -> None:
    complete, out = tmp_path / "whole", tmp_path / "out"
    settings = (*LIMIT, "engine.attempts=2", "engine.patience_s=0")
    with endpoint_server() as server:
        assert palimpsest(*command(server, tiny_model_folder, complete, *settings)).returncode == 0
        everything = len(server.asked)
        down = everything + 1 + (everything - 1) // 2  # half-way through the second time
        server.fault = lambda number: reply(503) if number >= down else None
        text = palimpsest(*command(server, tiny_model_folder, out, *settings)).stderr.splitlines()
        assert text[-1].startswith(f"error: {server.url}: down: 8 attempts in a row failed")
        remaining, _ = read_samples(out / "samples.jsonl")
        assert 0 < sum(sample.value is not None for sample in remaining) < 4
        assert all(sample.outcome == "sampler_failed" for sample in remaining if sample.value is None)
        assert len(server.asked) < down + 12
        server.fault = lambda number: None
        assert palimpsest(*command(server, tiny_model_folder, out, *settings)).returncode == 0
    assert finished(out) == finished(complete)


def finished(out: Path) -> list[bytes]:
    """Lines of graded episodes."""
    lines = (out / "samples.jsonl").read_bytes().splitlines()
    return sorted(line for line in lines if json.loads(line)["value"] is not None)


def calling(request: dict[str, Any]) -> str:
    """Search, prune, answer, in the form of the neutral template's calls."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    search = {"name": "search", "arguments": {"query": "Anna"}}
    if turn < 2:
        return f"<tool_call>\n{json.dumps(search)}\n</tool_call>"
    return "FINAL_ANSWER: tea"


@pytest.mark.parametrize("policy", ["prune", "summary", "tool_window"])
def test_agents_with_tools_play_on_chat_endpoints(policy: str, tmp_path: Path, palimpsest: Run) -> None:
    out = tmp_path / "out"
    budgets = ["context_tokens=3072", "turn_tokens=256"]
    budgets += ["window_tokens=1024"] if policy == "tool_window" else []
    with endpoint_server(Server(takes="chat", speak=calling)) as server:
        done = palimpsest(
            *("eval", "served", "--no-baselines", "--base-url", server.url, "--policy", policy, *budgets),
            *("--data", "synthetic_search", "--objectives", "1", "--limit", "2", "--out", str(out)),
        )
    assert done.returncode == 0, done.stderr
    samples, _ = read_samples(out / "samples.jsonl")
    assert [(sample.outcome, sample.turns) for sample in samples] == [("answered", 3)] * 2
    longest = max((body["messages"] for body in server.asked), key=len)
    assert [message["role"] for message in longest][-5:] == ["user", "assistant", "user", "assistant", "user"]
    assert "[" in longest[-1]["content"]  # a result under its id


@pytest.mark.slow
def test_a_killed_evaluation_resumes_the_same(tmp_path: Path, tiny_model_folder: Path, palimpsest: Run) -> None:
    complete, out = tmp_path / "whole", tmp_path / "out"
    with endpoint_server() as server:
        assert palimpsest(*command(server, tiny_model_folder, complete, "--limit", "12", *LIMIT)).returncode == 0
        server.delay = 0.05
        for kills in range(1, 4):
            killed_at(command(server, tiny_model_folder, out, "--limit", "12", *LIMIT), out, 3 * kills)
        server.delay = 0.0
        assert palimpsest(*command(server, tiny_model_folder, out, "--limit", "12", *LIMIT)).returncode == 0
    assert sorted((out / "samples.jsonl").read_bytes().splitlines()) == finished(complete)
    of_the_last_call = {"seconds": 0.0, "episodes_played": 0, "made_with": {}}
    assert summary(out) | of_the_last_call == summary(complete) | of_the_last_call


def test_an_evaluation_counts_answers_that_its_judge_did_not_grade(tmp_path: Path, tiny_model_folder: Path) -> None:
    def failing(request: dict[str, Any], number: int) -> Reply:
        return (401, "wrong key") if "Where is 2?" in str(request["messages"][-1]) else honest(request, number)

    row = {"answers": ["Rome"], "context": "Rome."}
    rows = [row | {"id": str(n), "question": f"Where is {n}?"} for n in range(3)]
    rows[1]["answers"] = ["Oslo"]
    (tmp_path / "dev.json").write_text(json.dumps(rows))
    overrides = ["reward.name=final_answer", "reward.final_answer.match=judge", "reward.judge.model=m", "prompts=final"]
    options: Any = {"tokenizer": tiny_model_folder, "baselines": False, "quiet": True}
    model = Server(takes="chat", speak=lambda body: "FINAL_ANSWER: Rome")
    with endpoint_server(model) as server, judge_server(failing) as judge:
        overrides.append(f"reward.judge.url={judge.url}")
        done = evaluate("served", tmp_path / "dev.json", overrides=overrides, base_url=server.url, **options)
    (figures,) = done.summaries
    assert (figures.problems, figures.graded, figures.ungraded, figures.accuracy.mean) == (3, 2, 1, 0.5)
    assert list(figures.ungraded_reasons) == [f"judge: {judge.url}/chat/completions: status 401: 'wrong key'"]
