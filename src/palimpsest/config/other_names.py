"""Names that other trainers have for our keys.

An unknown key names the key that it means, and an import of another trainer's configuration maps its names.

    last part or parts of a name there    key here
    learning_rate's `lr`                  optim.learning_rate
    `filter_groups.enable` of verl        credit.dynamic_sampling
    `ppo_epochs` of verl                  none, with a reason
"""

from __future__ import annotations

from collections.abc import Mapping

OTHER_NAMES: Mapping[str, str] = {
    other: key
    for key, aliases in {
        "optim.learning_rate": "lr",
        "optim.lr_scheduler_type": "lr_scheduler lr_decay_style",
        "optim.max_grad_norm": "grad_clip clip_grad gradient_clip",
        "optim.weight_decay": "wd",
        "train.batch_size": "train_batch_size rollout_batch_size",
        "train.max_steps": "steps epochs num_epochs num_train_epochs num_steps total_steps total_training_steps "
        "total_epochs",
        "train.group_size": "num_generations rollout_n n_samples_per_prompt rollout.n",
        "train.num_minibatches": "mini_batch_size ppo_mini_batch_size",
        "train.max_off_policy_steps": "async_level max_async_level max_staleness",
        "train.save_steps": "save_freq save_interval",
        "train.eval_steps": "test_freq eval_interval",
        "train.eval_on_start": "val_before_train",
        "train.save_total_limit": "max_actor_ckpt_to_keep",
        "train.metric_for_best_model": "load_best_model_at_end",
        "loss.clip_ratio_low": "epsilon clip_ratio eps_clip",
        "loss.clip_ratio_high": "epsilon_high eps_clip_high",
        "loss.dual_clip": "clip_ratio_c delta",
        "loss.kl_loss_coef": "kl_coef beta kl_beta use_kl_loss use_kl_in_reward",
        "loss.entropy_coeff": "entropy_coef",
        "loss.importance_sampling_cap": "vllm_importance_sampling_cap tis_imp_ratio_cap",
        "credit.agg_mode": "loss_agg_mode loss_type",
        "credit.adv_estimator": "advantage_estimator scale_rewards",
        "credit.segments_per_group": "actual_n",
        "credit.dynamic_sampling": "filter_groups filter_groups.enable",
        "credit.dynamic_sampling.max_refills": "filter_groups.max_num_gen_batches",
        "data.train_files": "data dataset dataset_name train_dataset",
        "data.val_files": "eval_dataset test_files",
        "data.columns": "prompt_key column_mapping",
        "model.path": "model model.name model_name_or_path",
        "sampler.name": "rollout.name",
        "sampler.gpu_memory_utilization": "mem_fraction_static",
        "sampler.max_model_len": "vllm_max_model_length",
        "sampler.tensor_parallel_size": "tensor_parallel tensor_model_parallel_size vllm_tensor_parallel_size",
        "model.lora.target_modules": "lora_target_modules",
        "logging.report_to": "logger loggers",
    }.items()
    for other in aliases.split()
}
"""Names in verl, TRL, Transformers and others, by their last part or parts."""
_USED_ONCE, _NO_CRITIC = "each rollout batch is used once", "there is no critic, and rewards are not discounted"
NO_EQUIVALENT: Mapping[str, str] = {
    **dict.fromkeys(("ppo_epochs", "num_iterations"), _USED_ONCE),
    **dict.fromkeys(("critic", "gamma", "lam", "critic_warmup"), _NO_CRITIC),
}
"""Names in other trainers, or of a section there, and why no key does the same."""
