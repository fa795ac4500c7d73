"""`palimpsest export`: the model of a checkpoint in a separate folder."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from palimpsest.app.model_export_job import export
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import ModelConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import load_model, trainable
from palimpsest.errors import CheckpointError, PalimpsestError, RunError
from palimpsest.runs.checkpoint import Checkpoints
from palimpsest.runs.run_folder import open_run
from palimpsest.text.codec import Codec
from support.command import Run


@pytest.fixture
def run(tmp_path: Path, tiny_model: Any, tiny_tokenizer: Any) -> Path:
    """A run folder with two checkpoints, whose weights differ."""
    learner = ForestLearner(tiny_model, optim=OptimConfig(), tokenizer=tiny_tokenizer)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", identity="x")
    (tmp_path / "run").mkdir()

    async def write(folder: Path) -> dict[str, str]:
        return learner.save(folder)

    for step in (1, 2):
        with torch.no_grad():
            tiny_model.model.norm.weight.add_(1)
        asyncio.run(checkpoints.save(step, write, {}))
    return tmp_path / "run"


def test_the_newest_model_is_copied_byte_for_byte_and_loads(run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "model")
    source = run / "checkpoints" / "step-000002"
    names = {path.name for path in done.path.iterdir()}
    assert names == {path.name for path in source.iterdir()} - {"manifest.json", "learner"} | {"README.md"}
    written = {"README.md", "config.json", "tokenizer_config.json"}
    assert all((done.path / name).read_bytes() == (source / name).read_bytes() for name in names - written)
    assert AutoModelForCausalLM.from_pretrained(done.path).model.norm.weight.mean().item() == 3.0


def test_the_checkpoint_of_a_step_is_exported_rounded(run: Path, tmp_path: Path) -> None:
    (tmp_path / ".model.palimpsest-partial").mkdir()  # a user's folder
    (tmp_path / ".model.palimpsest-partial" / "mine").write_text("mine")
    done = export(run, tmp_path / "model", step=1, dtype="bfloat16")
    exact = load_file(run / "checkpoints" / "step-000001" / "model.safetensors")
    rounded = load_file(done.path / "model.safetensors")
    assert all(torch.equal(rounded[name], weight.to(torch.bfloat16)) for name, weight in exact.items())
    assert json.loads((done.path / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(done.path, dtype="auto").dtype == torch.bfloat16
    assert len({path.stat().st_mode for path in done.path.iterdir()}) == 1
    assert (tmp_path / ".model.palimpsest-partial" / "mine").read_text() == "mine"


def test_both_configurations_have_the_keys_of_transformers_4_and_5(run: Path, tmp_path: Path) -> None:
    folder = export(run, tmp_path / "model", dtype="bfloat16").path
    described = json.loads((folder / "config.json").read_text())
    assert described["rope_theta"] == described["rope_parameters"]["rope_theta"]
    assert "rope_scaling" not in described
    assert (described["dtype"], described["torch_dtype"]) == ("bfloat16", "bfloat16")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]
    assert not settings.keys() & {"is_local", "local_files_only", "backend", "extra_special_tokens"}


def test_a_flipped_bit_is_refused_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    weights = run / "checkpoints" / "step-000001" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="is damaged"):
        export(run, tmp_path / "model", step=1)
    assert not (tmp_path / "model").exists()


def test_nothing_is_exported_that_the_manifest_does_not_name(run: Path, tmp_path: Path) -> None:
    newest = run / "checkpoints" / "step-000002"
    (newest / "modeling_evil.py").write_text("")
    (newest / "model-extra.safetensors").symlink_to("/etc/hostname")
    names = {path.name for path in export(run, tmp_path / "model").path.iterdir()}
    assert names == {
        path.name for path in newest.iterdir() if not path.name.startswith(("manifest", "learner", "model"))
    } | {"model.safetensors", "README.md"}


def test_a_link_instead_of_a_file_is_refused(run: Path, tmp_path: Path) -> None:
    file = run / "checkpoints" / "step-000001" / "config.json"
    file.symlink_to(file.rename(tmp_path / "elsewhere.json"))
    with pytest.raises(CheckpointError, match=r"config\.json is a link"):
        export(run, tmp_path / "model", step=1)
    assert not (tmp_path / "model").exists()


def test_a_concurrent_folder_stays_unchanged(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to, copy = tmp_path / "model", shutil.copyfile

    def slowly(source: Path, target: Path) -> None:
        if not to.exists():
            to.mkdir()
            (to / "mine").write_text("mine")
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", slowly)
    with pytest.raises(RunError, match="created concurrently"):
        export(run, to)
    assert [path.name for path in to.iterdir()] == ["mine"]
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model"}


def test_one_of_concurrent_exports_wins(run: Path, tmp_path: Path) -> None:
    wins, reasons = [], []

    def one(_: int) -> None:
        try:
            wins.append(export(run, tmp_path / "model").path)
        except RunError as error:
            reasons.append(str(error))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert wins == [tmp_path / "model"]
    assert all("concurrently" in reason or "already exists" in reason for reason in reasons)
    assert len(reasons) == 3
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model"}


@pytest.mark.parametrize(
    ("error", "message", "out", "options"),
    [
        (RunError, "is inside the run", "run/checkpoints/step-000009", {}),
        (RunError, "already exists", "dangling", {}),
        (RunError, "already exists", "run", {}),
        (CheckpointError, "no checkpoint of step 7; available: 1, 2", "model", {"step": 7}),
        (RunError, "no such folder", "model", {"run": "nothing"}),
        (RunError, "has no checkpoint", "model", {"run": "empty"}),
        (RunError, "choose one of float32, bfloat16", "model", {"dtype": "int4"}),
        (RunError, "is a model without an adapter", "model", {"adapter": True}),
        (RunError, "omit it or --untied", "model", {"adapter": True, "untied": True}),
    ],
)
def test_an_impossible_export_is_refused(
    error: type[PalimpsestError], message: str, out: str, options: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "empty").mkdir()
    source = tmp_path / options.pop("run", run)
    with pytest.raises(error, match=message):
        export(source, tmp_path / out, **options)


def test_errors_of_the_system_name_the_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"--out .*file/model: export failed: .*: Not a directory"):
        export(run, tmp_path / "file" / "model")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "x"))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(RunError, match="x: No space left on device"):
        export(run, tmp_path / "model")
    monkeypatch.undo()

    def torn(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("palimpsest.engines.embedded.model_export.save_file", torn)
    with pytest.raises(RunError, match="No space left on device"):
        export(run, tmp_path / "model", dtype="bfloat16")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "file"}


def test_a_write_that_fails_names_the_file_that_was_written(run: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(RunError, match=rf"failed: {tmp_path}/\.model\S*: File too large"):
            export(run, tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("untied", [False, True])
def test_an_export_names_no_code_of_a_tokenizer(untied: bool, tiny_model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model_folder, tmp_path / "foreign")
    file = tmp_path / "foreign" / "tokenizer_config.json"
    code = {"AutoTokenizer": ["evil/repository--mine.Mine", None]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": code}))
    done = export(tmp_path / "foreign", tmp_path / "model", untied=untied)
    assert not [path for path in done.path.glob("*.json") if "auto_map" in path.read_text()]
    assert AutoTokenizer.from_pretrained(done.path).get_vocab()


def test_an_untied_export_has_its_output_projection_apart(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    done = palimpsest("export", str(run), "--untied", "--out", str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    tied = load_file(run / "checkpoints" / "step-000002" / "model.safetensors")
    weights = [load_file(file) for file in sorted((tmp_path / "model").glob("*.safetensors"))]
    assert json.loads((tmp_path / "model" / "config.json").read_text())["tie_word_embeddings"] is False
    both = {name: value for entry in weights for name, value in entry.items()}
    assert torch.equal(both.pop("lm_head.weight"), tied["model.embed_tokens.weight"])
    assert both.keys() == tied.keys()
    assert all(torch.equal(value, tied[name]) for name, value in both.items())
    assert AutoTokenizer.from_pretrained(tmp_path / "model").get_vocab()


def test_a_model_of_no_run_is_exported_untied_to_begin_a_server_with(tmp_path: Path) -> None:
    done = export("embedded", tmp_path / "model", untied=True)
    assert done.step is None
    assert json.loads((done.path / "config.json").read_text())["tie_word_embeddings"] is False
    with pytest.raises(RunError, match="is a model, not a run"):
        export("embedded", tmp_path / "other", step=3)


@pytest.fixture
def adapted_run(tmp_path: Path, tiny_model_folder: Path) -> Path:
    """A run of adapters with one checkpoint, computed in bfloat16."""
    pytest.importorskip("peft")
    lora = ["model.lora.rank=4", "model.dtype=bfloat16"]
    config = load_recipe("memagent-quickstart", [f"model.path={tiny_model_folder}", *lora])
    model = trainable(config.model.model_copy(update={"dtype": "float32"}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0, 0.05, generator=torch.Generator().manual_seed(0))
    learner = ForestLearner(model, optim=OptimConfig(), tokenizer=Codec.load(config.model).tokenizer)

    async def write(folder: Path) -> dict[str, str]:
        return learner.save(folder)

    with open_run(tmp_path / "run", config, on_warning=lambda _: None) as folder:
        asyncio.run(folder.checkpoints.save(1, write, {}))
    return tmp_path / "run"


def test_adapters_are_exported_merged(adapted_run: Path, tmp_path: Path, tiny_model_folder: Path) -> None:
    checkpoint = adapted_run / "checkpoints" / "step-000001"
    merged = load_model(ModelConfig(path=str(checkpoint)))
    for dtype, kind in (("float32", torch.float32), (None, torch.bfloat16)):  # the run's, where none is named
        done = export(adapted_run, tmp_path / str(dtype), dtype=dtype)
        opened = AutoModelForCausalLM.from_pretrained(done.path, dtype="auto")
        assert opened.dtype == kind
        assert not hasattr(opened, "peft_config")
        assert all(torch.equal(p, q.to(kind)) for p, q in zip(opened.parameters(), merged.parameters(), strict=True))
        assert not list(done.path.glob("adapter*"))
        texts = [path.read_bytes() for path in done.path.iterdir() if path.suffix != ".safetensors"]
        assert not any(str(tmp_path).encode() in text or str(tiny_model_folder).encode() in text for text in texts)
    plain, name = load_file(tiny_model_folder / "model.safetensors"), "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(opened.get_parameter(name).float(), plain[name])


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_folder_with_an_adapter_is_exported_like_the_run(tokenizer: bool, adapted_run: Path, tmp_path: Path) -> None:
    """peft saves none; then the base model's is taken."""
    adapter = tmp_path / "adapter"
    shutil.copytree(adapted_run / "checkpoints" / "step-000001", adapter, ignore=shutil.ignore_patterns("learner"))
    (adapter / "manifest.json").unlink()
    for file in () if tokenizer else (*adapter.glob("tokenizer*"), *adapter.glob("chat_template*")):
        file.unlink()
    ours, theirs = (export(source, tmp_path / f"of-{source.name}") for source in (adapted_run, adapter))
    exact = export(adapted_run, tmp_path / "exact", dtype="float32")
    assert load_file(ours.path / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16  # the run's
    for one, other in ((theirs, exact), (export(adapter, tmp_path / "low", dtype="bfloat16"), ours)):
        weights, expected = (load_file(done.path / "model.safetensors") for done in (one, other))
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in weights)  # theirs: the base model's float32
    names = [{file.name for file in done.path.glob("tokenizer*")} for done in (ours, theirs)]
    assert names[0] == names[1] != set()
    with pytest.raises(RunError, match="is already an adapter"):
        export(adapter, tmp_path / "again", adapter=True)
    with pytest.raises(RunError, match="is a model, not a run"):
        export(adapter, tmp_path / "again", step=1)


def test_an_adapter_can_be_exported_alone(adapted_run: Path, tmp_path: Path) -> None:
    checkpoint = adapted_run / "checkpoints" / "step-000001"
    assert not (checkpoint / "README.md").exists()  # peft's card, which names this machine's folders
    done = export(adapted_run, tmp_path / "adapter", adapter=True)
    names = ("adapter_config.json", "adapter_model.safetensors")
    assert all((done.path / name).read_bytes() == (checkpoint / name).read_bytes() for name in names)
