"""Model files read within bounds: JSON, safetensors headers, tokenizer.json. No weight is read.

A normalizer of tokenizer.json rewrites text, that of added tokens at load too. Eight replacements, each ten times as
long as what it replaces, turn one letter into a hundred megabytes.

Guaranteed: what is opened is a plain file of a bounded size inside the folder (or, in the hub's cache, one of its
blobs); what can't be read, or has the wrong form, is a ModelError of one line. Weight files are plain names that end in
.safetensors, an adapter's is adapter_model.safetensors. Sizes in config.json that the weights don't confirm are
rejected before a model is built, so a configuration can't ask for more memory than its weights have. The steps of a
normalizer and pre-tokenizer together, or of a decoder, turn one character into at most `MOST`.
Not covered: whether the weights are those of the model that the configuration describes, which loading checks with
`check_used`; regular expressions that never end.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError, PalimpsestError
from palimpsest.files import read_regular

# ---- Small files, read within bounds -------------------------------------------------------------------------


MAX_BYTES = {"tokenizer.json": 128 << 20, "vocab.json": 64 << 20, "chat_template.jinja": 1 << 20}
"""Largest size of a file by its name; the largest tokenizer.json in use has about 35 MB."""
_WORDY = 20  # characters; shorter reasons, such as that of a KeyError, need the kind of error beside them
MAX_JSON_BYTES = 32 << 20
"""Of every other JSON file."""


def check_entries(name: str, folder: Path) -> None:
    """Refuse what no model folder needs: links that lead out of it, pipes and devices, oversized texts."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() and not _inside(entry, folder):
            raise ModelError(f"model {name}: {entry.name} is a link out of the folder; put the file itself there")
        if not entry.is_file() and not entry.is_dir():
            raise ModelError(f"model {name}: {entry.name} is no plain file")
        limit = MAX_BYTES.get(entry.name, MAX_JSON_BYTES if entry.suffix == ".json" else None)
        if limit is not None and entry.stat().st_size > limit:
            size = entry.stat().st_size
            raise ModelError(f"model {name}: {entry.name} has {size:,} bytes, more than the {limit:,} that are read")


def _inside(link: Path, folder: Path) -> bool:
    """Whether a link ends inside its folder, or in the blobs beside the hub cache's snapshots."""
    try:
        target, home = link.resolve(strict=True), folder.resolve()
    except (OSError, RuntimeError):  # broken, or in a circle
        return False
    blobs = [home.parent.parent / "blobs"] if home.parent.name == "snapshots" else []
    return any(target.is_relative_to(root) for root in (home, *blobs))


