"""Whether a model is made of the parts that the shortened forwards compute, and of no others.

They read weights and call parts one by one (sampling/fused.py, forest/hidden.py), so whatever else a model has would be
left out: a bias, a norm, a factor, a hook. What counts is what the model is made of, never the values of its
weights: a bias of zeros is trained like any other.

Guaranteed: a parameter or module that is not named here, another class or activation, a hook or a replaced `forward`
sends the model through its own class.
"""

from __future__ import annotations

from typing import Any

from torch import nn

ROOT = {
    "LlamaForCausalLM": "Llama",
    "MistralForCausalLM": "Mistral",
    "Qwen2ForCausalLM": "Qwen2",
    "Qwen3ForCausalLM": "Qwen3",
}
"""Classes whose layers add attention and feed-forward part to the residual stream, and how their parts' names begin."""

DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def is_plain(model: Any) -> bool:
    """Whether `model` is nothing but what the fused forward computes."""
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
    """Linear layers without a bias, but for those of queries, keys and values, which have one all or none."""
    attention, mlp = _children(layer.self_attn), _children(layer.mlp)
    if not _has_parts_of_a_last_layer(layer, root):
        return False
    projections: list[Any] = [attention[name] for name in ("q_proj", "k_proj", "v_proj")]
    outward: list[Any] = [attention["o_proj"], *(mlp[name] for name in ("gate_proj", "up_proj", "down_proj"))]
    return (
        all(type(part) is nn.Linear for part in (*projections, *outward))
        and len({part.bias is None for part in projections}) == 1
        and all(part.bias is None for part in outward)
        and type(mlp["act_fn"]).__name__ in ("SiLU", "SiLUActivation")
        and not list(layer.parameters(recurse=False))
        and not list(layer.self_attn.parameters(recurse=False))
    )


def last_layer_is_plain(model: Any) -> bool:
    """Whether decoder and last layer of `model`, which may have adapters, can be taken apart as hidden.py does.

    Its linear layers are called there, so they may be anything. What calls them is not: it must be as its class has it.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    if not type(base).__module__.startswith("transformers.models.") or type(base).__name__ not in ROOT:
        return False
    decoder = base.get_decoder()
    last = decoder.layers[-1]
    return (
        set(_children(decoder)) == DECODER
        and _has_parts_of_a_last_layer(last, ROOT[type(base).__name__])
        and not any(_altered(module) for module in (decoder, last, last.self_attn))
        and not list(last.parameters(recurse=False))
        and not list(last.self_attn.parameters(recurse=False))
    )


def _has_parts_of_a_last_layer(layer: Any, root: str) -> bool:
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


def _is_norm(module: Any, root: str) -> bool:
    return type(module).__name__ == f"{root}RMSNorm" and [n for n, _ in module.named_parameters()] == ["weight"]


def _altered(module: nn.Module) -> bool:
    """Whether calling the module does more, or something else, than its class does."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or hasattr(module, "parametrizations")
    )


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return dict(module.named_children())
