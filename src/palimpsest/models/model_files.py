"""Bounded reads of model files: JSON, safetensors headers, tokenizer.json. Reads no weights.

A normalizer of tokenizer.json rewrites text, and added tokens already at load. Eight replacements, each ten times
longer than its pattern, turn one letter into 100 MB.

Guaranteed: only plain files of bounded size inside the folder (or blobs of the hub's cache) are opened; an unreadable
or malformed file is a ModelError of one line. Weight files are plain names ending in .safetensors; an adapter's is
adapter_model.safetensors. A size in config.json that the weights don't confirm is an error before the model is built,
so a configuration can't allocate more memory than its weights. The normalizer and pre-tokenizer together, and the
decoder, turn one character into at most `MOST`.
Not covered: weights of another model than the configuration's (loading checks this with `check_used`); regular
expressions that never end.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError, PalimpsestError
from palimpsest.files import read_regular

# ---- Small files, read within bounds -------------------------------------------------------------------------


MAX_BYTES = {"tokenizer.json": 128 << 20, "vocab.json": 64 << 20, "chat_template.jinja": 1 << 20}
"""Maximum size by file name; the largest tokenizer.json in use has about 35 MB."""
_WORDY = 20  # characters; shorter reasons, such as a KeyError's, need the error's class too
MAX_JSON_BYTES = 32 << 20
"""Maximum size of other JSON files."""


_SHARDS = re.compile(r"model_world_size_\d+_rank_\d+\.pt|iter_\d+|.*\.distcp|mp_rank_\d+\S*")


def check_shards(name: str, folder: Path) -> None:
    """Raise ModelError for shards of verl (FSDP) and of Megatron, with the command that converts them."""
    inner = folder / "actor" if (folder / "actor").is_dir() else folder
    shard = next((entry.name for entry in sorted(inner.iterdir()) if _SHARDS.fullmatch(entry.name)), "")
    if not shard or any(folder.glob("*.safetensors")):
        return
    if shard.startswith("model_world"):
        command = f"python -m verl.model_merger merge --backend fsdp --local_dir {inner} --target_dir NEW"
        raise ModelError(f"model {name}: {shard} is an FSDP shard of verl; merge them with {command}")
    tool = "tools/convert_torch_dist_to_hf.py"
    command = f"python {tool} --input-dir {inner / 'iter_...' if shard.startswith('iter_') else inner}"
    command += " --output-dir NEW --origin-hf-dir MODEL"
    raise ModelError(f"model {name}: {shard} is of a Megatron checkpoint; convert it in slime or vime with {command}")


def check_entries(name: str, folder: Path) -> None:
    """Raise ModelError for shards of other trainers, links out of the folder, pipes, devices and oversized texts."""
    check_shards(name, folder)
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() and not _inside(entry, folder):
            raise ModelError(f"model {name}: {entry.name} is a link out of the folder; replace it by the file")
        if not entry.is_file() and not entry.is_dir():
            raise ModelError(f"model {name}: {entry.name} is not a plain file")
        limit = MAX_BYTES.get(entry.name, MAX_JSON_BYTES if entry.suffix == ".json" else None)
        if limit is not None and entry.stat().st_size > limit:
            size = entry.stat().st_size
            raise ModelError(f"model {name}: {entry.name} has {size:,} bytes, more than the limit of {limit:,}")


def _inside(link: Path, folder: Path) -> bool:
    try:
        target, home = link.resolve(strict=True), folder.resolve()
    except (OSError, RuntimeError):  # broken, or in a circle
        return False
    blobs = [home.parent.parent / "blobs"] if home.parent.name == "snapshots" else []
    return any(target.is_relative_to(root) for root in (home, *blobs))


def read_object(name: str, file: Path) -> dict[str, Any]:
    """The JSON object in `file`; {} if the file is missing."""
    try:
        value = json.loads(read_regular(file), object_hook=_number)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise ModelError(f"model {name}: {file.name} is not valid JSON ({reason})") from None
    if not isinstance(value, dict):
        kind = {list: "an array", type(None): "null"}.get(type(value), f"a {type(value).__name__}")
        raise ModelError(f"model {name}: {file.name} has {kind}, but needs a JSON object")
    return value


def _number(value: dict[str, Any]) -> Any:
    """The number that transformers writes as {"__float__": "Infinity"}; other objects unchanged."""
    return float(str(value["__float__"])) if value.keys() == {"__float__"} else value


def token_ids(value: object) -> tuple[int, ...]:
    """Ids in an entry such as `eos_token_id`: one, several or none.

    >>> token_ids(2), token_ids([2, 5]), token_ids(None), token_ids("x")
    ((2,), (2, 5), (), ())
    """
    several = value if isinstance(value, list) else [value]
    return tuple(token for token in several if isinstance(token, int) and not isinstance(token, bool))


def sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(key prefix, configuration) of a configuration and its inner ones, such as `text_config`."""
    yield "", config
    yield from ((f"{key}.", inner) for key, inner in config.items() if isinstance(inner, dict))


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn any library error on foreign files into a one-line ModelError: `what` and the reason."""
    try:
        yield
    except PalimpsestError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in a Rust library is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        kind, reason = type(error).__name__, " ".join(str(error).split())  # the first line may be uninformative
        raise ModelError(f"{what} ({kind + ': ' if len(reason) < _WORDY else ''}{reason:.300})") from None


# ---- Weight files and their headers --------------------------------------------------------------------------


ADAPTER_SETTINGS, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

MAX_LAYERS = 1024
MAX_HEADER_BYTES = 100 << 20  # limit of the format
_WIDTHS = frozenset(
    str.split(
        "vocab_size hidden_size intermediate_size moe_intermediate_size head_dim num_attention_heads "
        "num_key_value_heads n_embd n_head n_inner d_model"
    )
)
_LAYERS = frozenset(["num_hidden_layers", "n_layer", "num_layers"])
_COUNTS = _WIDTHS | _LAYERS | {"max_position_embeddings", "n_positions"}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight")
_NUMBERS = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
_LANGUAGE = ("", "text_config.")  # sections that describe the language model
_MAX_COUNT, _MAX_EXPERTS = 1 << 31, 1 << 16
_PLAIN = re.compile(r"[^/\\\0]+\.safetensors")
LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_DISPENSABLE = re.compile(
    r"(?:^|[._])(?:inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids|version|cos_cached|sin_cached)$"
    r"|(?:^|\.)(?:lm_head|score|classifier|v_head|value_head|mtp\w*)\."  # heads: of other uses, or tied
    r"|(?:^|[._])(?:visual|vision|audio|speech|image|video|multi_?modal|mm)(?=[._])"
)
"""Names of weights that the language model does not need."""

Shapes = Mapping[str, tuple[int, ...]]
"""Weight name to shape."""


def weight_names(name: str, folder: Path) -> tuple[str, ...]:
    """Names of the weight files. Raises ModelError for an index with other names."""
    if (folder / ADAPTER_SETTINGS).is_file():
        return (ADAPTER,)
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return (WEIGHTS,)
    listed = read_object(name, folder / INDEX)
    named = listed.get("weight_map")
    if not isinstance(named, dict) or not named or "metadata" not in listed:
        missing = "metadata" if named else "weight_map"
        raise ModelError(f"model {name}: {INDEX} has no {missing}; save the model again")
    for weight, file in named.items():
        if not isinstance(file, str) or not _PLAIN.fullmatch(file) or file.startswith("."):
            raise ModelError(
                f"model {name}: {INDEX} maps {weight[:80]} to {file!r:.80}; it must be a *.safetensors file directly "
                "in the folder"
            )
    return tuple(sorted(set(named.values())))


def check_weights(name: str, folder: Path) -> Shapes:
    """Shapes declared in the weight files. Raises ModelError for a missing or damaged file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_names(name, folder):
        path = folder / file
        if not path.is_file():
            there = "; pickled weights are not supported" if [*folder.glob("*.bin"), *folder.glob("*.pt*")] else ""
            what = f"no {file}" if file != WEIGHTS else "no *.safetensors weights"
            raise ModelError(f"model {name}: {what}{there}; save them with save_pretrained")
        shapes.update(_shapes(name, path))
    return shapes


