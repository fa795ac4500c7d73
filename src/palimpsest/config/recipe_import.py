"""Recipes from the command lines and YAML files of verl, and of slime and its relatives (vime).

    actor_rollout_ref.actor.optim.lr=1e-6     verl: Hydra overrides in a shell script, or keys of its YAML
    --rollout-batch-size 8                    slime, vime: arguments in a shell script
    MEM_CHUNK_TOKENS=2048                     vime's MemAgent: variables of the script

`_SAME`, `_FIXED` and `_RULES` map their keys to ours, after them the names of config/keys.py; `_REASONS` explains keys
without a counterpart. Variables of a script are replaced: `$A`, `${A}`, `${A:-default}`, `$((A * 2))`.

Guaranteed: nothing in a file runs, and the environment is not read; files and values have bounded size; the recipe is
valid and names the origin of each value; every key that it leaves out has a reason.
Not covered: control flow of a shell (its lines count once, in order); their defaults other than `_DEFAULTS`.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from palimpsest.config.load import parse_config, put, sections_of
from palimpsest.config.other_names import OTHER_NAMES
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import leaves
from palimpsest.config.yaml_text import MAX_CHARACTERS, Dumper, read
from palimpsest.errors import ConfigError
from palimpsest.files import read_regular

Given = Mapping[str, Any]
"""Their values by key or `--flag`; a value that only a shell knows contains a `$` or a backtick."""

# ---- Their keys and ours -------------------------------------------------------------------------------------


_SHORT = {"A:": "actor_rollout_ref.actor.", "R:": "actor_rollout_ref.rollout.", "M:": "actor_rollout_ref.model."}
_SHORT |= {"V:": f"{_SHORT['R:']}val_kwargs.", "C:": "recurrent.memory.config."}
A, R, V = _SHORT["A:"], _SHORT["R:"], _SHORT["V:"]
_SAME: Mapping[str, str] = {
    _SHORT.get(theirs[:2], theirs[:2]) + theirs[2:]: ours
    for ours, names in {
        "model.path": "M:path --hf-checkpoint",
        "model.gradient_checkpointing": "M:enable_gradient_checkpointing",
        "optim.weight_decay": "A:optim.weight_decay --weight-decay",
        "optim.lr_scheduler_type": "A:optim.warmup_style",
        "optim.betas": "A:optim.betas",
        "loss.clip_ratio_low loss.clip_ratio_high": "A:clip_ratio --eps-clip",
        "loss.clip_ratio_low": "A:clip_ratio_low",
        "loss.clip_ratio_high": "A:clip_ratio_high",
        "loss.dual_clip": "--eps-clip-c",
        "loss.entropy_coeff": "A:entropy_coeff --entropy-coef",
        "sampling.temperature": "R:temperature --rollout-temperature",
        "sampling.top_p": "R:top_p --rollout-top-p",
        "eval_sampling.temperature": "--eval-temperature",
        "eval_sampling.top_p": "V:top_p --eval-top-p",
        "train.group_size": "R:actual_n",
        "train.eval_samples": "V:n --n-samples-per-eval-prompt",
        "train.max_steps": "--num-rollout",
        "engine.micro_batch_tokens": "A:ppo_max_token_len_per_gpu --max-tokens-per-gpu",
        "data.train_files": "data.train_files --prompt-data",
        "data.val_files": "data.val_files",
        "data.shuffle": "data.shuffle --rollout-shuffle",
        "seed": "data.seed --seed",
        "policy.options.chunk_size": "C:chunk_size MEM_CHUNK_TOKENS",
        "policy.options.question_tokens": "C:max_prompt_length",
        "policy.options.memory_tokens": "C:max_memorization_length MEM_MAX_MEMORY",
        "policy.options.answer_tokens": "C:max_final_response_length MEM_MAX_FINAL",
        "policy.options.max_chunks": "C:max_chunks MEM_MAX_CHUNKS",
        "policy.options.max_turns": "R:multi_turn.max_assistant_turns",
        "policy.options.tool_chars": "R:multi_turn.max_tool_response_length",
    }.items()
    for theirs in names.split()
}
_READS = {"policy.name": "overwrite", "reward.name": "boxed_strict"}
_JUDGE = {"url": "http://127.0.0.1:9527/v1", "model": "gpt-oss"}  # address and name of MemAct's reward service
_FIXED: Mapping[tuple[str, Any], Mapping[str, Any]] = {
    (f"{A}loss_agg_mode", "token-mean"): {"credit.agg_mode": "token"},
    (f"{A}loss_agg_mode", "seq-mean-token-mean"): {"credit.agg_mode": "segment"},
    **{(f"{A}kl_loss_type", name): {} for name in ("low_var_kl", "k3")},
    **{("--kl-loss-type", name): {} for name in ("low_var_kl", "k3")},
    (f"{A}ppo_epochs", 1): {},
    ("algorithm.filter_groups.enable", True): {"credit.dynamic_sampling": {}},
    ("algorithm.filter_groups.enable", False): {},
    ("data.truncation", "center"): {"policy.options.overlong": "centre"},
    ("data.truncation", "error"): {},
    ("data.prompt_key", "prompt"): {},
    ("trainer.save_best_val", True): {"train.metric_for_best_model": "accuracy"},
    ("trainer.save_best_val", False): {},
    ("reward_model.reward_manager", "mem_reward"): {
        "reward": {"name": "final_answer", "final_answer": {"match": "judge"}, "judge": _JUDGE}
    },
    ("--use-rollout-logprobs", True): {"loss.old_logprobs": "sampler"},
    ("--calculate-per-token-loss", True): {"credit.agg_mode": "token"},
    ("--recompute-granularity", "full"): {"model.gradient_checkpointing": True},
    ("--custom-generate-function-path", "examples.mem_agent.rollout.generate"): _READS,
}
"""Our values for one of theirs; another value is left out."""
_FIXED_KEYS = {theirs for theirs, _ in _FIXED}


def _advantages(value: Any, given: Given) -> Mapping[str, Any]:
    rule = {"grpo": "mean_std", "dcpo": "mean_std", "rloo": "leave_one_out"}[value]
    scaled = given.get("algorithm.grpo_use_adv", given.get("algorithm.norm_adv_by_std_in_grpo"))
    if value == "grpo" and (scaled is False or "--disable-grpo-std-normalization" in given):
        rule = "mean"
    if (alpha := given.get("algorithm.alpha", 1.0)) == 1.0:
        return {"credit.adv_estimator": rule, **({"policy.name": "prune"} if value == "dcpo" else {})}
    options, reweight = {"outcome": rule, "alpha": alpha}, bool(given.get("algorithm.action_reweight"))
    return {
        "credit.adv_estimator": "state_mix",
        "credit.options": options,
        "reward.state.action_reweight": reweight,
    }


_LOOPS: Mapping[Any, Mapping[str, Any]] = {
    "naive_summarizer_agent": {"policy.name": "summary"},
    "tool_sliding_window_agent": {"policy.name": "tool_window"},
    "tool_agent": {"policy.name": "prune", "policy.options.prune": False},
}
"""Policies of verl's agent loops."""


