"""Kinds of plugins: configuration key, shipped names, call signature.

Shipped names are import paths that plugins.py imports on first use; this module imports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from palimpsest.errors import nearest

OBJECT = "object:"
"""Prefix for the name of an object passed to a call from Python."""


@dataclass(frozen=True)
class PluginKind:
    """Contract of the objects under a configuration key."""

    noun: str
    key: str
    options: str
    """The key of its options."""
    example: str
    shipped: Mapping[str, str]
    """Import paths by name."""
    takes: tuple[str, ...] = ()
    """Arguments of the call."""
    method: str | None = None
    """Method to call instead of an object that has it."""
    base: str | None = None
    """Import path of a class whose objects are used without a call; it provides defaults for missing members."""
    injected: tuple[str, ...] = field(default=(), kw_only=True)
    """Parameters that receive a value of the run."""
    awaited: bool | None = field(default=None, kw_only=True)
    """True for a coroutine; None: either."""
    argument: str | None = field(default=None, kw_only=True)
    """The argument of a call from Python that takes an object."""


_GRADERS = "palimpsest.reward.answer_match"
_FORMATS = (
    *("longmemeval", "longbench_v2", "locomo", "memoryagentbench", "beam", "squad", "hotpotqa", "musique"),
    *("memagent", "memact", "memagent_eval", "ruler", "vime", "flashrag", "frames", "bamboogle", "browsecomp_plus"),
    *("texts", "palimpsest", "qa", "question"),
)
KINDS: dict[str, PluginKind] = {
    "policy": PluginKind(
        "policy",
        "policy.name",
        "policy.options",
        "my_module:MyPolicy",
        {
            "overwrite": "palimpsest.memory.overwrite:OverwritePolicy",
            "recall": "palimpsest.memory.recall:RecallPolicy",
            "parallel": "palimpsest.memory.parallel:ParallelPolicy",
            "lead": "palimpsest.memory.lead:LeadPolicy",
            "retrieval": "palimpsest.memory.recall:RetrievalPolicy",
            "full_context": "palimpsest.memory.document_baselines:FullContextPolicy",
            "sliding_window": "palimpsest.memory.document_baselines:SlidingWindowPolicy",
            "passages": "palimpsest.memory.document_baselines:PassagesPolicy",
            "closed_book": "palimpsest.memory.document_baselines:ClosedBookPolicy",
            "edit": "palimpsest.memory.edit:EditPolicy",
            "prune": "palimpsest.memory.prune:PrunePolicy",
            "tool_window": "palimpsest.memory.tool_baselines:ToolWindowPolicy",
            "compaction": "palimpsest.memory.tool_baselines:CompactionPolicy",
            "summary": "palimpsest.memory.tool_baselines:SummaryPolicy",
        },
        ("problem", "model"),
        "run",
        "palimpsest.memory.policy:MemoryPolicy",
        awaited=True,
        argument="policy",
    ),
    "reward": PluginKind(
        "reward",
        "reward.name",
        "reward.options",
        "my_module:my_reward",
        {
            **dict.fromkeys(
                (
                    *("boxed", "boxed_strict", "em", "f1", "sub_em", "sub_em_reverse", "sub_em_either"),
                    *("fraction", "string_match_all", "string_match_part"),
                ),
                f"{_GRADERS}:MatchGrader",
            ),
            "final_answer": f"{_GRADERS}:FinalAnswerGrader",
            "environment": "palimpsest.reward.turn_rewards:EnvironmentGrader",
        },
        ("problem", "trajectory"),
        "grade",
        injected=("codec",),
        argument="reward",
    ),
    "layer": PluginKind(
        "layer",
        "reward.layers",
        "reward.layers",
        "my_module:my_layer",
        {},
        ("problem", "trajectory", "grade"),
        "grade",
        injected=("codec",),
    ),
    "rule": PluginKind(
        "credit rule",
        "credit.adv_estimator",
        "credit.options",
        "my_module:my_rule",
        {
            "mean": "palimpsest.credit.grpo_rloo:mean",
            "mean_std": "palimpsest.credit.grpo_rloo:mean_std",
            "leave_one_out": "palimpsest.credit.grpo_rloo:leave_one_out",
            "state_mix": "palimpsest.credit.state:StateMix",
            "success_gated": "palimpsest.credit.success_gated:SuccessGated",
        },
        ("group",),
        "turn_advantages",
        awaited=False,
    ),
    "tool": PluginKind(
        "tool",
        "policy.options.tools",
        "policy.options.tools",
        "my_module:MyTool",
        {"search": "palimpsest.tools.tool:SearchTool"},
        ("arguments", "problem"),
        "call",
        "palimpsest.tools.tool:Tool",
    ),
    "environment": PluginKind(
        "environment",
        "environment.name",
        "environment.options",
        "my_module:MyEnvironment",
        {
            "textworld": "palimpsest.tools.textworld:TextWorldEnvironment",
            "openenv": "palimpsest.tools.openenv:OpenEnvEnvironment",
        },
        ("action",),
        "step",
        "palimpsest.tools.environment:Environment",
    ),
    "format": PluginKind(
        "data format",
        "data.format",
        "data.format_options",
        "my_module:MyFormat",
        dict.fromkeys(_FORMATS, "palimpsest.data.formats.problem_files:RowFormat"),
        ("path",),
        "read",
        awaited=False,
    ),
    "sink": PluginKind(
        "log sink",
        "logging.report_to",
        "logging.report_to",
        "my_module:MySink",
        {
            "console": "palimpsest.runs.loggers:ConsoleLogger",
            "jsonl": "palimpsest.runs.loggers:JsonlLogger",
            "tensorboard": "palimpsest.runs.loggers:TensorboardLogger",
            "wandb": "palimpsest.runs.loggers:WandbLogger",
        },
        ("step", "metrics", "timings"),
        "log",
        injected=("folder", "config", "run", "display"),
        awaited=False,
        argument="callbacks",
    ),
    "engine": PluginKind(
        "engine",
        "engine.name",
        "engine.options",
        "my_module:MyEngine",
        {
            "embedded": "palimpsest.engines.embedded.engine:EmbeddedEngine",
            "ray": "palimpsest.engines.ray.engine:RayEngine",
            "endpoint": "palimpsest.engines.endpoint.engine:EndpointEngine",
        },
        injected=("config", "objective"),
    ),
}


_MEANT = {
    ("engine", "vllm"): "for vLLM set sampler.name=vllm",
    ("policy", "memagent"): "MemAgent's is overwrite",
    ("policy", "rememr1"): "ReMemR1's is recall",
    ("policy", "pi_mem"): "PI-Mem's is parallel",
    ("policy", "parser"): "PARSER's is lead",
    ("policy", "memact"): "MemAct's is prune",
    ("reward", "judge"): "set reward.name=final_answer reward.final_answer.match=judge",
    ("rule", "gae"): "there is no critic",
    ("rule", "grpo"): "GRPO's is mean_std",
    ("rule", "dr_grpo"): "Dr. GRPO's is mean",
    ("rule", "rloo"): "RLOO's is leave_one_out",
}
"""What a name that no plugin has probably means."""


def fault_of(kind: str, name: str) -> str | None:
    """Error in the form of a custom name, or None."""
    spec, (module, colon, thing) = KINDS[kind], name.rpartition(":")
    if not colon and name.endswith(".py"):
        return f"add its name in the file, such as {name}:{spec.example.partition(':')[2]}"
    if not colon:
        if (file := Path(f"{name}.py")).is_file():
            names = re.findall(r"^(?:class|def) (\w+)", file.read_text("utf-8", "replace"), re.MULTILINE)
            alike = [each for each in names if each.lower() == name.lower().replace("_", "") or each == name]
            return f"{file} is a module; add the name in it, such as {name}:{(alike or names or ['NAME'])[0]}"
        shipped = f"choose one of {', '.join(spec.shipped)}, or" if spec.shipped else "give"
        hint = f"; {_MEANT[kind, name]}" if (kind, name) in _MEANT else nearest(name, spec.shipped)
        return f"no such {spec.noun}{hint}; {shipped} {spec.example}"
    if not module or not thing:
        return f"not of the form {spec.example}"
    if f"{module}:" == OBJECT or module.endswith(".py") or all(map(str.isidentifier, module.split("."))):
        return None
    return f"{module!r} is not a module name; use the form {spec.example}, or a file that ends in .py"
