"""Section `model`: which model, how it is held, the variables of its chat template; and where it lies."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Literal

from pydantic import Field, field_validator

from palimpsest.config.section import Strict

_OURS_IN_TEMPLATES = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "messages",
    "return_dict", "tokenize", "tools",
)  # fmt: skip

Dtype = Literal["float32", "bfloat16"]
"""What numbers weights are."""


class AdapterConfig(Strict):
    """Train low-rank adapters instead of the weights (LoRA, arXiv 2106.09685); needs the extra `lora`."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    """Adapters are scaled by alpha / rank."""
    target_modules: tuple[str, ...] | None = None
    """Names of the layers that get one, such as q_proj; None: every linear layer but the output projection."""


class ModelConfig(Strict):
    path: str = "embedded"
    """`embedded` for the model inside the package, `embedded-tools` for the same after lessons in calling tools, a
    Hugging Face folder, or a hub id such as Qwen/Qwen3-4B."""
    dtype: Dtype | Literal["auto"] = "float32"
    """What weights are held and computed in; auto: bfloat16 on a GPU for a model whose files are, otherwise float32.
    auto is for models that are only sampled from: the default of eval, ask and serve where no run or recipe says
    otherwise."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1"""
    gradient_checkpointing: bool = False
    lora: AdapterConfig | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the model's chat template, wherever a prompt is built, such as {enable_thinking: false}."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _variables(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not key.isidentifier() or key in _OURS_IN_TEMPLATES:
                why = "is the prompt itself" if key in _OURS_IN_TEMPLATES else "is no name of a variable"
                raise ValueError(f"model.chat_template_kwargs.{key} {why}; give those like enable_thinking")
        return value


# ---- Where the model that a configuration names lies ---------------------------------------------------------


SHIPPED = {"embedded": "base-model", "embedded-tools": "tool-model"}
"""Names of the models inside the package, and their folders."""


def model_path(config: ModelConfig) -> str:
    """Folder or hub id that `config.path` stands for."""
    return named(config.path)


def named(path: str) -> str:
    """Folder or hub id that the name of a model stands for."""
    return str(files("palimpsest").joinpath("assets", SHIPPED[path])) if path in SHIPPED else path