def _uses_tools(given: Given) -> bool:
    return given.get("algorithm.adv_estimator") == "dcpo" or given.get(f"{R}agent.default_agent_loop") in _LOOPS


def _revisits(given: Given) -> bool:
    return "revisit" in str(given.get("recurrent.memory.path"))


def _reader(given: Given) -> Mapping[str, Any]:
    """The policy with the budgets of `recurrent.memory.config` in the authors' repositories."""
    budget = 2048 if _revisits(given) else 1024
    budgets = dict.fromkeys(("question_tokens", "memory_tokens", "answer_tokens"), budget) | {"max_chunks": 8}
    options = {f"policy.options.{name}": value for name, value in budgets.items()}
    return {**_READS, **options, **({"policy.name": "recall"} if _revisits(given) else {})}


def _reply(value: Any, given: Given) -> Mapping[str, Any] | None:
    if _uses_tools(given):
        return {"policy.options.context_tokens": value + given.get("data.max_prompt_length", 0)}
    return {"policy.options.reply_tokens": value} if _revisits(given) else None


def _steps(given: Given) -> int:
    """Optimizer steps per rollout batch, at least one."""
    batch, mini = given.get("data.train_batch_size"), given.get(f"{A}ppo_mini_batch_size")
    return max(1, batch // mini) if batch and mini else 1


_SINKS = ("console", "tensorboard", "wandb")
_RULES: Mapping[str, Callable[[Any, Given], Mapping[str, Any] | None]] = {
    f"{A}ppo_mini_batch_size": lambda _, given: {"train.num_minibatches": _steps(given)},
    f"{A}optim.lr_warmup_steps": lambda value, given: {"optim.warmup_steps": max(0, value) * _steps(given)},
    f"{A}kl_loss_coef": lambda value, given: {"loss.kl_loss_coef": value if given.get(f"{A}use_kl_loss") else 0},
    f"{A}use_kl_loss": lambda value, given: (
        {"loss.kl_loss_coef": 0.001} if value and f"{A}kl_loss_coef" not in given else {}  # verl's default
    ),
    f"{R}n": lambda value, given: {
        "credit.segments_per_group" if f"{R}actual_n" in given else "train.group_size": value
    },
    f"{R}random_no_prune_prob": lambda value, _: {"train.variant": {"share": value, "options": {"prune": False}}},
    f"{V}temperature": lambda value, given: {
        "eval_sampling.temperature": 0 if given.get(f"{V}do_sample") is False else value
    },
    "algorithm.adv_estimator": _advantages,
    "recurrent.enable": lambda _, given: _reader(given),
    f"{R}agent.default_agent_loop": lambda value, _: {"reward.name": "final_answer", **_LOOPS[value]},
    "data.max_prompt_length": lambda _, given: {} if _uses_tools(given) else None,
    "data.max_response_length": _reply,
    "trainer.save_freq": lambda value, _: {"train.save_steps": value} if value > 0 else {},
    "trainer.test_freq": lambda value, _: {"train.eval_steps": value if value > 0 else None},
    "trainer.val_before_train": lambda value, given: {"train.eval_on_start": value and given["trainer.test_freq"] > 0},
    "trainer.logger": lambda value, _: {"logging.report_to": ["jsonl", *(sink for sink in _SINKS if sink in value)]},
    "--global-batch-size": lambda value, given: {
        "train.num_minibatches": max(1, given["--rollout-batch-size"] * given.get("--n-samples-per-prompt", 1) // value)
    },
    "--advantage-estimator": _advantages,
    "--kl-loss-coef": lambda value, given: {"loss.kl_loss_coef": value if "--use-kl-loss" in given else 0},
    "--adam-beta1": lambda value, given: {"optim.betas": [value, given.get("--adam-beta2", 0.999)]},
    "--use-tis": lambda _, given: {"loss.importance_sampling_cap": given.get("--tis-clip", 2.0)},
    "--dynamic-sampling-filter-path": lambda *_: {"credit.dynamic_sampling": {}},
    "--eval-prompt-data": lambda value, _: {"data.val_files": value[1::2]},  # names and files
}
_READ_BY_RULES = {
    *("algorithm.alpha", "algorithm.action_reweight", "algorithm.grpo_use_adv"),
    *("algorithm.norm_adv_by_std_in_grpo", "recurrent.memory.path", f"{R}random_no_prune", f"{R}multi_turn.enable"),
    *(f"{V}do_sample", "--disable-grpo-std-normalization", "--adam-beta2", "--tis-clip", "--use-kl-loss"),
    *("--skip-eval-before-train", "--"),
}
_KEY = re.compile(r"[\w./-]+")  # other keys could end a comment
_ELSEWHERE = re.compile(r"actor_rollout_ref\.actor\.[\w.]+|(?:data|trainer)\.\w+|--[a-z-]+")
"""Keys whose last part config/keys.py may know; in other sections (`critic`) it would mean something else."""
_REASONS = {
    "epoch": "epochs depend on the file: set train.max_steps to rows / train.batch_size x epochs",
    r"n_gpus|nnodes|num-gpus|num-nodes|parallel|colocate|fsdp|offload": "GPUs: docs/how-to/multi-gpu.md",
    "agent_loop|tool_config": "choose policy.name and policy.options.tools",
    r"rollout\.(name|mode|gpu_|enforce|free_|max_num|agent)|--(vllm|sglang|router)": "servers: docs/how-to/vllm.md",
    "dynamic|micro_batch|padding|log_prob|balance|fused": "engine.micro_batch_tokens bounds each pass",
    r"project_name|experiment_name|default_\w+_dir|--save$|wandb": "--out of palimpsest train names the run",
    "critic|gamma|lam$|kl_ctrl|kl_in_reward": "there is no critic, and the KL term is in the loss",
    "max_prompt|max_response|max-response": "memory policies have a budget per kind of turn: policy.options",
    "_key$|-key$|chat": "columns are detected, data.columns renames them; prompts are the policy's",
    "reward|--custom-rm": "choose reward.name",
}
_OVERRIDDEN = (f"{A}clip_ratio", "--eps-clip", "recurrent.enable", f"{R}agent.default_agent_loop")
"""Keys whose values more specific keys override, in any order."""
_DEFAULTS = {"model.dtype": "bfloat16", "optim.weight_decay": 0.01, "loss.old_logprobs": "recompute"}
_OF_SLIME = {"loss.dual_clip": None, "credit.agg_mode": "trajectory", "data.shuffle": False}
"""Their defaults where ours differ."""


@dataclass
class ImportedRecipe:
    """A recipe, and the keys that it leaves out."""

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """Value and origin by our dotted key."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Reason by their key."""
    text: str = ""
    """The recipe's YAML."""


def import_recipe(files: Sequence[Path], name: str) -> ImportedRecipe:
    """The recipe `name` of scripts and YAML files; later files override earlier ones. Raises ConfigError."""
    given: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for path in files:
        given |= {key: value for key, value in _given(path, variables).items() if _KEY.fullmatch(key)}
    made, slime = ImportedRecipe(), any(key.startswith("--") for key in given)
    for theirs, value in sorted(given.items(), key=lambda pair: pair[0] not in _OVERRIDDEN):
        converted = _converted(theirs, value, given)
        if isinstance(converted, str):
            made.left_out[theirs] = converted
        else:
            made.values |= {ours: (value, theirs) for ours, value in converted.items()}
    if not made.values:
        raise ConfigError(f"{', '.join(map(str, files))}: no keys of verl (a.b=c) or arguments of slime (--name value)")
    made.values.setdefault("data.train_files", ("NAME_THE_FILE.parquet", "missing: name the file"))
    for ours, value in (_DEFAULTS | (_OF_SLIME if slime else {})).items():
        made.values.setdefault(ours, (value, f"default of {'slime' if slime else 'verl'}"))
    tree: dict[str, Any] = {}
    for ours, (value, origin) in made.values.items():
        for key, leaf in leaves(value, ours) if value else [(ours, value)]:
            put(tree, key, (leaf, origin))
    ordered = {section: tree[section] for section in RunConfig.model_fields if section in tree}
    head = [f"# Imported from {', '.join(ascii(path.name) for path in files)} by palimpsest recipes import. Left out:"]
    head += [f"#   {theirs}: {reason}" for theirs, reason in made.left_out.items()]
    made.text = "\n".join([*head, f"recipe: {json.dumps(name)}", *_sections(ordered, "")]) + "\n"
    parse_config(made.text, name=name, read_files=False)
    return made


def _converted(theirs: str, value: Any, given: Given) -> Mapping[str, Any] | str:
    """Values by our key, or the reason why there are none."""
    leaf = re.split(r"\.|--", theirs)[-1].replace("-", "_") if _ELSEWHERE.fullmatch(theirs) else ""
    named = "" if "epoch" in leaf else OTHER_NAMES.get(leaf, "")  # epochs are not steps
    ours = _SAME.get(theirs, named if re.match(r"(optim|train|loss|data)\.", named) else None)
    if (ours or theirs in _RULES) and re.search("[$`]", str(value)):
        return "its value depends on the shell: write it in the recipe"
    if isinstance(value, str | int) and (theirs, value) in _FIXED:
        return _FIXED[theirs, value]
    try:
        if theirs in _RULES and (made := _RULES[theirs](value, given)) is not None:
            return made
    except (TypeError, ValueError, LookupError, ZeroDivisionError):
        return f"{value!r:.60}: no counterpart, or another key is missing"
    if ours and theirs not in _FIXED_KEYS:
        return {} if value in (None, -1) else dict.fromkeys(ours.split(), value)  # unset in verl
    reason = next((reason for pattern, reason in _REASONS.items() if re.search(pattern, theirs)), "unknown")
    return {} if theirs in _READ_BY_RULES else reason


def _sections(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _sections(value, indent + "  ")
        else:
            shown = yaml.dump({key: value[0]}, Dumper=Dumper, width=10_000, allow_unicode=True).strip()
            yield f"{indent}{shown}  # {value[1]}"


# ---- Words of a script, keys of a YAML file ------------------------------------------------------------------


_LONGEST = 4096  # characters of a value: variables that contain each other would grow without end
_LINE = 1 << 16  # characters of a line: reading takes quadratic time
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^${}]*))?\}|\$(\w+)")
_HERE = re.compile(r"\$\(pwd\)|`pwd`")
_NOTE = re.compile(r"(?<=\s)`[ \t]*#[^`\n]*`(?=\s|$)")  # a comment between arguments
_SUM = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
_SET = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_HYDRA = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)


