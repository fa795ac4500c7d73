"""Low-rank adapters: training, sampling, saving and opening."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from palimpsest.app.model_export_job import export
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import ModelConfig
from palimpsest.engines.embedded.engine import EmbeddedEngine
from palimpsest.engines.embedded.model_loading import load_model, plain_name, save_adapter, trainable
from palimpsest.engines.embedded.sampling.forward import FusedForward
from palimpsest.engines.protocol import StepBatch
from palimpsest.errors import ModelError
from palimpsest.types import SamplingParams
from support.architectures import built
from support.command import Run
from support.forests import batch_of_rows, grown
from support.models import build_tokenizer, sampling_gap
from support.small_run import small_run

RANK, ALPHA = 4, 8.0
PROMPT = [5, 9, 30, 31, 7, 40]
needs_peft = pytest.mark.skipif(not find_spec("peft"), reason="pip install 'palimpsest-rl[lora]'")


def engine_of(folder: Path, *overrides: str) -> EmbeddedEngine:
    settings = [f"model.path={folder}", f"model.lora.rank={RANK}", f"model.lora.alpha={ALPHA}"]
    config = load_recipe("memagent-quickstart", [*settings, "optim.learning_rate=0.05", *overrides])
    return EmbeddedEngine(config, objective="policy")


def batch() -> StepBatch:
    draw = random.Random(0)
    return batch_of_rows(grown(draw, depth=2, length=12), draw)


def trained(folder: Path, *overrides: str) -> EmbeddedEngine:
    """An engine after two steps, when B is not 0."""
    engine = engine_of(folder, *overrides)
    for _ in range(2):
        engine.trainer.update([batch()])
    assert engine.learner is not None
    asyncio.run(engine.learner.publish())
    return engine


def with_products(folder: Path, engine: EmbeddedEngine) -> Any:
    """The base model with alpha / rank * B A added to its weights by hand."""
    plain = load_model(ModelConfig(path=str(folder)))
    adapters = dict(engine.model.named_parameters())
    with torch.no_grad():
        for name, p in plain.named_parameters():
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{stem}.lora_A.default.weight" in adapters:
                a, b = (adapters[f"{stem}.lora_{x}.default.weight"] for x in "AB")
                assert b.abs().max() > 0
                p.add_(ALPHA / RANK * b @ a)
    return plain


def scores(model: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)])).logits[0]
    return logits.log_softmax(-1)


def assert_scores(folder: Path, wanted: torch.Tensor) -> Any:
    opened = load_model(ModelConfig(path=str(folder)))
    torch.testing.assert_close(scores(opened, PROMPT), wanted, atol=1e-4, rtol=1e-4)
    return opened


@pytest.fixture(scope="module")
def engine(tiny_model_folder: Path) -> EmbeddedEngine:
    return trained(tiny_model_folder)


@needs_peft
def test_saved_adapters_of_the_packaged_model_open(tmp_path: Path) -> None:
    config = load_recipe("memagent-quickstart", ["model.lora.rank=4"]).model
    save_adapter(trainable(config), tmp_path)
    opened, plain = load_model(ModelConfig(path=str(tmp_path))), load_model(ModelConfig())
    assert all(torch.equal(p, q) for p, q in zip(opened.parameters(), plain.parameters(), strict=True))


@needs_peft
def test_only_adapters_are_trained(engine: EmbeddedEngine, tiny_model_folder: Path) -> None:
    base = load_model(ModelConfig(path=str(tiny_model_folder))).state_dict()
    trained_names = [name for name, p in engine.model.named_parameters() if p.requires_grad]
    assert trained_names
    assert all("lora_" in name for name in trained_names)
    for name, p in engine.model.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(p, base[plain_name(name)])


@needs_peft
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_sampler_reads_the_adapted_weights(
    checkpointing: bool, engine: EmbeddedEngine, tiny_model_folder: Path
) -> None:
    if checkpointing:
        engine = trained(tiny_model_folder, "model.gradient_checkpointing=true")
    assert isinstance(engine.sampler._batch._forward, FusedForward) or checkpointing
    done = asyncio.run(engine.sampler.generate(PROMPT, SamplingParams(max_tokens=6, seed=1)))
    assert sampling_gap(with_products(tiny_model_folder, engine), PROMPT, done) < 1e-4
    assert sampling_gap(load_model(ModelConfig(path=str(tiny_model_folder))), PROMPT, done) > 1e-2


@needs_peft
def test_a_checkpoint_has_only_the_adapter_and_opens_merged(
    engine: EmbeddedEngine, tiny_model_folder: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    engine.trainer.save(first)
    assert [file.name for file in first.glob("*.safetensors")] == ["adapter_model.safetensors"]
    settings = json.loads((first / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tiny_model_folder)
    assert settings["target_modules"] == sorted(settings["target_modules"])
    opened = assert_scores(first, scores(with_products(tiny_model_folder, engine), PROMPT))
    assert not any("lora" in name for name, _ in opened.named_parameters())
    again = trained(first)
    again.trainer.save(second)
    assert_scores(second, scores(with_products(first, again), PROMPT))


@needs_peft
@pytest.mark.parametrize("targets", [["lm_head"], ["embed_tokens", "lm_head", "q_proj"], ["q_proj"]])
def test_an_adapter_on_one_use_of_tied_weights_does_not_change_the_other(targets: list[str], tmp_path: Path) -> None:
    import peft

    base, adapter, out = (tmp_path / name for name in ("base", "adapter", "out"))
    model = built("Qwen2", tie_word_embeddings=True).float()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(base)
    for folder in (base, adapter):
        build_tokenizer().save_pretrained(folder)
    settings = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, settings).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.linspace(-1, 1, weight.numel()).reshape(weight.shape))
    settings.base_model_name_or_path = str(base)
    adapted.save_pretrained(adapter, save_embedding_layers=False)
    wanted = scores(adapted, PROMPT)
    assert (wanted - scores(load_model(ModelConfig(path=str(base))), PROMPT)).abs().max() > 1e-2
    export(adapter, out)
    for folder in (adapter, out):
        opened = assert_scores(folder, wanted)
        assert opened.config.tie_word_embeddings == (targets == ["q_proj"])


@needs_peft
def test_an_adapter_without_one_of_its_tensors_is_rejected(engine: EmbeddedEngine, tmp_path: Path) -> None:
    """peft draws a missing one at random at every load."""
    engine.trainer.save(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    missing = sorted(tensors)[0]
    save_file({name: tensor.clone() for name, tensor in tensors.items() if name != missing}, file)
    (tmp_path / "manifest.json").unlink(missing_ok=True)
    with pytest.raises(ModelError, match=re.escape(missing)):
        load_model(ModelConfig(path=str(tmp_path)))


@needs_peft
def test_the_kl_term_compares_with_the_model_without_its_adapter(tiny_model_folder: Path) -> None:
    engine = trained(tiny_model_folder, "loss.kl_loss_coef=0.1")
    stats = engine.trainer.accumulate(batch())
    models = with_products(tiny_model_folder, engine), load_model(ModelConfig(path=str(tiny_model_folder)))
    total = 0.0
    for item in batch().segments:
        where, ids = torch.tensor(item.segment.positions), torch.tensor(item.segment.token_ids)
        new, reference = (scores(model, ids.tolist())[where - 1, ids[where]] for model in models)
        total += float(((reference - new).exp() - (reference - new) - 1).sum())
    assert total > 0.01
    assert stats.token_sums["kl"] == pytest.approx(total, rel=1e-3)


@needs_peft
def test_two_engines_start_with_the_same_adapters(tiny_model_folder: Path) -> None:
    parameters = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        parameters.append(engine_of(tiny_model_folder).model.parameters())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(*pair) for pair in zip(*parameters, strict=True))


@needs_peft
@pytest.mark.parametrize(
    ("targets", "reason"), [("[nothing]", "nothing"), ("[lm_head]", "output projection"), ("[embed_tokens]", "embedd")]
)
def test_layers_that_cannot_be_adapted_are_rejected(targets: str, reason: str, tiny_model_folder: Path) -> None:
    with pytest.raises(ModelError, match=rf"model\.lora\.target_modules.*{reason}"):
        engine_of(tiny_model_folder, f"model.lora.target_modules={targets}")


def test_without_peft_adapters_are_rejected_with_the_fix(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"model\.lora needs peft: pip install .*\[lora\]'"):
        engine_of(tiny_model_folder)


@needs_peft
@pytest.mark.slow
def test_a_run_of_adapters_resumes_to_the_same_bytes(palimpsest: Run, tiny_model_folder: Path, tmp_path: Path) -> None:
    changes = {**small_run(tiny_model_folder), "model.lora.rank": RANK, "cold_start": None}
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    full, halves = tmp_path / "full", tmp_path / "halves"
    for out, steps, *resume in ((full, 2), (halves, 1), (halves, 2, "--resume")):
        words = [*overrides, f"train.max_steps={steps}", "--out", str(out), *resume]
        done = palimpsest("train", "memagent-quickstart", *words)
        assert done.returncode == 0, done.stderr
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        first, second = (run / "checkpoints" / "step-000002" / name for run in (full, halves))
        assert first.read_bytes() == second.read_bytes()
