"""Tries data formats, log sinks and engines of a user's own: `palimpsest check my_module:MyThing --kind KIND`. Checked:

    format   reads the file given; twice the same; recognises it, where it says what it recognises
    sink     takes three steps, a message and its end without an error; is not asynchronous
    engine   opens; samples within its budget, with a log-probability a token; a seed again gives the same tokens;
             a stream ends as the whole completion; publishing gives the learner's version; closes, twice

Not covered: what a sink sends, how fast any is, and what an engine learns (a run of a few steps tells).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from palimpsest import plugins
from palimpsest.config.load import parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.data.own_format import own_format
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError, DataError
from palimpsest.memory.check import Finding
from palimpsest.reward.calling import is_async
from palimpsest.runs.loggers import ROW, OwnSink
from palimpsest.types import Completion, SamplingParams

_METRICS = {"reward/mean": 0.5, "policy/loss": 0.01}
_PARAMS = SamplingParams(max_tokens=8, seed=7)
_PROMPT = "What does Alice drink?"


def check_format(name: str, options: Mapping[str, Any], file: Path | None) -> list[Finding]:
    """Whether a format reads `file`. Raises ConfigError if it can't be made, or no file is given."""
    if file is None:
        raise ConfigError(f"check {name} --kind format: give a file of its kind, --file FILE")
    made = own_format(name, options)
    try:
        records = list(made.read(file))
    except DataError as error:
        return [Finding("reads", False, str(error))]
    findings = [Finding("reads", True, f"{len(records)} problems of {file}")]
    same = [record.id for record in made.read(file)] == [record.id for record in records]
    findings.append(Finding("repeats", same, "the same ids" if same else "other ids the second time it reads"))
    if made.recogniser is not None:
        known = made.recognises(file)
        findings.append(Finding("recognises", known, f"says {'yes' if known else 'no'} to {file}"))
    return findings


def check_sink(name: str, options: Mapping[str, Any]) -> list[Finding]:
    """Whether a sink takes rows. Raises ConfigError if it can't be made."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"folder": Path(folder), "config": RunConfig()}
        where = f"logging.sinks={name}"
        log = plugins.build(name, options, where=where, arguments=ROW, method="log", given=given)
        if is_async(log):
            return [Finding("rows", False, "log is asynchronous and nobody awaits it: write def, not async def")]
        sink = OwnSink(name, log)
        calls: dict[str, Callable[[], None]] = {
            "rows": lambda: _log(sink),
            "message": lambda: sink.message("a line"),
            "close": sink.close,
        }
        return [_tried(title, call) for title, call in calls.items()]


def _log(sink: OwnSink) -> None:
    for step in (1, 2, 3):
        sink.log(step, _METRICS, {"rollout_s": 1.0})


def _tried(name: str, call: Callable[[], None]) -> Finding:
    try:
        call()
    except Exception as error:  # noqa: BLE001  the border around a user's own code
        return Finding(name, False, f"raised {plugins.told(error)}")
    return Finding(name, True, "no error")


def check_engine(name: str, options: Mapping[str, Any]) -> list[Finding]:
    """Whether an engine does what engines/protocol.py says. Raises ConfigError if it can't be opened."""
    config = parse_config("", name="check", overrides={"engine.name": name, "engine.options": dict(options)})
    engine = open_engine(config, objective="policy")
    return [Finding("opens", True, type(engine).__name__), *asyncio.run(_played(engine))]


async def _played(engine: Engine) -> list[Finding]:
    findings = []
    try:
        prompt = engine.codec.encode(_PROMPT)
        first = await engine.sampler.generate(prompt, _PARAMS)
        findings.append(_sampled(first, engine))
        again = await engine.sampler.generate(prompt, _PARAMS)
        same = again.token_ids == first.token_ids
        findings.append(Finding("repeats", same, "a seed gives its tokens" if same else "a seed gives other tokens"))
        findings.append(await _streamed(engine, prompt, first))
        findings.append(await _published(engine))
        await engine.close()
        await engine.close()
        findings.append(Finding("closes", True, "a second time too"))
    except Exception as error:  # noqa: BLE001  the border around a user's own code
        with suppress(Exception):
            await engine.close()
        findings.append(Finding("runs", False, f"after {len(findings)} points it raised {plugins.told(error)}"))
    return findings


def _sampled(completion: Completion, engine: Engine) -> Finding:
    count, vocab = len(completion.token_ids), engine.limits.vocab
    faults = [
        (len(completion.logprobs) != count, f"{len(completion.logprobs)} log-probabilities of {count} tokens"),
        (not 0 < count <= _PARAMS.max_tokens, f"{count} tokens, max_tokens={_PARAMS.max_tokens}"),
        (any(not 0 <= token < vocab for token in completion.token_ids), f"a token id outside of limits.vocab={vocab}"),
        (any(not plugins.finite(each) or each > 0 for each in completion.logprobs), "a log-probability above 0"),
    ]
    fault = next((message for wrong, message in faults if wrong), None)
    return Finding("samples", fault is None, fault or f"{count} tokens, {completion.stop_reason}")


async def _streamed(engine: Engine, prompt: list[int], whole: Completion) -> Finding:
    deltas = [delta async for delta in engine.sampler.stream(prompt, _PARAMS)]
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    ended = bool(deltas) and deltas[-1].completion is not None
    same = ended and tokens == whole.token_ids
    return Finding("streams", same, "as it generates" if same else "other tokens than generate, or no end")


async def _published(engine: Engine) -> Finding:
    assert engine.learner is not None
    versions = (await engine.learner.publish(), engine.learner.version, engine.sampler.version)
    same = len(set(versions)) == 1
    return Finding("publishes", same, f"version {versions[0]}" if same else f"published, learner, sampler: {versions}")
