"""Model architecture: context window, layer kinds, logits head, and the modules of a model.

Functions here read the text model's configuration: `text_config` of a multimodal wrapper, not the outer one.

The shortened forwards (sampling/forward.py, forest/forest_model.py) read weights and call modules one by one, so they
would omit any other part: a bias, a norm, a factor, a hook. `is_plain` and `last_layer_is_plain` compare modules and
parameters, never values: a bias of zeros is trained like any other.

Guaranteed: a missing window, and layers with a state other than keys and values, are rejected with the name of the
class. An unknown parameter, module, class or activation, a hook or a replaced `forward` sends the model through its own
class.
Not covered: behaviour of a class that its configuration does not state; `parity.py` compares numbers for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from palimpsest.config.schema import Layout
from palimpsest.errors import ModelError

FULL, SLIDING = "full_attention", "sliding_attention"

WINDOWS = ("sliding_window", "_sliding_window_pattern", "sliding_window_pattern", "max_window_layers")
"""Configuration keys of a sliding window, as computed here."""
CONTEXT = ("max_position_embeddings", "max_seq_len", "seq_length", "context_length")
"""Configuration keys of the context window, by family."""
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Configuration keys of a cap of the logits, by family."""
UNBOUNDED = 1 << 20  # tokens, for classes without attention: their state has one size at any length


class Head(Protocol):
    """A module from hidden states [N, W] to logits [N, V]."""

    def __call__(self, hidden: Tensor, /) -> Tensor: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True, slots=True)
class Context:
    """Context window of a model."""

    tokens: int
    """Longest sequence."""
    sliding: int | None = None
    """Tokens that a sliding layer sees, including the current one; None if every layer sees all `tokens`."""
    mixed: bool = False
    """True if only some of the layers slide."""
    reason: str = ""
    """Why `tokens` is less than the configured window; otherwise empty."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How a model is computed here; the checks of its class at loading choose (parity.py, forest/forest_model.py)."""

    sampling: Literal["pool", "cache", "whole"] = "pool"
    """pool: sequences share keys and values; cache: each has its class's own cache; whole: every token computes all
    earlier ones again."""
    sampling_reason: str = ""
    """Why not `pool`."""
    layout: Layout | None = None
    """See `learner.layout`; None: not chosen yet."""
    layout_reason: str = ""
    """Why not `forest`."""


def ways_of(model: Any) -> Ways:
    return getattr(base_of(model), "palimpsest_ways", Ways())


def choose(model: Any, **ways: str | None) -> None:
    """Change fields of the model's `Ways`."""
    base_of(model).palimpsest_ways = replace(ways_of(model), **ways)  # type: ignore[arg-type]


def text_config(model: Any) -> Any:
    """The configuration of the text model, also within a multimodal one."""
    return model.config.get_text_config(decoder=True)


def context_of(model: Any) -> Context:
    """Raises ModelError if the configuration names no window."""
    config = text_config(model)
    limit = next(filter(None, (getattr(config, key, None) for key in CONTEXT)), None)
    if limit is None and getattr(config, "num_attention_heads", None) is None:
        limit = UNBOUNDED
    if not isinstance(limit, int) or limit < 1:
        raise ModelError(
            f"{type(config).__name__} names no max_position_embeddings, so its window is unknown; add it to config.json"
        )
    tokens, reason = limit, ""
    for rope in ropes(config):
        switch = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") == "longrope" and isinstance(switch, int) and switch < tokens:
            tokens = switch
            reason = f"of {limit}, because longrope rotates all positions differently once one is beyond {switch}"
    kinds = getattr(config, "layer_types", None)
    sliding = getattr(config, "sliding_window", None) if kinds is None or SLIDING in kinds else None
    if sliding is None or not 0 < sliding < tokens:
        return Context(tokens, reason=reason)
    return Context(tokens, int(sliding), kinds is not None and len(set(kinds)) > 1, reason)


def ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Rotary parameters, common to all layers or per kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (rope for rope in parameters.values() if isinstance(rope, Mapping))


def max_context(model: Any) -> int:
    """Longest sequence in tokens; see `Context`."""
    return context_of(model).tokens


def check_class(config: Any) -> None:
    """Reject configurations of other than causal language models, before weights are loaded."""
    name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name} has an encoder; use a decoder-only model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{name} is not a causal language model of transformers; use a decoder-only language model")


