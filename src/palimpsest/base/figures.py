"""What a base model can do, measured by sampling it on held-out examples of the skills it was taught.

copy_fidelity      share of the sentences written in `read` that stand verbatim in the memory or the section,
                   sampled at temperature 1 (as in training) and greedily (as in evaluation); a reply that writes
                   nothing, by the word that an empty memory shows, has none
answer, direct     share of greedy answers that are exactly the expected ones, "unknown" included
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from palimpsest.config.schema import ModelConfig, RunConfig
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.imitate.skills import Example, Skills
from palimpsest.measures.memory import copy_fidelity
from palimpsest.measures.texts import Texts
from palimpsest.measures.trace import readings
from palimpsest.memory.overwrite import SHORT
from palimpsest.seeding import derive_seed, keyed_random
from palimpsest.types import Completion, Outcome, SamplingParams, Trajectory, Turn, spans_of

EXAMPLES = 512


def skill_figures(path: str, seed: int = 0, count: int = EXAMPLES) -> dict[str, float]:
    """The figures of the model in folder `path`, each over `count` examples."""
    engine = open_engine(RunConfig(model=ModelConfig(path=path)), objective=None)
    skills = Skills(engine.codec)

    def sample(draw: Callable[[random.Random], Example], temperature: float) -> list[tuple[Example, Completion]]:
        rng = keyed_random(seed, "skill-figures", draw.__name__)
        examples = [draw(rng) for _ in range(count)]
        return list(zip(examples, asyncio.run(_complete(engine, examples, temperature, seed)), strict=True))

    def right(draw: Callable[[random.Random], Example]) -> float:
        pairs = sample(draw, 0.0)
        return sum(c.token_ids == tuple(e.completion_ids) for e, c in pairs) / len(pairs)

    return {
        "copy_fidelity_sampled": _fidelity(engine, sample(skills.read, 1.0)),
        "copy_fidelity_greedy": _fidelity(engine, sample(skills.read, 0.0)),
        "answer_accuracy": right(skills.answer),
        "direct_accuracy": right(skills.direct),
    }


async def _complete(engine: Engine, examples: Sequence[Example], temperature: float, seed: int) -> list[Completion]:
    async def one(index: int, example: Example) -> Completion:
        params = SamplingParams(
            max_tokens=32, temperature=temperature, stop_ids=engine.codec.stop_ids, seed=derive_seed(seed, index)
        )
        return await engine.sampler.generate(list(example.prompt_ids), params)

    return await asyncio.gather(*(one(i, e) for i, e in enumerate(examples)))


def _fidelity(engine: Engine, pairs: Sequence[tuple[Example, Completion]]) -> float:
    texts, reads = Texts(engine.codec), []
    nothing = tuple(engine.codec.encode(SHORT.empty_memory))
    for example, completion in pairs:
        if completion.token_ids[: len(nothing)] == nothing:
            continue
        turn = Turn(tuple(example.prompt_ids), completion, 0, "read", spans=spans_of(example.prompt_ids))
        reads += readings(Trajectory("", "", 0, (turn,), Outcome.ANSWERED), texts)
    return copy_fidelity(reads) or 0.0
