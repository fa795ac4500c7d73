"""Engines by `engine.name`: the embedded engine and a custom one satisfy the same protocol."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded import compute, engine
from palimpsest.engines.open import check_engine, open_engine, using
from palimpsest.engines.protocol import Engine, Learner, Objective, StepBatch
from palimpsest.engines.vllm import server_process
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
def custom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine of another package."""
    package = tmp_path / "elsewhere" / "their_engines"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(EXAMPLE, package / "bigrams.py")
    monkeypatch.chdir(package.parent)
    monkeypatch.syspath_prepend(str(package.parent))
    return "their_engines.bigrams:BigramEngine"


@pytest.fixture(params=["embedded", "custom"])
def config(request: pytest.FixtureRequest, custom: str, tiny_model_folder: Path) -> RunConfig:
    name = custom if request.param == "custom" else "embedded"
    words = [f"engine.name={name}", f"model.path={tiny_model_folder}", "optim.learning_rate=0.01"]
    return load_recipe("memagent-quickstart", words)


def learner_of(opened: Engine) -> Learner:
    assert opened.learner is not None
    return opened.learner


def step(advantage: float = 1.0) -> StepBatch:
    """One segment of eight tokens, of which the last four are trained."""
    done = Completion(tuple(range(9, 13)), (-2.0,) * 4, StopReason.STOP)
    return StepBatch((completed(range(5, 9), done, advantage, 0.25),))


def with_engine(
    config: RunConfig, objective: Objective | None, go: Callable[[Engine], Coroutine[Any, Any, Any]]
) -> Any:
    """Result of `go` with an engine that is closed afterwards."""
    opened = open_engine(config, objective=objective)
    return asyncio.run(using(opened, go(opened)))


def test_a_stream_is_the_completion_token_by_token(config: RunConfig) -> None:
    async def go(opened: Engine) -> None:
        full = await opened.sampler.generate(PROMPT, PARAMS, session="an episode")
        *deltas, last = [delta async for delta in opened.sampler.stream(PROMPT, PARAMS, session="an episode")]
        assert last.completion is not None
        assert (last.completion.token_ids, last.completion.stop_reason) == (full.token_ids, full.stop_reason)
        assert last.completion.logprobs == pytest.approx(full.logprobs, abs=1e-5)
        assert not any(delta.completion for delta in deltas)
        assert sum((delta.token_ids for delta in deltas), ()) == last.completion.token_ids
        assert sum((delta.logprobs for delta in deltas), ()) == last.completion.logprobs

    with_engine(config, None, go)


def test_a_score_is_the_samplers_log_probability(config: RunConfig) -> None:
    async def go(opened: Engine) -> None:
        done = await opened.sampler.generate(PROMPT, PARAMS)
        assert await opened.sampler.score(PROMPT, done.token_ids) == pytest.approx(done.logprobs, abs=1e-4)
        assert await opened.sampler.score(PROMPT, ()) == ()

    with_engine(config, None, go)


def test_updates_change_samples_once_they_are_published(config: RunConfig) -> None:
    async def go(opened: Engine) -> None:
        learner, ids = learner_of(opened), step().segments[0].segment.token_ids
        before = sum(await opened.sampler.score(ids[:4], ids[4:]))
        first, second = await learner.update([step(), step()])
        assert (first.tokens, second.tokens, learner.version) == (4, 4, 2)
        assert not first.skipped
        assert await learner.publish() == opened.sampler.version == 2
        assert sum(await opened.sampler.score(ids[:4], ids[4:])) > before
        completion = await opened.sampler.generate(PROMPT, PARAMS)
        assert (completion.policy_version, completion.last_policy_version) == (2, 2)

    with_engine(config, "policy", go)


def test_a_saved_learner_reports_its_hashes_and_resumes(config: RunConfig, tmp_path: Path) -> None:
    (folder := tmp_path / "saved").mkdir()

    async def next_completion(opened: Engine) -> Any:
        await learner_of(opened).update([step(-1.0)])
        await learner_of(opened).publish()
        return await opened.sampler.generate(PROMPT, PARAMS)

    async def train(opened: Engine) -> Any:
        await learner_of(opened).update([step()])
        assert await learner_of(opened).save(folder) == hashes(folder)
        return await next_completion(opened)

    async def resume(opened: Engine) -> Any:
        await learner_of(opened).load(folder)
        assert learner_of(opened).version == 1
        return await next_completion(opened)

    assert with_engine(config, "policy", train) == with_engine(config, "policy", resume)


async def test_engine_sampler_and_learner_have_the_same_limits(config: RunConfig) -> None:
    opened = open_engine(config, objective="policy")
    assert opened.limits.max_context == opened.sampler.max_context == learner_of(opened).limits.max_context
    assert opened.limits.vocab == learner_of(opened).limits.vocab >= opened.codec.vocab_size
    await opened.close()
    await opened.close()


