"""Roles and their samplers: turns of a role with its own model are sampled by that model (`roles` in the recipe).

The readers of a group get equal prompts again and again: every rollout asks about the same sections. At temperature 0 a
frozen model's reply depends on nothing else, so `FrozenSampler` samples each once and repeats it, even while it is in
flight.

Guaranteed: a model with another tokenizer is an error before any episode, as the same ids would mean other text. A
server samples a role with `roles.NAME.url`. Requests above temperature 0 pass unchanged; a failed reply is not
repeated; a request is cancelled with the last of its callers.
Not covered: placing models on devices (all load on `model.device`); greedy replies of a server that vary with its
batch: the first one counts.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import CompletionDelta, Engine, Sampler, SamplerStats, Turns
from palimpsest.errors import ConfigError, EngineError, ModelError
from palimpsest.rollout.episode import Role, Roles
from palimpsest.rollout.token_costs import AGENT
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import OpenEnvironment
from palimpsest.types import Completion, SamplingParams


@dataclass(frozen=True, slots=True)
class OpenRoles:
    """The roles, and the engines opened for them."""

    samplers: Roles
    engines: tuple[Engine, ...]
    environment: OpenEnvironment | None = None

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()


def open_roles(config: RunConfig, codec: Codec, main: Sampler | None = None) -> OpenRoles:
    """The roles under `roles`. `codec` and `main`: tokenizer and sampler of the run's model."""
    samplers, engines = dict[str, Role](), list[Engine]()
    for name, role in config.roles.items():
        sampler: Sampler | None = None
        if name == AGENT:
            raise ConfigError(f"{AGENT} names the turns without a role; choose another name", key="roles", value=name)
        if role.url is not None and role.model is None:
            raise ConfigError("set the name of the model at the url", key=f"roles.{name}.model", value=None)
        if role.model is not None:
            try:
                engine = open_engine(_with_model(config, role.model, role.url), objective=None)
            except (ConfigError, EngineError, ModelError) as error:
                raise type(error)(str(error).replace("engine.url (--base-url)", f"roles.{name}.url")) from None
            engines.append(engine)
            _check_tokenizer(name, role.model, engine.codec, codec)
            sampler = FrozenSampler(engine.sampler)
        samplers[name] = Role(sampler, role.temperature, role.max_tokens)
    environment = None if config.environment is None else OpenEnvironment(config.environment)
    if engines or environment:
        turns, serving = Turns(), list[Any]([main, environment, *(engine.sampler for engine in engines)])
        for each in serving:
            if hasattr(each, "turns"):
                each.turns = turns
    return OpenRoles(samplers, tuple(engines), environment)


def _with_model(config: RunConfig, path: str, url: str | None) -> RunConfig:
    model = config.model.model_copy(update={"path": path, "lora": None, "chat_template_kwargs": {}})
    changes: dict[str, Any] = {"model": model}
    if url is not None:
        tokenizer = getattr(config.engine, "tokenizer", None) or config.model.path
        changes["engine"] = EndpointEngineConfig(url=url, tokenizer=tokenizer)
    return config.model_copy(update=changes)


def _check_tokenizer(name: str, path: str, theirs: Codec, ours: Codec) -> None:
    if theirs.tokenizer.get_vocab() != ours.tokenizer.get_vocab() or theirs.stop_ids != ours.stop_ids:
        raise ConfigError(
            f"roles.{name}.model={path!r} has another tokenizer than model.path: prompts pass between them as token "
            "ids; choose a model of the same family"
        )


# ---- Greedy replies of a frozen model ------------------------------------------------------------------------


MOST = 65_536
"""Stored replies of a role."""

_Key = tuple[bytes, int, tuple[int, ...]]


@dataclass(slots=True)
class _GreedyRequest:
    task: asyncio.Task[Completion]
    callers: int = 0


class FrozenSampler(Sampler):
    """Satisfies `palimpsest.engines.protocol.Sampler`, for a model whose weights never change."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._replies = OrderedDict[_Key, Completion]()
        self._in_flight = dict[_Key, _GreedyRequest]()

    @property
    def max_context(self) -> int:
        return self._sampler.max_context

    @property
    def version(self) -> int:
        return self._sampler.version

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        """See `Sampler.generate`."""
        if params.temperature > 0:
            return await self._sampler.generate(prompt_ids, params, session=session)
        digest = hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=16).digest()
        key = digest, params.max_tokens, params.stop_ids
        if (known := self._replies.get(key)) is not None:
            self._replies.move_to_end(key)
            return known
        if key not in self._in_flight:
            sampled = self._sampler.generate(prompt_ids, params, session=session)
            self._in_flight[key] = _GreedyRequest(asyncio.ensure_future(sampled))
        request = self._in_flight[key]
        request.callers += 1
        try:
            reply = await asyncio.shield(request.task)
        finally:
            request.callers -= 1
            if not request.callers:
                request.task.cancel()
            if not request.callers or request.task.done():
                self._in_flight.pop(key, None)
        self._replies[key] = reply
        if len(self._replies) > MOST:
            self._replies.popitem(last=False)
        return reply

    def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        return self._sampler.stream(prompt_ids, params, session=session)

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        return await self._sampler.score(prompt_ids, ids)

    def stats(self) -> SamplerStats:
        return self._sampler.stats()
