"""The agent server: in this process with a scripted sampler, or as a process with the packaged model."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from palimpsest.agents.open_agent import OpenAgent
from palimpsest.agents.roles import OpenRoles
from palimpsest.app.agent.serve_agent import MAIN
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.protocol import CompletionDelta, Limits, SamplerStats
from palimpsest.servers.openai.agent_app import AgentService, ServerOptions
from palimpsest.servers.openai.episode_log import Store
from palimpsest.servers.openai.served_agent import ServedAgent
from palimpsest.servers.openai.served_episodes import ServerLimits
from palimpsest.types import Completion, SamplingParams, StopReason
from support.agents import base_codec
from support.serving_process import serving_process


@dataclass
class Scripted:
    """Writes memories and an answer that depend on the seed."""

    codec: Any
    gate: asyncio.Event | None = None
    """Requests wait for it."""
    answer: str = ""
    """Empty: it depends on the seed."""
    failure: Exception | None = None
    max_context: int = 1024
    prompts: list[str] = field(default_factory=list)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, **_: Any) -> Completion:
        self.prompts.append(self.codec.decode(prompt_ids))
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        reads = "Update the memory" in self.prompts[-1]
        text = f"Anna {params.seed % 100}." if reads else self.answer or f"\\boxed{{{params.seed % 1000}}}"
        ids = (*self.codec.encode(text), self.codec.stop_ids[-1])[: params.max_tokens]
        stopped = ids[-1] == self.codec.stop_ids[-1]
        return Completion(ids, (-0.5,) * len(ids), StopReason.STOP if stopped else StopReason.LENGTH)

    def stats(self) -> SamplerStats:
        return SamplerStats(requests=len(self.prompts))

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, **_: Any
    ) -> AsyncIterator[CompletionDelta]:
        completion = await self.generate(prompt_ids, params)
        for token in completion.token_ids:
            yield CompletionDelta((token,), (-0.5,))
        yield CompletionDelta(completion=completion)


@dataclass
class _Engine:
    codec: Any
    sampler: Scripted
    limits: Limits = field(default_factory=lambda: Limits(vocab=0, max_context=Scripted.max_context))


def scripted(
    store: Path | None = None,
    *,
    limits: ServerLimits | None = None,
    token: str | None = None,
    options: ServerOptions | None = None,
    policy: str | None = None,
    model: Path | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    **script: Any,
) -> Any:
    """(client, service, sampler): a scripted service, and its client without a socket. `policy`: a packaged one with
    default budgets; `model`: the folder that names the agent; `loop`: runs the episodes."""
    sampler = Scripted(base_codec(), **script)
    budgets = {"chunk_size": 24, "memory_tokens": 12, "answer_tokens": 24, "question_tokens": 60, "prompts": "short"}
    chosen = PolicyConfig(name="overwrite", options=budgets) if policy is None else PolicyConfig(name=policy)
    config = RunConfig().model_copy(update={"policy": chosen})
    config = config.model_copy(update={"eval_sampling": config.eval_sampling.model_copy(update={"temperature": 0.0})})
    if model is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model)})})
    agent = ServedAgent(OpenAgent(config, _Engine(sampler.codec, sampler), OpenRoles({}, ())), loop)
    log = None if store is None else Store(store)
    service = AgentService(agent, log, model=MAIN, token=token, limits=limits or ServerLimits(), options=options)
    transport = httpx2.ASGITransport(service.app())
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost"), service, sampler


def body(content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "palimpsest", "messages": [{"role": "user", "content": content}], **more}


CHAT = "/v1/chat/completions"
FACTS = " ".join(f"Anna{n} sells tea and Bob{n} sells honey." for n in range(12))


def about(question: str, **more: Any) -> dict[str, Any]:
    """A chat request with a question about a document of 20 sections."""
    return body(f"<document>{FACTS}</document> {question}", **more)


def sse_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def server(
    store: Path, *options: str, model: str = "embedded"
) -> AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    """`palimpsest serve`, and its address."""
    return serving_process(["serve", model, "--port", "0", "--store", str(store), *options], "/v1")
