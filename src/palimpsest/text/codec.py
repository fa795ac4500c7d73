"""Tokenizer codec that separates data from control tokens; character positions of token edges.

    encode            data (documents, questions, tool results); never produces a control token
    encode_trusted    our own templates; may produce control tokens

A codec also has the model folder's chat settings: the chat template (chat_template.py), and the ends of a turn: the
tokenizer's own end, the ends that generation_config.json names, and the chat template's suffix of a reply. The ids of
recently encoded long texts are cached, since several policies and episodes encode the same document.

`Edges` has the positions that split a text into separately decodable parts. A tokenizer with byte tokens may need
several tokens per character, without an edge between them:

    ids       a    <0xC3>  <0xA9>   b          edges, tokens before: 0  1  3  4
    text      a    é                b                characters before: 0  1  2  3

Guaranteed: no id of an added token (special or not: `<|im_end|>`, `<think>`, `<tool_call>`...) leaves `encode`; with a
byte-level tokenizer without normalizer, decode(encode(x)) == x; the cache is bounded in tokens and thread-safe; both
numbers of the edges never decrease, the first edge is before all tokens, the last after them. Edges take time linear in
the tokens, quadratic in a stretch without an edge.
Not covered: text that persuades the model; lone surrogates, which become U+FFFD; decoders that look back further.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import filterfalse
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from palimpsest.config.engine import model_path
from palimpsest.config.schema import ModelConfig
from palimpsest.errors import ModelError
from palimpsest.models.model_files import check_tokenizer, read_object, refusing, token_ids
from palimpsest.models.model_folder import adapters_of, open_tokenizer, opened
from palimpsest.provenance import short_digest
from palimpsest.text.chat_template import CALL, Message, Refusal, check_template, render
from palimpsest.text.json_text import valid

if TYPE_CHECKING:
    from tokenizers import Tokenizer


# ---- Cache of the ids of long texts --------------------------------------------------------------------------


class Remembered:
    """A least recently used cache of texts and their ids."""

    def __init__(self, most: int) -> None:
        """`most`: capacity in tokens of 8 bytes, since equal numbers are stored once."""
        self._most, self._tokens = most, 0
        self._ids: dict[str, list[int]] = {}
        self._numbers: dict[int, int] = {}
        self._lock = Lock()

    def get(self, text: str) -> list[int] | None:
        """[T] a new list; None for a text outside of the cache."""
        with self._lock:
            ids = self._ids.pop(text, None)
            if ids is None:
                return None
            self._ids[text] = ids  # the last to be evicted
        return ids.copy()

    def add(self, text: str, ids: Sequence[int]) -> list[int]:
        """[T] `ids`, with numbers shared across the cache; the oldest texts make room."""
        share = self._numbers.setdefault
        shared = [share(i, i) for i in ids]
        with self._lock:
            self._tokens += len(shared) - len(self._ids.pop(text, ()))
            self._ids[text] = shared
            while self._tokens > self._most:
                self._tokens -= len(self._ids.pop(next(iter(self._ids))))
        return shared.copy()


P = ParamSpec("P")
T = TypeVar("T")


def cached_on_codec(make: Callable[Concatenate[Codec, P], T]) -> Callable[Concatenate[Codec, P], T]:
    """Cache up to `_MADE` results of a function on the codec, its first argument, so that they die with it."""

    @wraps(make)
    def cached(codec: Codec, /, *args: P.args, **named: P.kwargs) -> T:
        results: dict[Any, Any] = vars(codec).setdefault("_made", {}).setdefault(make, {})
        key = (args, *named.items())
        made = results.get(key, _NOTHING)
        if made is _NOTHING:
            made = make(codec, *args, **named)
            if len(results) >= _MADE:
                results.clear()
            results[key] = made
        return cast(T, made)

    return cached


# ---- Encoding that keeps data and control apart --------------------------------------------------------------


GENERATION = "generation_config.json"
_AFTER_CALLS = ("<|call|>", "<|tool_response>", "<|observation|>")  # gpt-oss, Gemma 4, GLM
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<end_of_turn>", "</s>", *_AFTER_CALLS)
_REPLY = "\ue000reply\ue001"  # private-use characters: no template contains them


def without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that knows no added token and adds nothing around the text; shared by the last equal tokenizers.

    tokenizers 0.23 caches the words of each tokenizer per thread and never frees them, so a process that loads one
    model many times must not encode its documents with a new copy each time.
    """
    from tokenizers import Tokenizer as Build

    state = json.loads(tokenizer.to_str())
    state |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    digest = short_digest(text := json.dumps(state))
    copy = _copies.get(digest) or Build.from_str(text)
    if digest not in _copies:
        _copies.clear()
    _copies[digest] = copy
    return copy


_copies: dict[str, Tokenizer] = {}
"""The last copy by the digest of its content."""


