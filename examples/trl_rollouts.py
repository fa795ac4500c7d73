"""Train with TRL's GRPOTrainer on tasks that palimpsest serves (TRL 1.16, openenv 0.10; both in TRL's environment).

    palimpsest serve-openenv memagent-quickstart --sessions 128
    python examples/trl_rollouts.py MODEL http://127.0.0.1:8500 5

The last argument is the number of calls of an episode. A memory agent calls the model several times per episode, each
time with a context of its own, but TRL wants one row per prompt: `num_generations` is episodes times calls, and every
call is a row with its episode's reward. That is exact if all episodes have equally many calls: those of
memagent-quickstart have 5, those of policy.name=full_context one. Where the number varies, see the harness worker in
trl.experimental.async_grpo.

The column `prompt` has the seeds of the problems, as text: a rollout function gets nothing else.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

EPISODES, PROBLEMS, STEPS = 8, 2, 300  # episodes of a group, groups of a step, steps


def generate(trainer: Any, observations: list[dict[str, Any]]) -> tuple[list[list[int]], list[list[int]]]:
    """Ids of the prompts, and of one reply to each."""
    import torch

    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    prompts = [
        tokenizer.apply_chat_template(shown["messages"], add_generation_prompt=True, return_dict=False)
        for shown in observations
    ]
    batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt", padding_side="left").to(model.device)
    budget = max(shown["max_tokens"] for shown in observations)
    with torch.no_grad():
        made = model.generate(**batch, max_new_tokens=budget, do_sample=True, temperature=trainer.temperature, top_k=0)
    stop, replies = tokenizer.eos_token_id, made[:, batch["input_ids"].shape[1] :].tolist()
    return prompts, [ids[: ids.index(stop) + 1] if stop in ids else ids for ids in replies]


def rollouts(url: str, calls: int) -> Any:
    """The rollout function: `prompts` are seeds, each repeated for every call of every episode, as are the rows."""
    from openenv.core import GenericEnvClient

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        seeds = [int(prompt) for prompt in prompts[::calls]]
        rows: list[list[tuple[list[int], list[int]]]] = [[] for _ in seeds]
        with ExitStack() as stack:
            clients = [stack.enter_context(GenericEnvClient(base_url=url).sync()) for _ in seeds]
            states = [client.reset(seed=seed) for client, seed in zip(clients, seeds, strict=True)]
            while live := [at for at, state in enumerate(states) if not state.done]:
                asked, replies = generate(trainer, [states[at].observation for at in live])
                texts = trainer.processing_class.batch_decode(replies, skip_special_tokens=True)
                for at, prompt, reply, text in zip(live, asked, replies, texts, strict=True):
                    rows[at].append((prompt, reply))
                    states[at] = clients[at].step({"text": text})
        if any(len(row) != calls for row in rows):
            raise ValueError(f"episodes of {sorted({len(row) for row in rows})} calls, not of {calls}")
        made = [call for row in rows for call in row]
        earned = [state.reward for state in states for _ in range(calls)]
        prompt_ids, completion_ids = ([call[side] for call in made] for side in (0, 1))
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, "earned": earned}

    return rollout


def earned_reward(earned: list[float | None], **_: Any) -> list[float | None]:
    """The served reward; TRL leaves an ungraded episode (None) out."""
    return earned


def main(path: str, url: str, calls: int) -> None:
    """Train the model in `path` on the tasks at `url`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    size = EPISODES * calls
    config = GRPOConfig(
        output_dir="trl-run",
        max_steps=STEPS,
        per_device_train_batch_size=size * PROBLEMS,
        num_generations=size,
        learning_rate=3e-4,
        warmup_steps=5,
        epsilon_high=0.28,
        scale_rewards="none",
        max_completion_length=64,
        report_to=[],
        logging_steps=1,
    )
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path)
    data = Dataset.from_dict({"prompt": [str(seed) for seed in range(PROBLEMS * STEPS)]})
    play = rollouts(url, calls)
    GRPOTrainer(model, earned_reward, config, data, processing_class=tokenizer, rollout_func=play).train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