def _given(path: Path, variables: dict[str, str]) -> dict[str, Any]:
    try:
        text = read_regular(path, MAX_CHARACTERS + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: unreadable ({error}); name a script, a YAML file or a checkout") from None
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{path}: longer than {MAX_CHARACTERS:,} characters; name the script that starts training")
    if path.suffix not in (".yaml", ".yml"):
        if max(map(len, text.replace("\\\n", " ").splitlines()), default=0) > _LINE:
            raise ConfigError(f"{path}: has a line of over {_LINE:,} characters; name the script that starts training")
        return _of_script(text, variables)
    given = dict(leaves(sections_of(text, str(path))))
    known = {key: str(value) for key, value in given.items()}
    return {key: _value(value, known) if isinstance(value, str) else value for key, value in given.items()}


def _of_script(text: str, variables: dict[str, str]) -> dict[str, Any]:
    """Arguments of a script, which also sets `variables`."""
    given: dict[str, Any] = {}
    for line in _NOTE.sub("", _HERE.sub(".", text.replace("\\\n", " "))).splitlines():
        try:
            words = shlex.split(_SUM.sub(lambda found: _computed(found[1], variables) or found[0], line), comments=True)
        except ValueError:  # a text over several lines
            continue
        words = words[words[:1] in (["export"], ["local"]) :]
        while words and (named := _SET.fullmatch(words[0])):
            if named[2].startswith("("):  # an array
                words[0] = named[2][1:] or "--"
                break
            words, variables[named[1]] = words[1:], _replaced(named[2], variables)
            given |= {named[1]: _value(named[2], variables)} if named[1] in _SAME else {}
        given |= {found[1]: _value(found[2], variables) for word in words if (found := _HYDRA.fullmatch(word))}
        given |= _flags(words, variables)
    return given


def _flags(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Arguments of a Python script, or elements of an array; those of other programs are none of training."""
    script = max((place for place, word in enumerate(words, 1) if word.endswith(".py")), default=0)
    if not (script or "".join(words[:1]).startswith("--")):
        return
    flags: dict[str, list[Any]] = {}
    for word in words[script:]:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        flags |= {name.rstrip(")"): []} if name else {}
        if flags and (equals or not name) and value != ")":
            flags[next(reversed(flags))].append(_value(value if "(" in value else value.rstrip(")"), variables))
    for name, values in flags.items():
        yield name, True if not values else values[0] if len(values) == 1 else values


def _value(text: str, variables: Mapping[str, str]) -> Any:
    """The YAML value of a word."""
    replaced = _replaced(text, variables)
    try:
        return read(replaced)
    except yaml.YAMLError:
        return replaced


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    """`text` with the values of variables; unknown ones stay.

    >>> _replaced("${A}/${B:-$A}/$C", {"A": "x"})
    'x/x/$C'
    """
    for _ in range(8):
        replaced = _VARIABLE.sub(lambda at: variables.get(at[1] or at[3], at[2] if at[2] is not None else at[0]), text)
        if replaced == text or len(replaced) > _LONGEST:
            break
        text = replaced
    return text


def _computed(text: str, variables: Mapping[str, str]) -> str | None:
    """Result of whole-number arithmetic.

    >>> _computed("(A + 20) * 10 / 10", {"A": "4"}), _computed("A ** 9", {"A": "4"})
    ('24', None)
    """
    signs = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__, ast.Div: int.__floordiv__}

    def of(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return signs[type(node.op)](of(node.left), of(node.right))
        return int(variables[node.id]) if isinstance(node, ast.Name) else int(ast.literal_eval(node))

    try:
        return str(of(ast.parse(_replaced(text, variables).strip()[:200], mode="eval").body))
    except (SyntaxError, ValueError, LookupError, TypeError, ZeroDivisionError, RecursionError):
        return None