def _shapes(name: str, file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise ModelError(f"model {name}: {file.name} is truncated or not safetensors; save the model again")
        header = stream.read(length)
    try:
        tensors = {key: tensor for key, tensor in json.loads(header).items() if key != "__metadata__"}
        shapes = {key: tuple(map(index, tensor["shape"])) for key, tensor in tensors.items()}
        kinds = {key: str(tensor["dtype"]) for key, tensor in tensors.items()}
        places = {key: tuple(map(index, tensor["data_offsets"])) for key, tensor in tensors.items()}
        held, ends = {key: end - start for key, (start, end) in places.items()}, [end for _, end in places.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelError(f"model {name}: {file.name} has a damaged header; save the model again") from None
    if not max(ends, default=0) == sum(held.values()) == size - 8 - length:
        raise ModelError(f"model {name}: {file.name} is truncated, or longer than its header states; save it again")
    for key, kind in kinds.items():  # integer tables, such as masks, have other names
        if key.endswith(".weight") and kind not in _NUMBERS:
            raise ModelError(f"model {name}: {key:.100} has dtype {kind}; use one of {', '.join(_NUMBERS)}")
        if min(shapes[key], default=0) < 0 or math.prod(shapes[key]) * _NUMBERS.get(kind, 0) not in (0, held[key]):
            raise ModelError(f"model {name}: {key:.100} has shape {shapes[key]} and {held[key]} bytes; save it again")
    yield from shapes.items()


def check_sizes(name: str, config: Mapping[str, Any], shapes: Shapes) -> None:
    """Raise ModelError for sizes outside the limits, larger than the weights, or a vocabulary of another size than the
    embedding."""
    widest = max((side for shape in shapes.values() for side in shape), default=0)
    layers = max((int(match[1]) + 1 for weight in shapes for match in LAYER.finditer(weight)), default=MAX_LAYERS)
    for prefix, key, value in counts_in(name, config):
        most = {**dict.fromkeys(_WIDTHS, widest), **dict.fromkeys(_LAYERS, layers)}.get(key)
        if most is not None and value is not None and prefix in _LANGUAGE and value > most:
            held = f"the weights have {most} layers" if key in _LAYERS else f"the widest weight has {most}"
            raise ModelError(f"model {name}: config.json has {prefix}{key}={value}, but {held}")
    for weight, shape in shapes.items():
        size = config.get("vocab_size")
        if weight in _EMBEDDINGS and len(shape) == 2 and size is not None and size != shape[0]:
            raise ModelError(f"model {name}: config.json has vocab_size={size}, but embed_tokens has {shape[0]} rows")


def counts_in(name: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(key prefix, key, size) of a config.json; lists have several. Raises ModelError for one outside the limits."""
    for prefix, section in sections(config):
        for key in sorted((_COUNTS | {*EXPERTS}) & section.keys()):
            for value in section[key] if isinstance(section[key], list) else [section[key]]:
                checked = value or None if key in EXPERTS else value  # 0: none
                check_count(name, f"{prefix}{key}", checked)
                yield prefix, key, checked


def check_full(name: str, config: Mapping[str, Any]) -> None:
    """Raise ModelError for the config.json of quantised weights."""
    if config.get("quantization_config"):
        raise ModelError(f"model {name}: quantised weights are not supported; use the original model")


def check_count(name: str, key: str, value: Any) -> None:
    """Raise ModelError for a size that is not a whole number within the limits; None is allowed."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"model {name}: config.json has {key}={value!r:.60}; it must be a whole number")
    plain = key.rpartition(".")[2]
    most = MAX_LAYERS if plain in _LAYERS else _MAX_EXPERTS if plain in EXPERTS else _MAX_COUNT
    if not 1 <= value <= most:
        raise ModelError(f"model {name}: config.json has {key}={value}; it must be from 1 to {most}")


def check_used(name: str, unused: Iterable[str]) -> None:
    """Raise ModelError for weights that the configured model does not use."""
    if foreign := sorted(weight for weight in unused if not _DISPENSABLE.search(weight)):
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ModelError(
            f"model {name}: config.json describes a model without the weight {foreign[0]:.100}{more} of the files; use "
            "the config.json saved with them"
        )


def count(shapes: Shapes | Sequence[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in (shapes.values() if isinstance(shapes, Mapping) else shapes))


# ---- Limits of a tokenizer.json ------------------------------------------------------------------------------


MOST = 1024
"""Maximum characters from one; Unicode's forms (NFKC, a SentencePiece map) need up to 18."""
_UNICODE = {"NFKC": 18, "NFKD": 18, "NFC": 3, "NFD": 4, "Lowercase": 3, "BertNormalizer": 12}
_UNICODE |= {"ByteLevel": 5, "Metaspace": 2}  # one character per byte, up to four; both may prepend one


def check_tokenizer(name: str, folder: Path) -> None:
    """Raise ModelError if the steps of the tokenizer.json in `folder` lengthen text too much."""
    state = read_object(name, folder / "tokenizer.json")
    read = ["normalizer", "pre_tokenizer"]  # applied in sequence, so their factors multiply
    for keys in (["normalizer"], read, ["decoder"]):
        factor = math.prod(_factor(step) for part in keys for step in _steps(name, part, state.get(part)))
        if factor > MOST:
            raise ModelError(
                f"model {name}: tokenizer.json: its {' and '.join(keys)} can turn one character into {factor:,}, more "
                f"than {MOST:,}; use the model's original tokenizer"
            )


_SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
"""Key of the steps of a sequence, by part."""


def _steps(name: str, part: str, step: Any) -> Iterator[Mapping[str, Any]]:
    """The single steps of a part that may be a sequence. Raises ModelError for a sequence with other keys."""
    if not isinstance(step, Mapping):
        return
    key = _SEQUENCES[part]
    if step.get("type") != "Sequence" and step.keys().isdisjoint(_SEQUENCES.values()):
        yield step
        return
    if not step.keys() <= {"type", key} or not isinstance(step.get(key), list):
        keys = ", ".join(sorted(map(str, step)))
        raise ModelError(
            f"model {name}: tokenizer.json: a sequence in {part} has the keys {keys:.100}; use type, {key}"
        )
    for child in step[key]:
        yield from _steps(name, part, child)


def _factor(step: Mapping[str, Any]) -> int:
    """Maximum characters that a step makes from one.

    >>> _factor({"type": "Replace", "pattern": {"String": " "}, "content": "\\u2581"}), _factor({"type": "NFKC"})
    (1, 18)
    >>> _factor({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "ab"})  # before each character, too
    3
    """
    kind, factors = step.get("type"), [1]  # without a type, in old files, the keys decide
    if kind in ("Replace", None) and "content" in step:
        pattern, content = step.get("pattern"), len(str(step.get("content", "")))
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        factors.append(-(-content // len(literal)) if isinstance(literal, str) and literal else content + 1)
    if kind in ("Prepend", None) and "prepend" in step:
        factors.append(len(str(step.get("prepend", ""))) + 1)
    if kind in ("Precompiled", None) and "precompiled_charsmap" in step:
        factors.append(_longest_entry(step["precompiled_charsmap"]))
    return max(*factors, _UNICODE.get(str(kind), 1))


def _longest_entry(charsmap: Any) -> int:
    """Characters of the longest text in a SentencePiece map: the size of a trie, the trie, texts that end with NUL."""
    try:
        data = base64.b64decode(charsmap, validate=True)
    except (ValueError, TypeError):
        return MOST + 1
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(len(text.decode("utf-8", "replace")) for text in texts)