def check_layers(model: Any) -> None:
    """Reject models with layers other than full or sliding attention, or with an unknown window.

    These have no keys and values that sequences could share.
    """
    config = text_config(model)
    name = type(model).__name__
    for key, value in vars(config).items():
        if "window" in key and key not in WINDOWS and type(value) is int and 0 < value < context_of(model).tokens:
            raise ModelError(f"{name} has an unsupported window ({key}={value})")
    foreign = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}
    if foreign:
        raise ModelError(f"{name} has layers of {', '.join(sorted(foreign))}")


WIDE = {"cuda"}
"""Devices where logits are float32 or wider at no cost; casting the weights on a CPU takes three times as long."""


class WideProduct(torch.autograd.Function):
    """[N, V] float32 logits of `hidden` [N, W] and `weight` [V, W] in a shorter dtype; torch.mm's has no derivative."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        if hidden.is_cuda:
            return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
        return hidden.float() @ weight.float().t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # as that of logits in the weights' dtype
        of_hidden, of_weight = ctx.needs_input_grad  # not of a frozen projection
        return grad @ weight if of_hidden else None, grad.t() @ hidden if of_weight else None


class LogitsHead(nn.Module):
    """An output projection, in float32 where `WIDE`, after the layers that precede it in the class, and the class's
    change of logits: scaling (Granite, Cohere) or a cap (Gemma)."""

    def __init__(
        self, before: nn.Module | None, projection: Any, divisor: float | None, factor: float | None, cap: float | None
    ) -> None:
        super().__init__()
        self.before, self.projection = before, projection
        self._divisor, self._factor, self._cap = divisor, factor, cap

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, W] hidden states to [N, V] logits."""
        hidden = hidden if self.before is None else self.before(hidden)
        plain = type(self.projection) is nn.Linear  # an adapter's projection has more than its weight
        if hidden.dtype.itemsize > (dtype := self.projection.weight.dtype).itemsize:
            hidden = hidden.to(dtype)  # Mamba's
        if plain and hidden.device.type in WIDE and dtype.itemsize < torch.float32.itemsize:
            flat: Tensor = WideProduct.apply(hidden.flatten(0, -2), self.projection.weight)  # type: ignore[no-untyped-call]
            logits = flat.view(*hidden.shape[:-1], -1)
            logits = logits if self.projection.bias is None else logits + self.projection.bias
        else:
            logits = self.projection(hidden)
        if self._divisor is not None:
            logits = logits / self._divisor
        if self._factor is not None:
            logits = logits * self._factor
        return logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap


def decoder_of(model: Any) -> Any:
    """The module from token ids to hidden states; some classes name another one in `get_decoder`."""
    decoder, base = model.get_decoder(), base_of(model)
    return decoder if isinstance(decoder, PreTrainedModel) and decoder is not base else getattr(base, "model", decoder)


def head_of(model: Any) -> Head:
    """The output projection with the class's change of logits, and with the layers that precede it in the class."""
    projection: Any = model.get_output_embeddings()
    before = getattr(base_of(model), "lm_head", None)
    config = text_config(model)
    divisor, factor, cap = (
        next((value for key in keys if (value := getattr(config, key, None)) is not None), None)
        for keys in (("logits_scaling", "logits_mup_width_multiplier"), ("logit_scale", "lm_head_multiplier"), CAPS)
    )
    precedes = before is not None and projection not in before.modules()
    return LogitsHead(before if precedes else None, projection, divisor, factor, cap)


# ---- Modules that the shortened forwards support -------------------------------------------------------------


ROOT = {
    "LlamaForCausalLM": "Llama",
    "MistralForCausalLM": "Mistral",
    "Qwen2ForCausalLM": "Qwen2",
    "Qwen3ForCausalLM": "Qwen3",
}
"""Classes whose layers add attention and feed-forward part to the residual stream, and their name prefixes."""

DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def base_of(model: Any) -> Any:
    """The model inside peft's wrapper, with its adapters; any other model is returned."""
    return getattr(model, "get_base_model", lambda: model)()


