"""Chat templates of installed packages, and a byte-level tokenizer with the tokens of each."""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError
from palimpsest.text.chat import chat_pieces, native_style
from palimpsest.text.chat_template import check_template
from palimpsest.text.codec import Codec

RESULTS = Path(__file__).parent / "template_results.json"
"""Results of `found` for every template of trl 1.16.0 and axolotl 0.19.0."""
FAMILIES = {
    "Llama 3.1, 3.2": ("llama3_1", "llama3_2"),
    "Mistral, tokenizers v2 and v3": ("mistral_v2v3", "mistral_v3_tekken"),
    "Qwen 2.5": ("qwen2_5",),
    "Qwen 3, Qwen 3 VL": ("qwen3", "qwen3_instruct_2507", "qwen3_vl"),
    "Qwen 3.5, 3.6, 3.8": ("qwen3_5_think", "qwen3_6", "qwen3_8"),
    "Nemotron 3": ("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"),
    "GLM 4.5": ("glm4moe",),
    "Gemma 4": ("gemma4", "gemma4_v5"),
    "gpt-oss": ("gptoss",),
    "LFM 2.5": ("lfm2_v2", "lfm2_2_5"),
    "EXAONE 4": ("exaone4",),
    "LFM 2": ("lfm2",),
    "Gemma 1 and 3": ("gemma", "gemma3"),
    "DeepSeek V3, R1 distilled": ("deepseekv3", "deepseek_r1_distill"),
    "Command R7B, Command A": ("cohere2", "command_a_tool_use"),
    "Llama 4": ("llama4",),
    "Phi 4": ("phi_4",),
    "Phi 3, 3.5": ("phi3", "phi3_5"),
    "Muse": ("muse_glimmer",),
    "SmolVLM, Idefics 3": ("smolvlm", "idefics3"),
}
"""Templates of the models in docs/reference/models.md, of trl if both have one."""
TOKEN = re.compile(r"""<\|"\|>|</?\w+>|<[|｜][^<>\s|｜"']+[|｜]?>|<[^<>\s|｜"']+[|｜]>|\[/?[A-Z_]{3,}\]|\[\|\w+\|\]""")


def _installed() -> dict[str, str]:
    """Templates by PACKAGE/NAME: of the folders in PALIMPSEST_TEMPLATES, otherwise of trl and axolotl."""
    if folders := os.environ.get("PALIMPSEST_TEMPLATES"):
        paths = [path for folder in folders.split(os.pathsep) for path in Path(folder).rglob("*.jinja")]
    else:
        paths = []
        for package in ("trl", "axolotl"):
            try:
                paths += [Path(str(file.locate())) for file in files(package) or () if file.suffix == ".jinja"]
            except PackageNotFoundError:
                continue
    owner = re.compile(r"[/\\](trl|axolotl)[/\\]")
    return {
        f"{match[1]}/{path.stem}": path.read_text("utf-8")
        for path in sorted(paths)
        if (match := owner.search(str(path)))
    }


TEMPLATES = _installed()


def codec_of(template: str, *, without: tuple[str, ...] = ()) -> Codec:
    """`without`: tokens of the template that the tokenizer lacks."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({piece: at for at, piece in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokens = sorted({"</s>", "<s>", *TOKEN.findall(template)} - set(without))
    plain = [token for token in tokens if re.fullmatch(r"</?\w+>", token) and token not in ("</s>", "<s>")]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in tokens if token not in plain])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])
    return Codec(
        PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="</s>", chat_template=template
        )
    )


def found(template: str) -> dict[str, Any]:
    """`calls`: the format that the round trip finds, described, or why the template is rejected; `results`: the text
    before the first result after a reply that lacks its stop token, or why there is none."""
    codec = codec_of(template)
    try:
        check_template("M", codec.tokenizer, {})
        pieces = chat_pieces(codec)
    except ModelError as error:
        return {"calls": f"rejected: {error}", "results": None}
    return {"calls": native_style(codec) or "described", "results": codec.decode([*pieces.end, *pieces.to_results])}


_WHY = {"shows a user message": "message parts alone", "rewrites the user": "no clear start of a reply"}


def table() -> str:
    """Rows of docs/reference/models.md."""
    results = json.loads(RESULTS.read_text("utf-8"))
    lines = ["| model | tool calls |", "|---|---|"]
    for models, names in FAMILIES.items():
        (cell,) = {_cell((results.get(f"trl/{name}") or results[f"axolotl/{name}"])["calls"]) for name in names}
        lines.append(f"| {models} | {cell} |")
    return "\n".join(lines)


def _cell(calls: str) -> str:
    if not calls.startswith("rejected"):
        return calls if calls == "described" else f"`{calls}`"
    return "rejected: " + next(why for part, why in _WHY.items() if part in calls)


if __name__ == "__main__":
    RESULTS.write_text(json.dumps({name: found(one) for name, one in TEMPLATES.items()}, indent=1, ensure_ascii=False))
