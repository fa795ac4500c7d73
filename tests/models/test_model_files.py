"""Hostile and broken files of models and tokenizers are rejected in one line, before anything is computed."""

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
from palimpsest.errors import ModelError
from palimpsest.models.model_files import check_tokenizer
from palimpsest.text.codec import Codec
from support.records import one_line_error
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
    """Name this file of weights in an index."""

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
    """Change the header of a tensor."""

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
    """Replace the model by an adapter, of itself unless `changes` name another."""

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
    "missing layers": (edit("config.json", num_hidden_layers=900), "the weights have 2 layers"),
    "layers as text": (edit("config.json", num_hidden_layers="2"), "it must be a whole number"),
    "a vocabulary of billions": (edit("config.json", vocab_size=2_000_000_000), "vocab_size=2000000000"),
    "wide layers": (edit("config.json", intermediate_size=1_000_000_000), "the widest weight has 375"),
    "an endless window": (edit("config.json", max_position_embeddings=10**15), "max_position_embeddings"),
    "quantised": (edit("config.json", quantization_config={"quant_method": "gptq"}), "quantised"),
    "custom code": (edit("config.json", model_type="mine", auto_map={"AutoConfig": "m.C"}), "not loadable"),
    "no configuration": (write("config.json", "[1, 2]"), "config.json has an array"),
    "a deep configuration": (write("config.json", "[" * 100_000), "config.json is not valid JSON"),
    "a pickle": (index("weights.bin"), "'weights.bin'; it must be a *.safetensors file"),
    "a file above": (index("../outside.safetensors"), "it must be a *.safetensors file"),
    "a file elsewhere": (index("/etc/outside.safetensors"), "it must be a *.safetensors file"),
    "a missing shard": (index("model-1.safetensors"), "no model-1.safetensors"),
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
def test_a_hostile_or_broken_model_is_rejected(name: str, folder: Path) -> None:
    change, reason = MODELS[name]
    change(folder)
    message = one_line_error(ModelError, load_model, ModelConfig(path=str(folder)))
    assert reason in message
    assert len(message) < 600


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
    "a template without messages": (write("chat_template.jinja", "hello"), "shows a user message with changes"),
    "a template that rewrites": (write("chat_template.jinja", SHOUTING), "shows a user message with changes"),
    "a template that escapes": (
        write("chat_template.jinja", SHOUTING.replace("upper", "e")),
        "with changes, or not at all",
    ),
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
    ("part", "step", "reason"),
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
    folder: Path, part: str, step: dict[str, Any], reason: str
) -> None:
    edit("tokenizer.json", **{part: step})(folder)
    assert reason in one_line_error(ModelError, check_tokenizer, str(folder), folder)


def test_the_steps_of_common_tokenizers_are_accepted(folder: Path) -> None:
    nested = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [charsmap("a" * 18)]}]}
    pieces = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]}
    edit("tokenizer.json", normalizer=nested, pre_tokenizer=pieces)(folder)
    check_tokenizer(str(folder), folder)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_hostile_or_broken_tokenizer_is_rejected(name: str, folder: Path) -> None:
    change, reason = TOKENIZERS[name]
    change(folder)
    assert reason in one_line_error(ModelError, Codec.load, folder)


def test_a_configuration_larger_than_its_weights_is_rejected(folder: Path) -> None:
    """Each size matches some weight, but the model is far larger than the file."""
    torch_file = folder / "model.safetensors"
    save_file({"model.layers.1.a.weight": torch.zeros(1, 1 << 17)}, torch_file, metadata={"format": "pt"})
    edit("config.json", hidden_size=1 << 17, intermediate_size=1 << 17)(folder)
    with pytest.raises(ModelError, match=r"config\.json describes .* weights, its files hold 131,072"):
        load_model(ModelConfig(path=str(folder)))


def test_weights_other_than_the_language_model_are_ignored(folder: Path) -> None:
    rotary, head = "model.layers.0.self_attn.rotary_emb.inv_freq", "v_head.summary.weight"
    names = (rotary, head, "visual.blocks.0.attn.qkv.weight", "model.mtp_layers.0.input_proj.weight")
    weights(lambda held: held.update({name: torch.zeros(3) for name in names}))(folder)
    load_model(ModelConfig(path=str(folder)))


def test_a_tokenizer_with_more_words_than_the_model_has_rows_is_rejected(tiny_codec: Codec) -> None:
    check_vocabulary(tiny_codec, tiny_codec.vocab_size, "m")
    with pytest.raises(ModelError, match=r"its tokenizer has id 374, the model has 300 rows"):
        check_vocabulary(tiny_codec, 300, "m")


def test_code_of_a_folder_is_never_trusted() -> None:
    """Every call of `from_pretrained` and `from_config` has trust_remote_code=False, except those of peft."""
    calls = [
        (module, node)
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("from_pretrained", "from_config") and not ast.unparse(node.func).startswith("peft.")
    ]
    assert len(calls) > 5
    untrusting = "trust_remote_code=False"
    trusting = [(m, node.lineno) for m, node in calls if untrusting not in map(ast.unparse, node.keywords)]
    assert not trusting