class Codec:
    """Token ids to text and back for one model."""

    def __init__(
        self, tokenizer: Any, *, ends: Iterable[int] = (), template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """`tokenizer`: a transformers fast tokenizer (anything with a `backend_tokenizer`); `ends`: further ids that
        end a turn, if they are control tokens; `template_kwargs`: variables of its chat template."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(f"{type(tokenizer).__name__} is not a fast tokenizer: add a tokenizer.json")
        # Settings of training that some files keep: they cut or pad our templates, or make ids random.
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None) is not None:
            backend.model.dropout = None
        self.tokenizer = tokenizer
        self._template_kwargs = dict(template_kwargs or {})
        self.control_ids: frozenset[int] = frozenset(backend.get_added_tokens_decoder())
        ends = [*ends, *map(backend.token_to_id, _ENDS)]
        stops = {tokenizer.eos_token_id, *self.control_ids.intersection(ends), *self._after_a_reply()}
        self.stop_ids: tuple[int, ...] = tuple(sorted(i for i in stops if i is not None))
        thinking = map(backend.token_to_id, ("<think>", "</think>", "<thinking>", "</thinking>"))
        self.thinking_ids: frozenset[int] = self.control_ids.intersection(thinking)
        """Control tokens that start or end thinking."""
        added = backend.get_added_tokens_decoder().items()
        self.role_ids: frozenset[int] = frozenset(i for i, token in added if token.special or i in self.stop_ids)
        """Control tokens that could start or end a turn, unlike `<tool_call>` where it is a plain added token."""

    @classmethod
    def load(cls, model: str | Path | ModelConfig) -> Codec:
        """Load the tokenizer of a model: a section `model` of a configuration, a Hugging Face folder, or a hub id.

        Raises ModelError for an unusable tokenizer, CheckpointError for a damaged checkpoint.
        """
        config = model if isinstance(model, ModelConfig) else ModelConfig(path=str(model))
        path = model_path(config)
        folder = open_tokenizer(path)
        with refusing(f"model {path}: its tokenizer can't be loaded"):
            tokenizer = _loader(folder).from_pretrained(str(folder), trust_remote_code=False)
            check_template(path, tokenizer, config.chat_template_kwargs)
            codec = cls(tokenizer, ends=_ends(path), template_kwargs=config.chat_template_kwargs)
            if not codec.encode("a"):
                raise ModelError(f"model {path}: no tokenizer: it has no tokens for a letter; save it with the model")
        return codec

    @classmethod
    def for_reading(cls, folder: Path) -> Codec:
        """Codec of a folder with a tokenizer.json, for reading sampled ids. Loads in milliseconds, since it tests no
        chat template: it renders no conversation and lacks the ends that only a template or a model's folder names.

        Raises ModelError.
        """
        from tokenizers import Tokenizer as Build

        file = folder / "tokenizer.json"
        with refusing(f"model {folder}: its tokenizer can't be loaded"):
            if not file.is_file():
                raise ModelError(f"model {folder}: no tokenizer; expected a folder with tokenizer.json")
            check_tokenizer(str(folder), folder)
            return cls(SimpleNamespace(backend_tokenizer=Build.from_file(str(file)), eos_token_id=None))

    @cached_property
    def _data(self) -> Tokenizer:
        return without_added_tokens(self.tokenizer.backend_tokenizer)

    def save(self, folder: Path) -> None:
        """Write what `load` reads: the tokenizer, and the ends of a turn unless the folder names its own."""
        self.tokenizer.save_pretrained(folder)
        if not (folder / GENERATION).exists():
            (folder / GENERATION).write_text(json.dumps({"eos_token_id": list(self.stop_ids)}) + "\n")

    @property
    def has_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """A conversation rendered by the model's chat template, with `model.chat_template_kwargs`. Raises Refusal."""
        return render(self.tokenizer, messages, self._template_kwargs, **options)

    def _after_a_reply(self) -> list[int]:
        """The control token, if any, that the chat template puts directly after an assistant's text."""
        user, assistant = {"role": "user", "content": "a"}, {"role": "assistant", "content": _REPLY}
        if not self.has_template:
            return []
        try:
            _, separator, after = self.render([user, assistant, user]).partition(_REPLY)
        except Refusal:
            return []
        ids = self.encode_trusted(after) if separator else []
        text = next((index for index, i in enumerate(ids) if i in self.control_ids or self.decode([i]).strip()), None)
        if text is None or ids[text] not in self.control_ids:
            return []
        with suppress(Refusal):  # gpt-oss: thinking and call are messages of one turn, each with this token
            within = self.render([user, {**assistant, "tool_calls": [CALL]}]).partition(_REPLY)[2]
            before, name, _ = within.partition(CALL["function"]["name"])
            if name and ids[text] in self.encode_trusted(before):
                return []
        return [ids[text]]

    @property
    def vocab_size(self) -> int:
        return int(self.tokenizer.backend_tokenizer.get_vocab_size())

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits over every token and its id: equal if the same ids are the same text."""
        tokens = sorted(self.tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True).items())
        return short_digest(json.dumps(tokens))

    def encode(self, text: str) -> list[int]:
        """[T] ids of data text; never a control token."""
        if (cached := self._long.get(text)) is not None:
            return cached
        ids = _ids(self._data, valid(text))
        if not self.control_ids.isdisjoint(ids):
            ids = self._encode_by_halves(valid(text))
        return ids if len(ids) < _LONG else self._long.add(text, ids)

    @cached_property
    def _long(self) -> Remembered:
        return Remembered(_REMEMBERED)

    def encode_trusted(self, text: str) -> list[int]:
        """[T] ids of trusted text, which may contain control tokens."""
        return _ids(self.tokenizer.backend_tokenizer, text)

    def role_markers(self, text: str) -> list[int]:
        """Ids of `role_ids` in trusted `text`, in order. Encodes it only if added tokens have rules of matching."""
        if self._added is None:
            ids: Iterable[int] = self.encode_trusted(text)
        else:
            ids = map(self.tokenizer.backend_tokenizer.token_to_id, self._added.findall(text))
        return [i for i in ids if i in self.role_ids]

    @cached_property
    def _added(self) -> re.Pattern[str] | None:
        added = self.tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        if any(token.single_word or token.normalized for token in added):
            return None
        contents = sorted((token.content for token in added), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, contents)) or "(?!)")

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        """Text of `ids`; `control=False` omits control tokens."""
        retained = list(ids) if control else [i for i in ids if i not in self.control_ids]
        backend = self.tokenizer.backend_tokenizer
        if len(retained) < _LONG:
            text: str = backend.decode(retained, skip_special_tokens=False)
        else:
            text = backend.decode_batch([retained], skip_special_tokens=False)[0]  # `decode` blocks other threads
        return text

    def strip_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        """`ids` without control tokens: a completion's text, safe to put into another prompt."""
        return tuple(filterfalse(self.control_ids.__contains__, ids))

    def _encode_by_halves(self, text: str) -> list[int]:
        """Cut a text until no piece encodes to a control token of the vocabulary."""
        if len(text) <= 1:
            return [i for i in _ids(self._data, text) if i not in self.control_ids]
        middle = len(text) // 2
        result: list[int] = []
        for half in (text[:middle], text[middle:]):
            ids = _ids(self._data, half)
            result += ids if self.control_ids.isdisjoint(ids) else self._encode_by_halves(half)
        return result


_AT_ONCE = 2048  # characters encoded in under 1 ms
_LONG = 1024  # shortest cached text, in tokens
_REMEMBERED = 1 << 22  # tokens, in 32 MiB
_MADE = 256  # results of one function
_NOTHING = object()


def _loader(folder: Path) -> Any:
    """The class of transformers that loads a folder's tokenizer.

    AutoTokenizer may rebuild a known class and drop the saved pre-tokenizer; and its import takes four times as long.
    """
    if (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _ends(path: str) -> tuple[int, ...]:
    """Ids that end a turn, as a model's folder names them; an adapter's may be in its base model."""
    for folder in dict.fromkeys((opened(path), opened(adapters_of(path)[1]))):
        for file in (GENERATION, "config.json"):
            if end_ids := token_ids(read_object(path, folder / file).get("eos_token_id")):
                return end_ids
    return ()


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text. A tokenizer's `encode` blocks other threads and computes offsets."""
    with refusing(f"the model's tokenizer can't encode a text of {len(text):,} characters"):
        if len(text) < _AT_ONCE:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        else:
            ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


# ---- Where the tokens of a text begin and end ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edges:
    """Edge number i has counts[i] tokens and places[i] characters before it."""

    text: str
    counts: tuple[int, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, ids: Sequence[int], codec: Codec) -> Edges:
        """Edges of the text of `ids` [T]."""
        text = codec.decode(ids)
        counts, places = [0], [0]
        back, prefix = 0, ""  # stretch before the last edge, decoded with the next: decoders may strip a beginning
        for count in range(1, len(ids) + 1):
            decoded = codec.decode(ids[back:count])
            if decoded.startswith(prefix) and text.startswith(decoded[len(prefix) :], places[-1]):
                places.append(places[-1] + len(decoded) - len(prefix))
                back, prefix = counts[-1], codec.decode(ids[counts[-1] : count])
                counts.append(count)
        if counts[-1] < len(ids) or places[-1] < len(text):
            counts.append(len(ids))
            places.append(len(text))
        return cls(text, tuple(counts), tuple(places))

    def at(self, offset: int) -> int | None:
        """Number of tokens of the text before a character, None without an edge there."""
        number = self.first_from(offset)
        return self.counts[number] if number < len(self.places) and self.places[number] == offset else None

    def first_from(self, offset: int) -> int:
        """Number of the first edge at or after a character; the number of edges if there is none."""
        return bisect_left(self.places, offset)

    def last_until(self, offset: int) -> int:
        """Number of the last edge at or before a character."""
        return bisect_right(self.places, offset) - 1
