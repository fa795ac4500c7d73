"""The real vLLM as an endpoint, from the Python that $PALIMPSEST_VLLM_PYTHON names (scripts/vllm_environment.py makes
one): the same greedy answers as the embedded engine's on the same random weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Evaluation, evaluate
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import open_engine, using
from palimpsest.errors import ModelError, PromptTooLong
from palimpsest.types import SamplingParams
from support.vllm_server import random_model, vllm_server

PYTHON = os.environ.get("PALIMPSEST_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no $PALIMPSEST_VLLM_PYTHON, a Python with vLLM"),
]
WINDOW = 512
BUDGETS = {"chunk_size": 128, "memory_tokens": 16, "question_tokens": 64, "answer_tokens": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("served"), WINDOW)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert PYTHON is not None
    with vllm_server(PYTHON, model, tmp_path_factory.mktemp("log") / "vllm.log", window=WINDOW) as address:
        yield address


def played(model: Path, **endpoint: Any) -> Evaluation:
    return evaluate(model, "synthetic", overrides=BUDGETS, chunks=3, limit=8, quiet=True, **endpoint)


def said(evaluation: Evaluation) -> list[tuple[Any, ...]]:
    return [(sample.id, sample.answer, sample.memory, sample.sampled_tokens) for sample in evaluation]


def test_exact_token_ids_give_the_embedded_engines_greedy_answers(model: Path, url: str) -> None:
    there, here = played(model, base_url=url), played(model)
    assert there.endpoint is not None
    assert there.endpoint.exact_ids
    assert there.endpoint.logprobs
    assert said(there) == said(here)
    assert sum(sample.sampled_tokens for sample in here) > 100


@pytest.mark.parametrize("mode", ["completions", "chat"])
def test_the_other_modes_play_too(mode: str, model: Path, url: str) -> None:
    evaluation = evaluate(
        model, "synthetic", overrides={**BUDGETS, "engine.mode": mode}, base_url=url, chunks=2, limit=4, quiet=True
    )
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


def test_a_prompt_that_vllm_finds_too_long_is_one(model: Path, url: str) -> None:
    engine = open_engine(engine_config(model, url, mode="chat"), objective=None)
    # within the window as we count it, but not with what the server's own template adds
    prompt = [*engine.codec.encode_trusted("<|palimpsest:user|>"), *[engine.codec.encode(" Anna")[0]] * (WINDOW - 4)]
    prompt += engine.codec.encode_trusted("<|palimpsest:end|><|palimpsest:assistant|>")

    async def main() -> None:
        await engine.sampler.generate(prompt, SamplingParams(max_tokens=1, temperature=0.0))

    with pytest.raises(PromptTooLong, match="maximum context length"):
        asyncio.run(using(engine, main()))


def test_another_models_tokenizer_is_refused(url: str, model: Path, tiny_model_folder: Path) -> None:
    with pytest.raises(ModelError, match="its tokenizer is not the one here"):
        open_engine(engine_config(model, url, tokenizer=str(tiny_model_folder)), objective=None)