def read_object(name: str, file: Path) -> dict[str, Any]:
    """The JSON object in `file`; {} if there is no such file."""
    try:
        value = json.loads(read_regular(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise ModelError(f"model {name}: {file.name} can't be read as JSON ({reason})") from None
    if not isinstance(value, dict):
        raise ModelError(f"model {name}: {file.name} holds {_kind(value)}, a JSON object is needed")
    return value


def _kind(value: object) -> str:
    return {list: "an array", type(None): "null"}.get(type(value), f"a {type(value).__name__}")


_TEXT_FILES = (
    "tokenizer*",
    "chat_template*",
    "additional_chat_templates/*",
    "special_tokens_map.json",
    "added_tokens.json",
)


def text_digests(folder: Path) -> dict[str, str]:
    """16 hex digits of each file of a model's folder that says how text becomes ids: its tokenizer, its templates."""
    files = sorted(file for pattern in (*_TEXT_FILES, "vocab.*", "merges.txt") for file in folder.glob(pattern))
    return {file.name: hashlib.sha256(read_regular(file)).hexdigest()[:16] for file in files if file.is_file()}


def token_ids(value: object) -> tuple[int, ...]:
    """Ids of an entry such as `eos_token_id`, which holds one, several or none.

    >>> token_ids(2), token_ids([2, 5]), token_ids(None), token_ids("x")
    ((2,), (2, 5), (), ())
    """
    several = value if isinstance(value, list) else [value]
    return tuple(token for token in several if isinstance(token, int) and not isinstance(token, bool))


def sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A configuration and those inside it, such as `text_config`, with what stands before their keys."""
    yield "", config
    yield from ((f"{key}.", inner) for key, inner in config.items() if isinstance(inner, dict))


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Whatever a library raises over foreign files becomes a ModelError: `what`, and the reason on the same line."""
    try:
        yield
    except PalimpsestError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of the libraries in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        kind, reason = type(error).__name__, " ".join(str(error).split())  # of several lines, the first may say little
        raise ModelError(f"{what} ({kind + ': ' if len(reason) < _WORDY else ''}{reason:.300})") from None


# ---- Weight files and their headers --------------------------------------------------------------------------


ADAPTER_SETTINGS, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

MAX_LAYERS = 1024
MAX_HEADER_BYTES = 100 << 20  # what the format itself allows
_WIDTHS = frozenset(
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "head_dim",
        "num_attention_heads",
        "num_key_value_heads",
        "n_embd",
        "n_head",
        "n_inner",
        "d_model",
    ]
)
_LAYERS = frozenset(["num_hidden_layers", "n_layer", "num_layers"])
_COUNTS = _WIDTHS | _LAYERS | {"max_position_embeddings", "n_positions"}
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight")
_NUMBERS = ("F16", "BF16", "F32", "F64")
_LANGUAGE = ("", "text_config.")  # sections that describe the language model
_MAX_COUNT = 1 << 31
_PLAIN = re.compile(r"[^/\\\0]+\.safetensors")
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_DISPENSABLE = re.compile(
    r"(?:^|[._])(?:inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids|version|cos_cached|sin_cached)$"
    r"|(?:^|\.)(?:lm_head|score|classifier|v_head|value_head|mtp\w*)\."  # heads: of other uses, or tied
    r"|(?:^|[._])(?:visual|vision|audio|speech|image|video|multi_?modal|mm)(?=[._])"
)
"""Names of weights that the language model is whole without."""

Shapes = Mapping[str, tuple[int, ...]]
"""Of every weight by its name."""


def weight_names(name: str, folder: Path) -> tuple[str, ...]:
    """Names of the files with the weights. Raises ModelError for an index that names anything else."""
    if (folder / ADAPTER_SETTINGS).is_file():
        return (ADAPTER,)
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return (WEIGHTS,)
    named = read_object(name, folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise ModelError(f"model {name}: {INDEX} holds no weight_map; save the model again")
    for weight, file in named.items():
        if not isinstance(file, str) or not _PLAIN.fullmatch(file) or file.startswith("."):
            raise ModelError(
                f"model {name}: {INDEX} says that {weight[:80]} is in {file!r:.80}; only *.safetensors files in the "
                "folder itself are opened"
            )
    return tuple(sorted(set(named.values())))


def check_weights(name: str, folder: Path) -> Shapes:
    """The shapes that the weights' files declare. Raises ModelError for a file that is missing, torn or none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_names(name, folder):
        path = folder / file
        if not path.is_file():
            there = "; pickled weights are not read" if [*folder.glob("*.bin"), *folder.glob("*.pt*")] else ""
            what = f"no {file}" if file != WEIGHTS else "no *.safetensors weights"
            raise ModelError(f"model {name}: {what}{there}; save them with save_pretrained")
        shapes.update(_shapes(name, path))
    return shapes


def _shapes(name: str, file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise ModelError(f"model {name}: {file.name} is cut short or no safetensors file; save the model again")
        header = stream.read(length)
    try:
        tensors = json.loads(header)
        shapes = {key: tensor["shape"] for key, tensor in tensors.items() if key != "__metadata__"}
        kinds = {key: str(tensor["dtype"]) for key, tensor in tensors.items() if key in shapes}
        ends = [int(tensor["data_offsets"][1]) for key, tensor in tensors.items() if key != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise ModelError(f"model {name}: {file.name} has a damaged header; save the model again") from None
    if max(ends, default=0) != size - 8 - length:
        raise ModelError(f"model {name}: {file.name} is cut short, or longer than its header says; save it again")
    for key, kind in kinds.items():  # tables of whole numbers, such as masks, have other names
        if key.endswith(".weight") and kind not in _NUMBERS:
            raise ModelError(
                f"model {name}: {key:.100} is of {kind} numbers; weights of {', '.join(_NUMBERS)} are read"
            )
    yield from ((key, tuple(shape)) for key, shape in shapes.items())


def check_sizes(name: str, config: Mapping[str, Any], shapes: Shapes) -> None:
    """Refuse sizes that no model has, or that the weights don't bear out."""
    widest = max((side for shape in shapes.values() for side in shape), default=0)
    for prefix, section in sections(config):
        for key in sorted(_COUNTS & section.keys()):
            for value in section[key] if isinstance(section[key], list) else [section[key]]:
                _check_count(name, f"{prefix}{key}", value)
                if key in _WIDTHS and value is not None and prefix in _LANGUAGE and value > widest:
                    raise ModelError(
                        f"model {name}: config.json says {key}={value}, but no weight is wider than {widest}"
                    )


def _check_count(name: str, key: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"model {name}: config.json says {key}={value!r:.60}; a whole number is needed")
    most = MAX_LAYERS if key.rpartition(".")[2] in _LAYERS else _MAX_COUNT
    if not 1 <= value <= most:
        raise ModelError(f"model {name}: config.json says {key}={value}; it must be from 1 to {most}")


def check_layers(name: str, config: Mapping[str, Any], shapes: Shapes) -> None:
    """Refuse more layers than the weights are numbered for."""
    held = max((int(match[1]) + 1 for weight in shapes for match in _LAYER.finditer(weight)), default=None)
    for prefix, section in sections(config):
        for key in sorted(_LAYERS & section.keys()) if prefix in _LANGUAGE else ():
            if held is not None and section[key] is not None and section[key] > held:
                raise ModelError(
                    f"model {name}: config.json says {prefix}{key}={section[key]}, the weights hold {held} layers"
                )


def check_rows(name: str, config: Mapping[str, Any], shapes: Shapes) -> None:
    """Refuse a vocabulary of another size than the embedding that the weights hold."""
    for weight, shape in shapes.items():
        size = config.get("vocab_size")
        if weight in _EMBEDDINGS and len(shape) == 2 and size is not None and size != shape[0]:
            raise ModelError(f"model {name}: config.json says vocab_size={size}, but embed_tokens has {shape[0]} rows")


def check_used(name: str, unused: Iterable[str]) -> None:
    """Refuse weights that the model has no place for: it would be another than the one they were saved from."""
    if foreign := sorted(weight for weight in unused if not _DISPENSABLE.search(weight)):
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ModelError(
            f"model {name}: config.json describes a model without the weight {foreign[0]:.100}{more}, which the files "
            "hold; take the config.json that was saved with them"
        )


def count(shapes: Shapes | Sequence[tuple[int, ...]]) -> int:
    """Numbers in all weights."""
    return sum(math.prod(shape) for shape in (shapes.values() if isinstance(shapes, Mapping) else shapes))


# ---- Limits of a tokenizer.json ------------------------------------------------------------------------------


MOST = 1024
"""Characters of one; Unicode's own forms (NFKC, a map of the kind that SentencePiece saves) make up to 18."""
_UNICODE = {"NFKC": 18, "NFKD": 18, "NFC": 3, "NFD": 4, "Precompiled": 18, "Lowercase": 3, "BertNormalizer": 12}
_UNICODE |= {"ByteLevel": 5, "Metaspace": 2}  # a character for each of up to four bytes; either may put one before


def check_tokenizer(name: str, folder: Path) -> None:
    """Raise ModelError for a tokenizer.json in `folder` of the model `name` whose steps lengthen text too much."""
    state = read_object(name, folder / "tokenizer.json")
    read = ["normalizer", "pre_tokenizer"]  # one after the other, so their factors multiply
    for keys in (["normalizer"], read, ["decoder"]):
        factor = math.prod(_factor(step) for part in keys for step in _steps(state.get(part)))
        if factor > MOST:
            raise ModelError(
                f"model {name}: tokenizer.json: steps of its {' and '.join(keys)} make up to {factor:,} characters of "
                f"one, more than {MOST:,}; take the tokenizer of the model it was trained with"
            )


def _steps(step: Any) -> Iterator[Mapping[str, Any]]:
    """The single steps of one that may be a sequence."""
    if not isinstance(step, Mapping):
        return
    inner = next((step[key] for key in ("normalizers", "pretokenizers", "decoders") if key in step), None)
    if not isinstance(inner, list):
        yield step
        return
    for child in inner:
        yield from _steps(child)


def _factor(step: Mapping[str, Any]) -> int:
    """Characters that a step makes of one at most.

    >>> _factor({"type": "Replace", "pattern": {"String": " "}, "content": "\\u2581"}), _factor({"type": "NFKC"})
    (1, 18)
    >>> _factor({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "ab"})  # before each character, too
    3
    """
    kind = step.get("type")  # old files leave it out
    if kind in ("Replace", None) and "content" in step:
        pattern, content = step.get("pattern"), len(str(step.get("content", "")))
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        return max(-(-content // len(literal)), 1) if isinstance(literal, str) and literal else content + 1
    if kind in ("Prepend", None) and "prepend" in step:
        return len(str(step.get("prepend", ""))) + 1
    return _UNICODE.get(str(kind), 1)
