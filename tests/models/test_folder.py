"""Hostile and broken model folders: one line each, before anything is computed."""

from __future__ import annotations

import ast
import base64
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from palimpsest.config.schema import ModelConfig
from palimpsest.engines.embedded.engine import check_vocabulary
from palimpsest.engines.embedded.model_loading import load_model
from palimpsest.errors import CheckpointError, ModelError
from palimpsest.files import hashes
from palimpsest.models import model_folder
from palimpsest.models.checkpoint_manifest import MANIFEST, sealed
from palimpsest.models.model_files import check_tokenizer, check_weights
from palimpsest.models.model_folder import check_name, opened
from palimpsest.text.codec import Codec
from support.source import MODULES

Change = Callable[[Path], object]


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model_folder, tmp_path / "model")


def edit(file: str, **changes: Any) -> Change:
    """Set keys of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def write(file: str, content: str | bytes) -> Change:
    return lambda folder: (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())


def index(file: str) -> Change:
    """The weights in a file of this name, as an index says."""

    def change(folder: Path) -> None:
        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        text = json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, file)})
        (folder / "model.safetensors.index.json").write_text(text)
        torch.save(names, folder / "weights.bin")
        torch.save(names, folder.parent / "outside.safetensors")

    return change


def weights(change: Callable[[dict[str, Any]], object]) -> Change:
    def changed(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def header(**changes: Any) -> Change:
    """Weights of a header whose first tensor has these values."""

    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        size = struct.unpack("<Q", path.read_bytes()[:8])[0]
        tensors = json.loads(path.read_bytes()[8 : 8 + size])
        tensors["model.norm.weight"] |= changes
        text = json.dumps(tensors).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + path.read_bytes()[8 + size :])

    return change


def link(file: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        (folder / file).symlink_to(target)

    return change


def adapter(**changes: Any) -> Change:
    """An adapter in the place of the model, of itself unless `changes` say otherwise."""

    def change(folder: Path) -> None:
        for file in ("config.json", "model.safetensors"):
            (folder / file).unlink()
        settings = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "base_model_name_or_path": str(folder)}
        (folder / "adapter_config.json").write_text(json.dumps(settings | changes))
        save_file({"a.lora_A.weight": torch.zeros(2, 4)}, folder / "adapter_model.safetensors")

    return change


def pickled_adapter(folder: Path) -> None:
    adapter()(folder)
    (folder / "adapter_model.safetensors").unlink()
    torch.save({}, folder / "adapter_model.bin")


def pipe(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    os.mkfifo(folder / "generation_config.json")


def nan(held: dict[str, Any]) -> None:
    held["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")


def overflowing(held: dict[str, Any]) -> None:
    held["model.norm.weight"].fill_(3e38)


MODELS: dict[str, tuple[Change, str]] = {
    "no heads": (edit("config.json", num_attention_heads=0), "num_attention_heads=0; it must be from 1"),
    "no heads of keys": (edit("config.json", num_key_value_heads=0), "num_key_value_heads=0"),
    "a million layers": (edit("config.json", num_hidden_layers=1_000_000), "num_hidden_layers=1000000"),
    "layers that aren't there": (edit("config.json", num_hidden_layers=900), "the weights have 2 layers"),
    "layers as text": (edit("config.json", num_hidden_layers="2"), "it must be a whole number"),
    "a vocabulary of billions": (edit("config.json", vocab_size=2_000_000_000), "vocab_size=2000000000"),
    "wide layers": (edit("config.json", intermediate_size=1_000_000_000), "the widest weight has 375"),
    "an endless window": (edit("config.json", max_position_embeddings=10**15), "max_position_embeddings"),
    "quantised": (edit("config.json", quantization_config={"quant_method": "gptq"}), "quantised"),
    "code of its own": (edit("config.json", model_type="mine", auto_map={"AutoConfig": "m.C"}), "not loadable"),
    "no configuration": (write("config.json", "[1, 2]"), "config.json has an array"),
    "a deep configuration": (write("config.json", "[" * 100_000), "config.json is not valid JSON"),
    "a pickle": (index("weights.bin"), "'weights.bin'; it must be a *.safetensors file"),
    "a file above": (index("../outside.safetensors"), "it must be a *.safetensors file"),
    "a file elsewhere": (index("/etc/outside.safetensors"), "it must be a *.safetensors file"),
    "a shard that isn't there": (index("model-1.safetensors"), "no model-1.safetensors"),
    "a torn file": (write("model.safetensors", b"\x00" * 20), "truncated or not safetensors"),
    "a header without end": (write("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"), "truncated"),
    "a shape that is none": (header(shape=3), "damaged header"),
    "a shape below 0": (header(shape=[-1]), "has shape (-1,)"),
    "a shape without its bytes": (header(shape=[10**15]), "has shape (1000000000000000,)"),
    "an infinite end": (header(data_offsets=[0, float("inf")]), "damaged header"),
    "another shape": (
        weights(lambda held: held.update({"model.norm.weight": torch.ones(7)})),
        "weight model.norm.weight has shape [7], config.json needs [",
    ),
    "not numbers": (weights(nan), "model.layers.1.mlp.up_proj.weight is not finite"),
    "numbers that overflow": (weights(overflowing), "its weights give logits that are not finite"),
    "a weight too few": (weights(lambda held: held.pop("model.norm.weight")), "model.norm.weight is missing"),
    "no configuration at all": (write("config.json", "null"), "config.json has null, but needs a JSON object"),
    "a number as text": (edit("config.json", rms_norm_eps="x"), "'rms_norm_eps': TypeError: Field"),
    "kinds of too few layers": (
        edit("config.json", layer_types=["full_attention"]),
        "'validate_layer_type': ValueError",
    ),
    "an activation of no name": (edit("config.json", hidden_act="nope"), "(KeyError: 'nope')"),
    "an architecture by number": (edit("config.json", architectures=3), "architectures=3; it must be a list of names"),
    "fewer rows than the weights": (edit("config.json", vocab_size=10), "vocab_size=10, but embed_tokens has 375 rows"),
    "weights in whole numbers": (
        weights(lambda held: held.update({"model.norm.weight": held["model.norm.weight"].to(torch.int8)})),
        "model.norm.weight has dtype I8; use one of F16, BF16, F32, F64",
    ),
    "layers left out": (edit("config.json", num_hidden_layers=1), "without the weight model.layers.1."),
    "a weight too many": (
        weights(lambda held: held.update({"model.layers.0.mlp.gate.weight": torch.zeros(3)})),
        "without the weight model.layers.0.mlp.gate.weight of the files",
    ),
    "a link out": (link("generation_config.json", "/etc/passwd"), "generation_config.json is a link out"),
    "a link in a circle": (link("merges.txt", "merges.txt"), "merges.txt is a link out"),
    "a pipe": (pipe, "generation_config.json is not a plain file"),
    "an adapter of itself": (adapter(), "is an adapter of itself"),
    "an adapter of nothing": (adapter(base_model_name_or_path="./nowhere"), "./nowhere: no such folder"),
    "a pickled adapter": (pickled_adapter, "no adapter_model.safetensors; pickled weights are not supported"),
    "an adapter of another kind": (adapter(peft_type="IA3"), "only LORA is supported"),
    "an adapter that imports": (adapter(megatron_config={"a": 1}, megatron_core="os"), "megatron_config"),
    "an adapter by a pattern": (adapter(target_modules="(a+)+$"), "use plain names"),
    "an adapter of any rank": (adapter(r=10**9), "r=1000000000, but its weights have 4"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_hostile_or_broken_is_refused_in_one_line(name: str, folder: Path) -> None:
    change, said = MODELS[name]
    change(folder)
    with pytest.raises(ModelError) as caught:
        load_model(ModelConfig(path=str(folder)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SHOUTING = "{% for message in messages %}<s>{{ message['content']|upper }}</s>{% endfor %}"
TOKENIZERS: dict[str, tuple[Change, str]] = {
    "an array for settings": (write("tokenizer_config.json", "[]"), "tokenizer_config.json has an array"),
    "none": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    "not one": (write("tokenizer.json", "{}"), "its tokenizer can't be loaded"),
    "a template that isn't one": (write("chat_template.jinja", "{% for %}"), "its chat template can't be used"),
    "a template that raises": (write("chat_template.jinja", "{{ raise_exception('no') }}"), "raises on a user message"),
    "a template without end": (write("chat_template.jinja", LOOPS), "doesn't end within"),
    "a template of gigabytes": (write("chat_template.jinja", "{{ 'a' * 10**11 }}"), "chat template"),
    "a template that floods": (write("chat_template.jinja", "{{ 'a' * 10**7 }}"), "writes more than"),
    "an empty template": (write("chat_template.jinja", ""), "its chat template is empty"),
    "a template without messages": (write("chat_template.jinja", "hello"), "shows a user message not as it stands"),
    "a template that rewrites": (write("chat_template.jinja", SHOUTING), "shows a user message not as it stands"),
    "a template that escapes": (write("chat_template.jinja", SHOUTING.replace("upper", "e")), "not as it stands"),
    "a template that repeats": (
        write("chat_template.jinja", SHOUTING.replace("|upper", "*2")),
        "a user message 2 times",
    ),
    "an oversized template": (write("chat_template.jinja", b" " * (1 << 21)), "more than the"),
}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def charsmap(*texts: str) -> dict[str, str]:
    data = struct.pack("<I", 4) + b"\0" * 4 + b"".join(text.encode() + b"\0" for text in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    ("part", "step", "said"),
    [
        ("pre_tokenizer", {"type": "Sequence", "normalizers": [], "pretokenizers": [BYTES] * 16}, "has the keys"),
        ("pre_tokenizer", {"normalizers": [], "pretokenizers": [BYTES] * 16}, "has the keys"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"decoders": [], "normalizers": []}]}, "has the keys"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": BYTES}, "has the keys"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 16}, "can turn one character into"),
        ("decoder", {"type": "Sequence", "normalizers": [], "decoders": [BYTES] * 16}, "has the keys"),
        ("normalizer", {"type": "Sequence", "normalizers": [], "more": []}, "has the keys"),
        ("normalizer", {"type": "Sequence"}, "has the keys"),
        ("normalizer", charsmap("b", "a" * 200_000), "can turn one character into 200,000"),
        ("normalizer", charsmap("b") | {"precompiled_charsmap": "!"}, "can turn one character into 1,025"),
        ("normalizer", {"prepend": "a" * 2000, "pattern": {"String": "a"}, "content": "a"}, "character into 2,001"),
    ],
)
def test_a_tokenizer_that_lengthens_text_too_much_is_rejected(
    folder: Path, part: str, step: dict[str, Any], said: str
) -> None:
    edit("tokenizer.json", **{part: step})(folder)
    with pytest.raises(ModelError) as caught:
        check_tokenizer(str(folder), folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_steps_of_common_tokenizers_pass(folder: Path) -> None:
    nested = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [charsmap("a" * 18)]}]}
    pieces = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]}
    edit("tokenizer.json", normalizer=nested, pre_tokenizer=pieces)(folder)
    check_tokenizer(str(folder), folder)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_is_hostile_or_broken_is_refused_in_one_line(name: str, folder: Path) -> None:
    change, said = TOKENIZERS[name]
    change(folder)
    with pytest.raises(ModelError) as caught:
        Codec.load(folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_configuration_asks_for_no_more_than_its_weights_have(folder: Path) -> None:
    """Sizes that are each borne out by some weight make a model far larger than the file."""
    torch_file = folder / "model.safetensors"
    save_file({"model.layers.1.a.weight": torch.zeros(1, 1 << 17)}, torch_file, metadata={"format": "pt"})
    edit("config.json", hidden_size=1 << 17, intermediate_size=1 << 17)(folder)
    with pytest.raises(ModelError, match=r"config\.json describes .* weights, its files hold 131,072"):
        load_model(ModelConfig(path=str(folder)))


def test_weights_beside_the_language_model_do_no_harm(folder: Path) -> None:
    rotary, head = "model.layers.0.self_attn.rotary_emb.inv_freq", "v_head.summary.weight"
    names = (rotary, head, "visual.blocks.0.attn.qkv.weight", "model.mtp_layers.0.input_proj.weight")
    weights(lambda held: held.update({name: torch.zeros(3) for name in names}))(folder)
    load_model(ModelConfig(path=str(folder)))


def test_a_tokenizer_with_more_words_than_the_model_has_rows_is_refused(tiny_codec: Codec) -> None:
    check_vocabulary(tiny_codec, tiny_codec.vocab_size, "m")
    with pytest.raises(ModelError, match=r"its tokenizer has id 374, the model has 300 rows"):
        check_vocabulary(tiny_codec, 300, "m")


def test_links_inside_the_folder_and_into_the_hubs_blobs_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "kept.safetensors")
    (folder / "model.safetensors").symlink_to("kept.safetensors")
    assert check_weights("m", opened(str(folder)))
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    shutil.copytree(folder, snapshot, symlinks=True)
    blob = tmp_path / "models--a--b" / "blobs" / "4567"
    blob.parent.mkdir()
    (snapshot / "kept.safetensors").rename(blob)
    (snapshot / "kept.safetensors").symlink_to("../../blobs/4567")
    assert check_weights("m", opened(str(snapshot)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runs/frist", "runs/frist: no such folder; did you mean first?"),
        ("./mdoel", "./mdoel: no such folder; did you mean model?"),
        ("a/b/c", "a/b/c: no such folder"),
        ("modle", "modle: no such folder here; did you mean model?"),
        ("embeded", "did you mean embedded?"),
        ("model/config.json", "is a file; use its folder"),
    ],
)
def test_a_mistyped_folder_is_refused_at_once_with_the_nearest_name(
    name: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "runs" / "first").mkdir(parents=True)
    monkeypatch.setattr("palimpsest.models.model_folder.hub_folder", lambda name: pytest.fail("the hub was asked"))
    with pytest.raises(ModelError) as caught:
        opened(name)
    assert said in str(caught.value)


def test_offline_is_said_plainly_after_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def model_info(self: Any, name: str, **options: Any) -> None:
        asked.append(name)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(ModelError, match=r"the hub can't be reached \(Name or service not known\): use a folder"):
        opened("nobody/nothing")
    assert asked == ["nobody/nothing"]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        opened("nobody/nothing")
    assert asked == ["nobody/nothing"]


def test_a_model_in_the_hubs_cache_is_opened_without_asking(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    home = tmp_path / "cache" / "models--some--model"
    shutil.copytree(folder, home / "snapshots" / "0123")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    assert opened("some/model") == home / "snapshots" / "0123" == model_folder.cached("some/model")
    assert Codec.load("some/model").vocab_size == 375
    check_name("some/model")


def test_a_damaged_checkpoint_is_refused_wherever_it_is_opened(folder: Path) -> None:
    files = {name: {"sha256": sha, "size": (folder / name).stat().st_size} for name, sha in hashes(folder).items()}
    (folder / MANIFEST).write_bytes(sealed({"format": 1, "step": 3, "identity": "", "state": {}, "files": files}))
    load_model(ModelConfig(path=str(folder)))
    for file in ("model.safetensors", "chat_template.jinja", MANIFEST):
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
        for load in (Codec.load, lambda path: load_model(ModelConfig(path=path))):
            with pytest.raises(CheckpointError, match=f"{file} is damaged|{file} can't be read"):
                load(str(folder))
        (folder / file).write_bytes(whole)
    Codec.load(folder)


def test_a_manifest_of_somebody_else_is_none_of_ours(folder: Path) -> None:
    (folder / MANIFEST).write_text(json.dumps({"name": "an app"}))
    assert opened(str(folder)) == folder


@pytest.mark.parametrize(
    ("place", "files", "way_out"),
    [
        (
            "global_step_20",
            ["actor/model_world_size_8_rank_0.pt", "actor/hf/config.json"],
            "verl.model_merger",
        ),
        ("actor", ["model_world_size_2_rank_1.pt", "config.json", "tokenizer.json"], "verl.model_merger"),
        ("iter_0000099", ["__0_0.distcp", "common.pt"], "convert_torch_dist_to_hf.py"),
        ("saved", ["latest_checkpointed_iteration.txt", "iter_0000099/common.pt"], "convert_torch_dist_to_hf.py"),
    ],
)
def test_shards_of_other_trainers_are_named_with_the_command_that_converts_them(
    place: str, files: list[str], way_out: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = tmp_path / place
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    for words in (["export", str(folder), "--out", str(tmp_path / "out")], ["eval", str(folder), "--chunks", "1"]):
        assert way_out in refused(*words)


def test_a_merged_model_beside_its_shards_is_opened(folder: Path) -> None:
    (folder / "model_world_size_8_rank_0.pt").write_bytes(b"")
    assert opened(str(folder)) == folder


def test_code_of_a_folder_is_never_trusted() -> None:
    """Every call of `from_pretrained` and `from_config` says so, but peft's, which knows no such code."""
    calls = [
        (module, node)
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("from_pretrained", "from_config") and not ast.unparse(node.func).startswith("peft.")
    ]
    assert len(calls) > 5
    trusting = [
        f"{module}:{node.lineno}"
        for module, node in calls
        if not any(
            word.arg == "trust_remote_code" and isinstance(word.value, ast.Constant) and word.value.value is False
            for word in node.keywords
        )
    ]
    assert not trusting
