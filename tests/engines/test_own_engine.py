"""What `engine.name` opens: the embedded engine and a user's own keep the same protocol, and train the same recipes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import CompletionDelta, Engine, Learner, StepBatch
from palimpsest.errors import CheckpointError, ConfigError
from palimpsest.files import hashes
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.types import Completion, SamplingParams, StopReason
from support.command import Run
from support.forests import completed

EXAMPLE = Path(__file__).parents[2] / "examples" / "bigrams.py"
PROMPT = (5, 9, 30, 31, 7)
PARAMS = SamplingParams(max_tokens=12, seed=3)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine in a package of somebody else's."""
    package = tmp_path / "elsewhere" / "their_engines"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(EXAMPLE, package / "bigrams.py")
    monkeypatch.chdir(package.parent)
    monkeypatch.syspath_prepend(str(package.parent))
    return "their_engines.bigrams:BigramEngine"


@pytest.fixture(params=["embedded", "own"])
def config(request: pytest.FixtureRequest, own: str, tiny_model_folder: Path) -> RunConfig:
    name = own if request.param == "own" else "embedded"
    rate = ["optim.learning_rate=0.01"]
    return load_recipe("memagent-quickstart", [f"engine.name={name}", f"model.path={tiny_model_folder}", *rate])


def learner_of(engine: Engine) -> Learner:
    assert engine.learner is not None
    return engine.learner


def step(advantage: float = 1.0) -> StepBatch:
    """One segment, whose last four of eight tokens are trained."""
    done = Completion(tuple(range(9, 13)), (-2.0,) * 4, StopReason.STOP)
    return StepBatch((completed(range(5, 9), done, advantage, 0.25),))


async def collected(stream: AsyncIterator[CompletionDelta]) -> list[CompletionDelta]:
    return [delta async for delta in stream]


def test_a_stream_is_the_completion_token_by_token(config: RunConfig) -> None:
    async def go(engine: Engine) -> None:
        whole = await engine.sampler.generate(PROMPT, PARAMS, session="an episode")
        *parts, last = await collected(engine.sampler.stream(PROMPT, PARAMS, session="an episode"))
        assert last.completion is not None
        assert (last.completion.token_ids, last.completion.stop_reason) == (whole.token_ids, whole.stop_reason)
        assert last.completion.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
        assert not any(part.completion for part in parts)
        assert sum((part.token_ids for part in parts), ()) == last.completion.token_ids
        assert sum((part.logprobs for part in parts), ()) == last.completion.logprobs

    engine = open_engine(config, objective=None)
    asyncio.run(using(engine, go(engine)))


def test_a_score_is_what_the_sampler_gave_the_tokens(config: RunConfig) -> None:
    async def go(engine: Engine) -> None:
        done = await engine.sampler.generate(PROMPT, PARAMS)
        assert await engine.sampler.score(PROMPT, done.token_ids) == pytest.approx(done.logprobs, abs=1e-4)
        assert await engine.sampler.score(PROMPT, ()) == ()

    engine = open_engine(config, objective=None)
    asyncio.run(using(engine, go(engine)))


def test_updates_change_what_is_sampled_once_they_are_published(config: RunConfig) -> None:
    async def go(engine: Engine) -> None:
        learner, ids = learner_of(engine), step().segments[0].segment.token_ids
        before = sum(await engine.sampler.score(ids[:4], ids[4:]))
        first, second = await learner.update([step(), step()])
        assert (first.tokens, second.tokens, learner.version) == (4, 4, 2)
        assert not first.skipped
        assert await learner.publish() == engine.sampler.version == 2
        assert sum(await engine.sampler.score(ids[:4], ids[4:])) > before
        completion = await engine.sampler.generate(PROMPT, PARAMS)
        assert (completion.policy_version, completion.last_policy_version) == (2, 2)

    engine = open_engine(config, objective="policy")
    asyncio.run(using(engine, go(engine)))


