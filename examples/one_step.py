"""One training step of the method, part by part, with the values of each. It takes seconds on a CPU.

    python examples/one_step.py [SEED]

The same parts as in `palimpsest train`, in the same order. To read next, under src/palimpsest:

    memory/overwrite.py                   the policy: builds the next prompt
    rollout/group.py, episode.py          run the episodes of a group, record every turn
    rollout/segments.py                   finds the rows to train, from only the token ids
    credit/assign.py                      computes the advantage and weight of every token
    engines/embedded/forest/layout.py     packs rows so that shared prefixes are computed once
    engines/embedded/learner.py           takes the gradient step; the loss is in engines/losses.py
    training/loop.py                      repeats the step: collect.py samples, optimizer_steps.py trains
"""

from __future__ import annotations

import asyncio
import sys
from typing import NamedTuple

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.credit.assign import assign
from palimpsest.credit.dapo import rewards_differ
from palimpsest.data.sources.file_source import build_source
from palimpsest.engines.embedded.forest.layout import pack, rows_of
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Engine, StepBatch, UpdateStats
from palimpsest.memory.registry import build_policy
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.reward.grading import build_reward
from palimpsest.rollout.group import Player
from palimpsest.rollout.segments import segments_of
from palimpsest.types import Group

SETTINGS = {
    "data.curriculum": None,
    "data.synthetic.chunks": 3,
    "data.synthetic.starts": None,  # every episode starts with an empty memory
    "train.group_size": 4,
    "train.num_minibatches": 1,
    "credit.overlong": None,  # the reward is that of the answer alone
    "optim.warmup_steps": 0,
}


class Step(NamedTuple):
    """Results of the parts; `before` and `after` are [rollouts] log-probabilities of all sampled tokens, in nats."""

    group: Group
    batch: StepBatch
    update: UpdateStats
    before: list[float]
    after: list[float]


async def one_step(config: RunConfig, engine: Engine) -> Step:
    """Each part and its values."""
    codec, sampler, learner = engine.codec, engine.sampler, engine.learner
    assert learner is not None

    async def logprobs() -> list[float]:
        """Log-probabilities of each rollout's sampled tokens in their prompts, under the sampler's current weights."""
        turns = [trajectory.turns for trajectory in group.trajectories]
        return [sum([sum(await sampler.score(t.prompt_ids, t.completion.token_ids)) for t in own]) for own in turns]

    grader = build_reward(config.reward, codec)
    player = Player(build_policy(config.policy), sampler, codec, config.sampling, grader, config.train.group_size)
    problems = build_source(config.data, config.seed, split="train").problems(step=0, count=16)
    groups = await player.batch(problems, key=(config.seed, "train", 1, 0))
    group, *_ = [*filter(rewards_differ, groups)] or sys.exit("equal rewards give no gradient: try another seed")
    rewards = [grade.value or 0.0 for grade in group.grades]
    best = rewards.index(max(rewards))

    print(f"1. Problem\n{group.problem.context}")
    print(f"question: {group.problem.question}  answer: {group.problem.answers[0]}")

    print(f"\n2. Turns of rollout {best}, one of {len(rewards)}")
    for reading in readings(group.trajectories[best], GroupTexts(codec)):
        prompt, completion = reading.turn.prompt_ids, reading.turn.completion.token_ids
        print(f"read chunk {reading.turn.step + 1}: {len(prompt)} tokens in, {len(completion)} sampled")
        print(f"    memory before  {str(reading.memory_before).strip()}")
        print(f"    sampled        {codec.decode(completion).strip()}")
        print(f"    memory after   {str(reading.memory_after).strip()}")
    answer = group.trajectories[best].turns[-1]
    print(f"answer: {len(answer.prompt_ids)} tokens in, {len(answer.completion.token_ids)} sampled")
    print(f"    sampled        {codec.decode(answer.completion.token_ids)}")

    print("\n3. Segments: tokens, of which trained")
    for trajectory in group.trajectories:
        counts = [f"{len(each.token_ids):3}, {len(each.positions)}" for each in segments_of(trajectory)]
        print(f"rollout {trajectory.rollout}    {'    '.join(counts)}")
    print(f"those of rollout {best}, '^' for a trained token")
    for segment in segments_of(group.trajectories[best]):
        print("".join("^" if trained else "." for trained in segment.loss_mask))

    print("\n4. Credit")
    (batch,) = assign([group], config.credit, config.train.num_minibatches)
    owners = [trajectory.rollout for trajectory in group.trajectories for _ in segments_of(trajectory)]
    first = [batch.segments[owners.index(rollout)] for rollout in range(len(rewards))]
    advantages = [row.advantages[0] for row in first]
    print("rollout  reward  advantage  answer")
    for rollout, trajectory in enumerate(group.trajectories):
        print(f"{rollout:7}  {rewards[rollout]:6.2f}  {advantages[rollout]:9.2f}  {trajectory.answer}")
    row = batch.segments[len(owners) - 1 - owners[::-1].index(best)]
    segment = row.segment
    print(f"the end of the last segment of rollout {best}, {len(segment.token_ids)} tokens")
    print("token          trained  log-probability  advantage   weight")
    credit = dict(zip(segment.positions, zip(segment.logprobs, row.advantages, row.weights, strict=True), strict=True))
    for at in range(segment.positions[0] - 2, len(segment.token_ids)):
        values = "{:15.4f}  {:9.2f}  {:7.5f}".format(*credit[at]) if at in credit else ""
        token = repr(codec.decode(segment.token_ids[at : at + 1]))
        print(f"{token:13}  {'yes' if at in credit else 'no':7}  {values}".rstrip())

    print("\n5. Prefix forest: a row computes what the row above it does not have")
    (forest,) = pack(rows_of(batch.segments, learner.limits.max_context), max_tokens=2048)
    print("rollout  turn  tokens  shared  computed")
    for line, length, shared in zip(forest.rows, forest.lengths, forest.shared, strict=True):
        turn = batch.segments[line.index].segment.sampled[-1].turn
        print(f"{owners[line.index]:7}  {turn:4}  {length:6}  {shared:6}  {length - shared:8}")
    total, distinct = int(forest.lengths.sum()), forest.physical_tokens
    print(f"{total} tokens in rows, {distinct} computed: sharing ratio {total / distinct:.2f}")

    print("\n6. Gradient step")
    before = await logprobs()  # the weights that sampled: the ratio is 1, the loss minus the weighted sum of advantages
    (update,) = await learner.update([batch])
    await learner.publish()
    after = await logprobs()
    norm, bound = update.grad_norm or 0.0, config.optim.max_grad_norm or float("inf")
    print(f"loss {update.loss:.4f}, gradient norm {norm:.3f}, after clipping {min(norm, bound):.3f}")
    print("rollout  advantage  log-probability before    after   change")
    for rollout, (old, new) in enumerate(zip(before, after, strict=True)):
        print(f"{rollout:7}  {advantages[rollout]:9.2f}  {old:22.2f}  {new:7.2f}  {new - old:+7.2f}")
    return Step(group, batch, update, before, after)


def main(seed: int = 0) -> Step:
    """Open the engine, take the step, close the engine."""
    config = load_recipe("memagent-quickstart", {**SETTINGS, "seed": seed})
    engine = open_engine(config, objective="policy")
    return asyncio.run(using(engine, one_step(config, engine)))


if __name__ == "__main__":
    seeds = sys.argv[1:]
    if len(seeds) > 1 or not all(map(str.isdecimal, seeds)):
        sys.exit(f"usage: python examples/one_step.py [SEED], a whole number instead of {' '.join(seeds)}")
    main(*map(int, seeds))
