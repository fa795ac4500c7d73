"""One server of vLLM, asked over HTTP: token ids in, token ids and log-probabilities out, and new weights.

Guaranteed: what comes back is what was asked for, sampled by the weights that were published last, or an error; a reply
is never larger than the limit; a key is in no message.
Not covered: time limits, which whoever calls sets; streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palimpsest.config.sampler import LogprobsMode
from palimpsest.connections import BadReply, Connections, Unanswered
from palimpsest.endpoints import redacted
from palimpsest.engines.vllm.answers import (
    Sampled,
    WrongAnswer,
    check_origin,
    read_completion,
    read_likeliest,
    read_scores,
)
from palimpsest.engines.vllm.weights import Probe, Scored, check_loaded, check_scores
from palimpsest.errors import SamplerError
from palimpsest.types import SamplingParams

_REPLY_BYTES = 64 << 20
_TOP = 10
"""Tokens whose log-probabilities tell the mode of a server."""


class ServerFailed(SamplerError):
    """The server did not answer, or not as a sound one: it is to be looked at before it is asked again."""


class Client:
    """One server. `close` it."""

    def __init__(self, name: str, url: str, *, socket: Path | None = None, key: str | None = None) -> None:
        """`name` is for messages; `socket`: a Unix socket in the place of the address in `url`."""
        self.name, self._key = name, key
        self._url = url.rstrip("/")
        self._connections = Connections(token=key, keep=False, socket=socket)
        """One a request: one that is kept may be what the server closes just now. The pool bounds their number."""

    async def close(self) -> None:
        await self._connections.close()

    async def check_health(self) -> None:
        """Raises ServerFailed if the server, or the engine behind it, is gone."""
        await self._ask("GET", "/health")

    async def model(self) -> tuple[int, str]:
        """Tokens of its longest prompt plus completion, and what it was started on: a folder, or a hub id."""
        models = await self._ask("GET", "/v1/models")
        with self._reading():
            return int(models["data"][0]["max_model_len"]), str(models["data"][0].get("root") or "")

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, version: str, seeded: bool = True
    ) -> Sampled:
        """Complete one prompt with the weights of `version`. Raises SamplerError."""
        wanted = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "stop_token_ids": list(params.stop_ids),
            "logprobs": 0,
            **({"seed": params.seed} if seeded else {}),
        }
        answer = await self._complete(prompt_ids, wanted, version)
        with self._reading():
            return read_completion(answer, len(prompt_ids), params)

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int], *, version: str) -> tuple[float, ...]:
        """[T] nats of `ids` after the prompt, at temperature 1 in either mode of the server, by the weights of
        `version`. Raises SamplerError."""
        answer = await self._complete([*prompt_ids, *ids], {"max_tokens": 1, "prompt_logprobs": 0}, version)
        with self._reading():
            return read_scores(answer, len(prompt_ids), ids)

    async def check_mode(self, mode: LogprobsMode) -> None:
        """Raise ServerFailed unless its log-probabilities are of `mode`: at half the temperature the distance between
        two tokens is twice as large in processed ones, and the same in raw ones."""
        warm, cold = [await self._likeliest(temperature) for temperature in (1.0, 0.5)]
        both = sorted(warm.keys() & cold.keys(), key=lambda id_: warm[id_])
        distance = warm[both[-1]] - warm[both[0]] if both else 0.0
        if distance < 1e-3:
            raise ServerFailed(f"{self.name}: the model finds every token equally likely, so nothing tells its mode")
        found = "processed_logprobs" if cold[both[-1]] - cold[both[0]] > 1.5 * distance else "raw_logprobs"
        if found != mode:
            raise ServerFailed(f"{self.name} gives {found}, this run needs --logprobs-mode {mode}: start it with that")

    async def load(self, folder: Path, version: str) -> None:
        """Sample from the weights in `folder` from now on, with nothing left of those before. Raises ServerFailed."""
        await self.pause()
        wanted = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        loaded = await self._ask("POST", "/collective_rpc", wanted)
        with self._reading():
            check_loaded(loaded)
        await self.go_on(version)

    async def pause(self) -> None:
        """Sample nothing until `go_on`. Raises ServerFailed."""
        await self._ask("POST", "/pause?mode=abort", {})

    async def go_on(self, version: str) -> None:
        """Sample from weights that were taken, and which are called `version`, with nothing left of those before.
        Raises ServerFailed."""
        reset = await self._ask("POST", "/reset_prefix_cache?reset_running_requests=true", {})
        if not isinstance(reset, dict) or reset.get("success") is not True:
            raise ServerFailed(f"{self.name}: its prefix cache could not be emptied, prompts there are of old weights")
        await self.set_version(version)
        await self._ask("POST", "/resume", {})

    # ---- weights without a file: what vLLM's own client asks of a server ---------------------------------------

    async def join(self, terms: Mapping[str, Any]) -> None:
        """Meet whoever sends weights, on these terms; of NCCL it returns once all are there. Raises ServerFailed."""
        await self._ask("POST", "/init_weight_transfer_engine", {"init_info": terms})

    async def part(self) -> None:
        """Leave the group that was joined. Raises ServerFailed."""
        await self._ask("POST", "/shutdown_weight_transfer_engine", {})

    async def start_update(self) -> None:
        """Make ready for new weights. Raises ServerFailed."""
        await self._ask("POST", "/start_weight_update", {})

    async def update(self, weights: Mapping[str, Any]) -> None:
        """Take the weights that are described; returns once they are there. Raises ServerFailed."""
        await self._ask("POST", "/update_weights", {"update_info": weights})

    async def finish_update(self) -> None:
        """Compute with what was taken. Raises ServerFailed."""
        await self._ask("POST", "/finish_weight_update", {})

    # -------------------------------------------------------------------------------------------------------------

    async def check_weights(self, probe: Probe, version: str, before: Scored | None) -> Scored:
        """Raise ServerFailed unless it finds the ids of `probe` as likely as the learner does, who found them so with
        the weights of `version`. `before`: what this returned of the weights before."""
        scored = probe, await self.score(probe.ids[:1], probe.ids[1:], version=version)
        with self._reading():
            check_scores(scored, before)
        return scored

    async def set_version(self, version: str) -> None:
        """Have every answer say `version`."""
        await self._ask("POST", "/update_weight_version", {"new_version": version})
        await self.check_version(version)

    async def check_version(self, version: str) -> None:
        """Raise ServerFailed unless it says `version` of its weights."""
        told = await self._ask("GET", "/weight_info")
        if not isinstance(told, dict) or told.get("weight_version") != version:
            raise self._failure(f"says {told!r} of its weights instead of {version}")

    async def _likeliest(self, temperature: float) -> dict[int, float]:
        """Nats of some of the likeliest tokens after a prompt."""
        wanted = {"max_tokens": 1, "temperature": temperature, "logprobs": _TOP}
        answer = await self._complete([0, 1, 2], wanted)
        with self._reading():
            return read_likeliest(answer)

    async def _complete(self, ids: Sequence[int], wanted: Mapping[str, Any], version: str | None = None) -> Any:
        """The answer, where `version` is given by those weights. What isn't `wanted` is switched off, whatever the
        server's defaults."""
        request_id = secrets.token_hex(8)
        body = {"request_id": request_id, "token_ids": list(ids), "sampling_params": {**_PLAIN, **wanted}}
        answer = await self._ask("POST", "/inference/v1/generate", body)
        if version is not None:
            with self._reading():
                check_origin(answer, request_id, version)
        return answer

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """While an answer is read: whatever doesn't look as expected is the server's failure."""
        try:
            yield
        except WrongAnswer as error:
            raise self._failure(str(error)) from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._failure(f"not the answer of a server of vLLM ({error!r})") from None

    def _failure(self, told: str) -> ServerFailed:
        """A server may quote the key that it was sent."""
        return ServerFailed(f"{self.name}: {redacted(told, self._key):.300}")

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            reply = await self._connections.ask(method, f"{self._url}{path}", body, limit=_REPLY_BYTES)
            if reply.status != 200:
                told = f"{self.name}{path.partition('?')[0]}: status {reply.status}: {reply.quoted(300, self._key)}"
                raise (SamplerError if reply.status in (400, 422) else ServerFailed)(told)
            return reply.json() if reply.body else None
        except (Unanswered, BadReply, ValueError) as error:
            raise ServerFailed(f"{self.name}{path.partition('?')[0]}: {error or type(error).__name__}") from None


_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": True,  # the stop ids say where to end
    "detokenize": False,
}