def test_what_is_saved_is_named_with_its_hashes_and_comes_back(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()

    async def train(engine: Engine) -> Any:
        learner = learner_of(engine)
        await learner.update([step()])
        assert await learner.save(folder) == hashes(folder)
        await learner.update([step(-1.0)])
        await learner.publish()
        return await engine.sampler.generate(PROMPT, PARAMS)

    async def resume(engine: Engine) -> Any:
        learner = learner_of(engine)
        await learner.load(folder)
        assert learner.version == 1
        await learner.update([step(-1.0)])
        await learner.publish()
        return await engine.sampler.generate(PROMPT, PARAMS)

    first, second = (open_engine(config, objective="policy") for _ in range(2))
    assert asyncio.run(using(first, train(first))) == asyncio.run(using(second, resume(second)))


def test_limits_hold_for_the_whole_engine(config: RunConfig) -> None:
    engine = open_engine(config, objective="policy")
    assert engine.limits.max_context == engine.sampler.max_context == learner_of(engine).limits.max_context
    assert engine.limits.vocab == learner_of(engine).limits.vocab >= engine.codec.vocab_size
    assert engine.limits.concurrency >= 1
    asyncio.run(engine.close())
    asyncio.run(engine.close())


TINY = (
    "train.max_steps=2",
    "train.num_minibatches=1",
    "train.batch_size=2",
    "train.group_size=2",
    "train.save_steps=1",
    "cold_start=null",
)


def test_an_engine_of_ones_own_trains_a_recipe_and_resumes_to_the_same_bytes(
    own: str, tmp_path: Path, palimpsest: Run
) -> None:
    """Nothing in the package knows of it."""
    recipe = ("train", "memagent-quickstart", f"engine.name={own}", "engine.options.learning_rate=5", *TINY)
    for run in ("whole", "cut"):
        done = palimpsest(*recipe, "--out", str(tmp_path / run))
        assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000002")
    assert palimpsest(*recipe, "--out", str(tmp_path / "cut"), "--resume").returncode == 0
    whole, cut = (read_rows(tmp_path / run / "metrics.jsonl") for run in ("whole", "cut"))
    assert [row["step"] for row in whole] == [1, 2]
    assert whole == cut
    weights = [
        (tmp_path / run / "checkpoints" / "step-000002" / "bigrams.safetensors").read_bytes()
        for run in ("whole", "cut")
    ]
    assert weights[0] == weights[1]


def test_the_run_of_an_engine_of_ones_own_is_evaluated_as_trained(own: str, tmp_path: Path, palimpsest: Run) -> None:
    """Its checkpoint holds what it opens: weights and tokenizer."""
    run = tmp_path / "run"
    recipe = ("train", "memagent-quickstart", f"engine.name={own}", "engine.options.learning_rate=5", *TINY)
    done = palimpsest(*recipe, "--out", str(run))
    assert done.returncode == 0, done.stderr
    done = palimpsest("eval", str(run), "--limit", "2", "--no-baselines", "--out", str(tmp_path / "eval"))
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "eval" / "samples.jsonl").read_text().splitlines()) == 2


def test_an_engine_of_ones_own_is_opened_with_the_weights_it_saved(own: str, tmp_path: Path) -> None:
    config = load_recipe("memagent-quickstart", [f"engine.name={own}"])

    async def train(engine: Engine) -> float:
        await learner_of(engine).update([step()])
        await learner_of(engine).save(tmp_path)
        return sum(await engine.sampler.score(PROMPT[:1], PROMPT[1:]))

    async def score(engine: Engine) -> float:
        return sum(await engine.sampler.score(PROMPT[:1], PROMPT[1:]))

    first = open_engine(config, objective="policy")
    before = asyncio.run(score(first))
    trained = asyncio.run(using(first, train(first)))
    model = config.model.model_copy(update={"path": str(tmp_path)})
    again = open_engine(config.model_copy(update={"model": model}), objective=None)
    assert asyncio.run(using(again, score(again))) == pytest.approx(trained) != pytest.approx(before)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["engine.name=megatron"],
            r"engine\.name='megatron': no such engine; choose one of embedded, ray, endpoint, or my_module:MyEngine",
        ),
        (["engine.name=a:B", "engine.cache_tokens=3"], r"unknown key engine\.cache_tokens: .* engine\.options\.cache"),
        (["engine.threds=3"], r"unknown key engine\.threds; did you mean engine\.num_threads\?"),
        (["engine.num_threads=0"], r"engine\.num_threads=0: must be a whole number, at least 1"),
        (["engine.name=3"], r"engine\.name=3: choose one of embedded, ray, endpoint, or my_module:MyEngine"),
    ],
)
def test_wrong_keys_of_an_engine_are_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("memagent-quickstart", overrides)


def test_an_engine_named_instead_of_the_recipes_leaves_the_recipes_keys_behind(own: str) -> None:
    config = load_recipe("memagent-quickstart", ["engine.options={learning_rate: 2}", f"engine.name={own}"])
    assert config.engine.model_dump() == {"name": own, "options": {"learning_rate": 2}}
    assert load_recipe("memagent-quickstart", ["engine.name=embedded"]) == load_recipe("memagent-quickstart")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nowhere:Engine", {}, "no module 'nowhere'"),
        ("their_engines.bigrams:BigramEngin", {}, "did you mean BigramEngine"),
        ("their_engines.bigrams:BigramEngine", {"learning_rat": 1}, r"engine\.options\.learning_rat is unknown"),
        ("their_engines.bigrams:BigramEngine", {"learning_rate": "x"}, "must be a number"),
        ("collections:Counter", {}, "opening it raised|has no codec"),
    ],
)
def test_an_engine_that_is_none_is_refused_in_words(own: str, name: str, options: dict[str, Any], message: str) -> None:
    config = RunConfig.model_validate({"engine": {"name": name, "options": options}})
    with pytest.raises(ConfigError, match=message):
        open_engine(config, objective=None)


def test_loading_what_is_not_there_is_a_checkpoint_error_of_the_embedded_engine(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    config = load_recipe("memagent-quickstart", [f"model.path={tiny_model_folder}"])
    engine = open_engine(config, objective="policy")
    with pytest.raises(CheckpointError):
        asyncio.run(using(engine, learner_of(engine).load(tmp_path)))