def merged_weight(layer: Any, gather: Callable[[Tensor], Tensor] = Tensor.detach) -> Tensor:
    """[out, in] weight of a linear layer, with peft's adapter merged in at least float32.

    `gather` joins the shares of a weight.
    """
    value = gather((layer if type(layer) is nn.Linear else layer.base_layer).weight)
    if type(layer) is nn.Linear:
        return value
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    (key,) = layer.active_adapters
    a, b = (gather(part[key].weight).to(value.dtype) for part in (layer.lora_A, layer.lora_B))
    merged: Tensor = value + layer.scaling[key] * (b @ a)
    return merged


def is_plain(model: Any) -> bool:
    """True if the fused forward computes everything in `model`, which may have adapters."""
    return (
        type(model).__module__.startswith("transformers.models.")
        and type(model).__name__ in ROOT
        and set(_children(model)) == {"model", "lm_head"}
        and set(_children(model.model)) == DECODER
        and type(model.model.embed_tokens) is nn.Embedding
        and model.model.embed_tokens.max_norm is None
        and type(model.lm_head) is nn.Linear
        and model.lm_head.bias is None
        and not any(_altered(module) for module in model.modules())
        and all(_plain_layer(layer, ROOT[type(model).__name__]) for layer in model.model.layers)
        and _is_norm(model.model.norm, ROOT[type(model).__name__])
    )


def _plain_layer(layer: Any, root: str) -> bool:
    """True if linear layers have no bias, except queries, keys and values, which all have one or none."""
    attention, mlp = _children(layer.self_attn), _children(layer.mlp)
    if not _has_last_layer_modules(layer, root):
        return False
    projections: list[Any] = [attention[name] for name in ("q_proj", "k_proj", "v_proj")]
    outward: list[Any] = [attention["o_proj"], *(mlp[name] for name in ("gate_proj", "up_proj", "down_proj"))]
    return (
        all(_is_linear(part) for part in (*projections, *outward))
        and len({part.bias is None for part in projections}) == 1
        and all(part.bias is None for part in outward)
        and type(mlp["act_fn"]).__name__ in ("SiLU", "SiLUActivation")
        and not list(layer.parameters(recurse=False))
        and not list(layer.self_attn.parameters(recurse=False))
    )


def last_layer_is_plain(model: Any) -> bool:
    """True if forest/forest_model.py can split decoder and last layer of `model`, which may have adapters.

    Linear layers are called there, so any kind is allowed; the modules that call them must be unaltered.
    """
    base = base_of(model)
    if not type(base).__module__.startswith("transformers.models.") or type(base).__name__ not in ROOT:
        return False
    decoder = decoder_of(base)
    last = decoder.layers[-1]
    return (
        set(_children(decoder)) == DECODER
        and _has_last_layer_modules(last, ROOT[type(base).__name__])
        and not any(_altered(module) for module in (decoder, last, last.self_attn))
        and not list(last.parameters(recurse=False))
        and not list(last.self_attn.parameters(recurse=False))
    )


def _has_last_layer_modules(layer: Any, root: str) -> bool:
    attention, norms = set(_children(layer.self_attn)), HEAD_NORMS if root == "Qwen3" else set()
    return (
        set(_children(layer)) == LAYER
        and type(layer.self_attn).__name__ == f"{root}Attention"
        and type(layer.mlp).__name__ == f"{root}MLP"
        and attention == ATTENTION | norms
        and set(_children(layer.mlp)) == MLP
        and all(_is_norm(getattr(layer.self_attn, name), root) for name in norms)
        and _is_norm(layer.input_layernorm, root)
        and _is_norm(layer.post_attention_layernorm, root)
    )


def _is_linear(module: Any) -> bool:
    """True for a linear layer, and for one with a single plain adapter of peft."""
    if type(module) is nn.Linear:
        return True
    kind, names = type(module), {name.partition(".")[0] for name, _ in module.named_parameters()}
    return (
        (kind.__module__, kind.__name__) == ("peft.tuners.lora.layer", "Linear")
        and type(module.base_layer) is nn.Linear
        and names == {"base_layer", "lora_A", "lora_B"}
        and len(module.active_adapters) == 1
        and not module.lora_variant
    )


def _is_norm(module: Any, root: str) -> bool:
    return type(module).__name__ == f"{root}RMSNorm" and [n for n, _ in module.named_parameters()] == ["weight"]


def _altered(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or hasattr(module, "parametrizations")
    )


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return dict(module.named_children())
