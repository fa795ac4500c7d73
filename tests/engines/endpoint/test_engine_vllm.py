"""The real vLLM as an endpoint: the greedy answers of the embedded engine on the same random weights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Evaluation, evaluate
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import open_engine, using
from palimpsest.errors import ModelError, PromptTooLong
from palimpsest.types import SamplingParams
from support.vllm_server import NEEDS_VLLM, served_model

pytestmark = NEEDS_VLLM
WINDOW = 512
BUDGETS = {"chunk_size": 128, "memory_tokens": 16, "question_tokens": 64, "answer_tokens": 16}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    with served_model(tmp_path_factory.mktemp("served"), WINDOW) as model_and_url:
        yield model_and_url


@pytest.fixture
def model(served: tuple[Path, str]) -> Path:
    return served[0]


@pytest.fixture
def url(served: tuple[Path, str]) -> str:
    return served[1]


def played(model: Path, chunks: int = 3, limit: int = 8, mode: str = "auto", **endpoint: Any) -> Evaluation:
    overrides = BUDGETS | ({"engine.mode": mode} if endpoint else {})
    return evaluate(model, "synthetic", overrides=overrides, chunks=chunks, limit=limit, quiet=True, **endpoint)


def test_exact_token_ids_give_the_embedded_engines_greedy_answers(model: Path, url: str) -> None:
    remote, local = played(model, base_url=url), played(model)
    assert remote.endpoint is not None
    assert remote.endpoint.exact_ids
    assert remote.endpoint.logprobs
    there, here = (
        [(sample.id, sample.answer, sample.memory, sample.sampled_tokens) for sample in evaluation]
        for evaluation in (remote, local)
    )
    assert there == here
    assert sum(sample.sampled_tokens for sample in remote) > 100


@pytest.mark.parametrize("mode", ["completions", "chat"])
def test_text_modes_work(mode: str, model: Path, url: str) -> None:
    evaluation = played(model, 2, 4, mode, base_url=url)
    assert evaluation.endpoint is not None
    assert (evaluation.endpoint.mode, evaluation.ungraded) == (mode, 0)


def engine_config(model: Path, url: str, **settings: Any) -> RunConfig:
    section = {"name": "endpoint", "url": url, **settings}
    return RunConfig.model_validate({"model": {"path": str(model)}, "engine": section})


def test_the_window_the_tokenizer_and_the_log_probabilities_are_the_servers(model: Path, url: str) -> None:
    engine = open_engine(engine_config(model, url), objective=None)
    here = open_engine(RunConfig.model_validate({"model": {"path": str(model)}}), objective=None)
    prompt, params = tuple(range(10, 300)), SamplingParams(max_tokens=16, temperature=1.0, seed=7)

    async def main() -> tuple[Any, Any]:
        completion = await engine.sampler.generate(prompt, params)
        again = await engine.sampler.generate(prompt, params)
        assert again.token_ids == completion.token_ids
        return completion, await here.sampler.score(prompt, completion.token_ids)

    completion, nats = asyncio.run(using(engine, using(here, main())))
    assert engine.limits.max_context == WINDOW
    assert "tokenizer compared with the server's" in engine.limits.note
    assert completion.logprobs == pytest.approx(nats, abs=1e-4)


def test_a_prompt_that_vllm_finds_too_long_is_a_separate_error(model: Path, url: str) -> None:
    engine = open_engine(engine_config(model, url, mode="chat"), objective=None)
    # within the window as we count it, but not with what the server's own template adds
    prompt = [*engine.codec.encode_trusted("<|palimpsest:user|>"), *[engine.codec.encode(" Anna")[0]] * (WINDOW - 4)]
    prompt += engine.codec.encode_trusted("<|palimpsest:end|><|palimpsest:assistant|>")

    async def main() -> None:
        await engine.sampler.generate(prompt, SamplingParams(max_tokens=1, temperature=0.0))

    with pytest.raises(PromptTooLong, match="maximum context length"):
        asyncio.run(using(engine, main()))


def test_the_tokenizer_of_another_model_is_an_error(url: str, model: Path, tiny_model_folder: Path) -> None:
    with pytest.raises(ModelError, match="its tokenizer is not the one here"):
        open_engine(engine_config(model, url, tokenizer=str(tiny_model_folder)), objective=None)