def test_a_custom_engine_trains_a_recipe_resumes_to_the_same_bytes_and_is_evaluated(
    custom: str, tmp_path: Path, palimpsest: Run
) -> None:
    train = [f"train.{key}" for key in ("max_steps=2", "num_minibatches=1", "batch_size=2", "group_size=2")]
    recipe = ["train", "memagent-quickstart", f"engine.name={custom}", "engine.options.learning_rate=5", *train]
    recipe += ["train.save_steps=1", "cold_start=null"]
    runs = full, cut = tmp_path / "full", tmp_path / "cut"
    for run in runs:
        done = palimpsest(*recipe, "--out", str(run))
        assert done.returncode == 0, done.stderr
    shutil.rmtree(cut / "checkpoints" / "step-000002")
    assert palimpsest(*recipe, "--out", str(cut), "--resume").returncode == 0
    rows, resumed = (read_rows(run / "metrics.jsonl") for run in runs)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows == resumed
    file = Path("checkpoints", "step-000002", "bigrams.safetensors")
    assert (full / file).read_bytes() == (cut / file).read_bytes()
    done = palimpsest("eval", str(full), "--limit", "2", "--no-baselines", "--out", str(tmp_path / "eval"))
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "eval" / "samples.jsonl").read_text().splitlines()) == 2


def test_a_custom_engine_opens_the_weights_it_saved(custom: str, tmp_path: Path) -> None:
    config = load_recipe("memagent-quickstart", [f"engine.name={custom}"])

    async def score(opened: Engine) -> float:
        return sum(await opened.sampler.score(PROMPT[:1], PROMPT[1:]))

    async def train(opened: Engine) -> tuple[float, float]:
        before = await score(opened)
        await learner_of(opened).update([step()])
        await learner_of(opened).save(tmp_path)
        return before, await score(opened)

    before, trained = with_engine(config, "policy", train)
    model = config.model.model_copy(update={"path": str(tmp_path)})
    reopened = with_engine(config.model_copy(update={"model": model}), None, score)
    assert reopened == pytest.approx(trained) != pytest.approx(before)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.name=megatron"], r"engine\.name='megatron': .* embedded, ray, endpoint, or my_module:MyEngine"),
        (["engine.name=a:B", "engine.cache_tokens=3"], r"unknown key engine\.cache_tokens: .* engine\.options\.cache"),
        (["engine.threds=3"], r"unknown key engine\.threds; did you mean engine\.num_threads\?"),
        (["engine.num_threads=0"], r"engine\.num_threads=0: must be a whole number, at least 1"),
        (["engine.name=3"], r"engine\.name=3: choose one of embedded, ray, endpoint, or my_module:MyEngine"),
    ],
)
def test_wrong_keys_of_an_engine_are_rejected_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("memagent-quickstart", overrides)


def test_another_engine_drops_the_keys_of_the_recipes_engine(custom: str) -> None:
    config = load_recipe("memagent-quickstart", ["engine.options={learning_rate: 2}", f"engine.name={custom}"])
    assert config.engine.model_dump() == {"name": custom, "options": {"learning_rate": 2}}
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
def test_an_object_that_is_no_engine_is_rejected(custom: str, name: str, options: dict[str, Any], message: str) -> None:
    config = RunConfig.model_validate({"engine": {"name": name, "options": options}})
    with pytest.raises(ConfigError, match=message):
        open_engine(config, objective=None)


def test_loading_a_missing_checkpoint_is_a_checkpoint_error(tiny_model_folder: Path, tmp_path: Path) -> None:
    config = load_recipe("memagent-quickstart", [f"model.path={tiny_model_folder}"])
    with pytest.raises(CheckpointError):
        with_engine(config, "policy", lambda opened: learner_of(opened).load(tmp_path))


def no_vllm(*_: object) -> None:
    raise ConfigError("sampler.name=vllm: no vLLM here")


def test_errors_that_need_no_model_come_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.engines.embedded.engine.trainable", lambda _: pytest.fail("opened"))
    with pytest.raises(ConfigError, match=r"model\.dtype=auto .*set float32 or bfloat16"):
        open_engine(load_recipe("memagent-quickstart", ["model.dtype=auto"]), objective="policy")
    monkeypatch.setattr(server_process, "_torch_of", no_vllm)
    monkeypatch.setattr(engine, "EmbeddedEngine", None)
    with pytest.raises(ConfigError, match="no vLLM here"):
        open_engine(load_recipe("memagent-quickstart", ["sampler.name=vllm"]), objective="policy")
    monkeypatch.setattr(compute, "memories", lambda: {"0": 1000})
    with pytest.raises(ConfigError, match="its limit is 0 GB"):
        open_engine(load_recipe("memagent-quickstart", []), objective="policy")


def test_a_dry_run_without_gpus_reports_what_it_did_not_check(
    monkeypatch: pytest.MonkeyPatch, tiny_model_folder: Path
) -> None:
    monkeypatch.setattr(server_process, "check_python", no_vllm)
    config = load_recipe("memagent-7b", [f"model.path={tiny_model_folder}", "sampler.name=vllm"])
    monkeypatch.setattr(compute, "memories", lambda: dict.fromkeys("01234567", 80 * 10**9))
    with pytest.raises(ConfigError, match="no vLLM here"):
        check_engine(config)
    monkeypatch.setattr(compute, "memories", dict)
    window, unchecked = check_engine(config)
    assert window == 512
    assert "layout was not checked" in unchecked
    assert "no vLLM here" in unchecked
