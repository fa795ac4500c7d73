"""Encoding that keeps data and control apart.

Two encoders over one tokenizer: `encode` for data (documents, questions, tool results), which can never produce a
control token whatever the text says, and `encode_trusted` for our own templates, which may.

Guaranteed: no id of an added token (special or not: `<|im_end|>`, `<think>`, `<tool_call>`...) leaves `encode`;
with a byte-level tokenizer without normaliser, decode(encode(x)) == x.
Not covered: text that persuades the model; lone surrogates, which become U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that knows no added token and adds nothing around the text."""
    from tokenizers import Tokenizer as Build

    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = []
    state["post_processor"] = None
    state["truncation"] = None
    state["padding"] = None
    return Build.from_str(json.dumps(state))


class Codec:
    """Token ids to text and back for one model."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: a transformers fast tokenizer (anything with a `backend_tokenizer`)."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(f"{type(tokenizer).__name__} is not a fast tokenizer: a tokenizer.json is needed")
        self.tokenizer = tokenizer
        self._data = _without_added_tokens(backend)
        self.control_ids: frozenset[int] = frozenset(backend.get_added_tokens_decoder())
        stops = {tokenizer.eos_token_id}
        for token in ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<end_of_turn>", "</s>"):
            index = backend.token_to_id(token)
            if index in self.control_ids:
                stops.add(index)
        self.stop_ids: tuple[int, ...] = tuple(sorted(i for i in stops if i is not None))

    @classmethod
    def load(cls, path: str | Path) -> Codec:
        """Load the tokenizer of a Hugging Face folder or hub id."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        folder = Path(path)
        try:
            if (folder / "tokenizer.json").is_file():
                # AutoTokenizer of transformers 5 may rebuild a known class and drop the saved pre-tokenizer.
                return cls(PreTrainedTokenizerFast.from_pretrained(str(folder)))
            return cls(AutoTokenizer.from_pretrained(str(path)))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"model {path}: no tokenizer ({reason}); expected a folder with tokenizer.json") from None

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    def encode(self, text: str) -> list[int]:
        """[T] ids of data text; never a control token."""
        ids = self._data.encode(_clean(text), add_special_tokens=False).ids
        if self.control_ids.isdisjoint(ids):
            return ids
        return self._encode_by_halves(_clean(text))

    def encode_trusted(self, text: str) -> list[int]:
        """[T] ids of our own text, in which control tokens are meant."""
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        """Text of `ids`; `control=False` leaves control tokens out."""
        kept = list(ids) if control else [i for i in ids if i not in self.control_ids]
        text: str = self.tokenizer.backend_tokenizer.decode(kept, skip_special_tokens=False)
        return text

    def strip_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        """`ids` without control tokens: what a completion says, safe to put into another prompt."""
        return tuple(i for i in ids if i not in self.control_ids)

    def _encode_by_halves(self, text: str) -> list[int]:
        """Cut a text whose vocabulary itself holds a control token until no piece encodes to one."""
        if len(text) <= 1:
            ids = self._data.encode(text, add_special_tokens=False).ids
            return [i for i in ids if i not in self.control_ids]
        middle = len(text) // 2
        result: list[int] = []
        for half in (text[:middle], text[middle:]):
            ids = self._data.encode(half, add_special_tokens=False).ids
            result += ids if self.control_ids.isdisjoint(ids) else self._encode_by_halves(half)
        return result


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
