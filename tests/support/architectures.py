"""Tiny models of the classes of transformers, and the support of each, as in docs/reference/models.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from palimpsest.engines.embedded.architecture import check_class

VOCAB = 200
SMALL: dict[str, Any] = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2}
WIDE = {"head_dim": 16}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SLIDING = {"sliding_window": 24}  # of every layer; or of some:
MIXED = {**SLIDING, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
WINDOWED = {**SLIDING, "use_sliding_window": True, "max_window_layers": 2}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
LATENT |= {"qk_nope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2}
LATENT |= {"moe_intermediate_size": 24, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LONGROPE = {
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 4.0, 6.0, 8.0]},
}
PER_LAYER = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "num_hidden_layers": 6}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28}
HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
STATE = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2}


@dataclass(frozen=True)
class Case:
    """A class of models and its support."""

    models: str
    """Examples."""
    changes: dict[str, Any] = field(default_factory=dict)
    """To `SMALL`."""
    sampling: str = "pool"
    """See `Ways`."""
    apart: str = ""
    """Part of the reason for training by segments."""
    refused: str = ""
    """Part of the error when it is loaded."""
    note: str = ""

    @property
    def layout(self) -> str:
        return "segments" if self.apart else "forest"


SAMPLED = {"pool": "yes", "cache": "each alone", "whole": "each alone, recomputed"}
RECURRENT = "has layers of linear_attention"
OTHER = "computed as a prefix forest, its logits differ"
BYPASS = "its attention bypasses transformers' attention interface"
SHORT = "the window ends where longrope changes the positions (4,096 tokens for these)"
CAPPED = "unsupported attention with softcap"

CASES: dict[str, Case] = {
    "Llama": Case("Llama 2 and 3, SmolLM 2, Yi"),
    "Mistral": Case("Mistral 7B, Nemo", SLIDING),
    "Ministral": Case("Ministral 8B", {**MIXED, **WIDE}),
    "Ministral3": Case("Ministral 3", WIDE),
    "Mixtral": Case("Mixtral", EXPERTS),
    "Qwen2": Case("Qwen 2 and 2.5"),
    "Qwen2-sliding": Case("the same with use_sliding_window", WINDOWED),
    "Qwen2Moe": Case("Qwen 1.5 and 2 with experts", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "Qwen3": Case("Qwen 3", WIDE),
    "Qwen3Moe": Case("Qwen 3 with experts", {**EXPERTS, **WIDE}),
    "Gemma": Case("Gemma", WIDE),
    "Gemma2": Case("Gemma 2", {**WIDE, **MIXED}, apart=CAPPED),
    "Gemma3Text": Case("Gemma 3 1B", {**WIDE, **MIXED}),
    "Gemma3": Case(
        "Gemma 3 from 4B",
        {"text_config": {**SMALL, **WIDE, **MIXED}, "vision_config": VISION, "mm_tokens_per_image": 4},
        note="text alone",
    ),
    "Gemma3nText": Case("Gemma 3n", {**WIDE, **SLIDING, **PER_LAYER, "num_kv_shared_layers": 1, "laurel_rank": 4}),
    "Gemma4Text": Case("Gemma 4", {**WIDE, **SLIDING, **PER_LAYER}),
    "VaultGemma": Case("VaultGemma", {**WIDE, **MIXED}, apart=CAPPED),
    "Phi": Case("Phi 1.5 and 2"),
    "Phi3": Case("Phi 3 4k, Phi 4"),
    "Phi3-longrope": Case("Phi 3 128k, Phi 4 mini", LONGROPE, note=SHORT),
    "Phimoe": Case("Phi 3.5 with experts", EXPERTS),
    "Olmo": Case("OLMo"),
    "Olmo2": Case("OLMo 2"),
    "Olmo3": Case("OLMo 3", MIXED),
    "Olmoe": Case("OLMoE", EXPERTS),
    "FlexOlmo": Case("FlexOlmo", EXPERTS),
    "Granite": Case("Granite 3", {"logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0}),
    "GraniteMoe": Case("Granite 3 with experts", {**EXPERTS, "logits_scaling": 4.0}),
    "Cohere": Case("Command R"),
    "Cohere2": Case("Command R7B, Command A", MIXED),
    "Glm": Case("GLM 4 9B", WIDE),
    "Glm4": Case("GLM 4 0414", WIDE),
    "Glm4Moe": Case("GLM 4.5", {**WIDE, **EXPERTS, "n_routed_experts": 4}),
    "SmolLM3": Case("SmolLM 3"),
    "DeepseekV2": Case("DeepSeek V2", LATENT),
    "DeepseekV3": Case("DeepSeek V3, R1", LATENT),
    "Exaone4": Case("EXAONE 4", MIXED),
    "Starcoder2": Case("StarCoder 2", SLIDING),
    "GPTBigCode": Case("StarCoder"),
    "Helium": Case("Helium", {"head_dim": 8}),
    "Arcee": Case("AFM 4.5B"),
    "Afmoe": Case("Trinity", {**MIXED, **EXPERTS}),
    "Apertus": Case("Apertus"),
    "SeedOss": Case("Seed-OSS", WIDE),
    "Ernie4_5": Case("ERNIE 4.5"),
    "Ernie4_5_Moe": Case("ERNIE 4.5 with experts", EXPERTS),
    "HunYuanDenseV1": Case("Hunyuan", WIDE),
    "Cwm": Case("CWM", MIXED),
    "NanoChat": Case("nanochat"),
    "BitNet": Case("BitNet"),
    "DiffLlama": Case("DiffLlama"),
    "Persimmon": Case("Persimmon"),
    "GPT2": Case("GPT-2"),
    "GPTNeoX": Case("Pythia"),
    "OPT": Case("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "BioGpt": Case("BioGPT"),
    "GptOss": Case("gpt-oss", {**WIDE, **MIXED, **EXPERTS}, apart="unsupported attention with s_aux"),
    "StableLm": Case("StableLM 2", apart=OTHER),
    "Nemotron": Case("Nemotron 3 and 4, Minitron", apart=OTHER),
    "Doge": Case("Doge", apart=OTHER),
    "Falcon": Case("Falcon 7B, 40B", apart=BYPASS),
    "Mpt": Case("MPT", {"d_model": 32, "n_heads": 4, "n_layers": 3}, apart=BYPASS),
    "GPTJ": Case("GPT-J", {"rotary_dim": 4}, apart=BYPASS),
    "CodeGen": Case("CodeGen", {"rotary_dim": 4}, apart=BYPASS),
    "Bloom": Case("BLOOM", {"max_position_embeddings": None, "seq_length": 256}, "cache", BYPASS),
    "GPTNeo": Case(
        "GPT-Neo",
        {"attention_types": [[["global", "local"], 2]], "num_hidden_layers": 4, "window_size": 24},
        "cache",
        BYPASS,
    ),
    "Llama4Text": Case("Llama 4", EXPERTS, "cache", "has layers of chunked_attention"),
    "ModernBertDecoder": Case("Ettin decoders", {"local_attention": 24, "global_attn_every_n_layers": 3}),
    "RecurrentGemma": Case("RecurrentGemma", {}, "whole", OTHER),
    "Rwkv": Case("RWKV 4", {"attention_hidden_size": 32}, "cache", BYPASS),
    "Mamba": Case("Mamba", {"max_position_embeddings": None, "num_attention_heads": None}, "cache", RECURRENT),
    "Mamba2": Case("Mamba 2", {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1}, "cache", RECURRENT),
    "Jamba": Case("Jamba", {**EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1}, "cache", RECURRENT),
    "Bamba": Case("Bamba", {**STATE, "attn_layer_indices": [1]}, "cache", RECURRENT),
    "GraniteMoeHybrid": Case(
        "Granite 4", {**EXPERTS, **STATE, "layer_types": ["mamba", "attention", "mamba"]}, "cache", RECURRENT
    ),
    "Qwen3Next": Case("Qwen 3 Next", {**EXPERTS, **WIDE, **HYBRID}, "cache", RECURRENT),
    "Qwen3_5Text": Case("Qwen 3.5", {**WIDE, **HYBRID}, "cache", RECURRENT),
    "NemotronH": Case("Nemotron H", {}, "whole", RECURRENT),
    "FalconH1": Case("Falcon H1", {"lm_head_multiplier": 0.039}, "cache", "has layers of hybrid"),
    "Lfm2": Case("LFM 2", {"layer_types": ["conv", "full_attention", "conv"]}, "cache", "has layers of conv"),
    "MiniMax": Case("MiniMax Text", EXPERTS, "cache", RECURRENT),
    "OlmoHybrid": Case("OLMo Hybrid", HYBRID, "cache", RECURRENT),
    "Qwen3_5MoeText": Case(
        "Qwen 3.5 with experts",
        {**EXPERTS, **WIDE, **HYBRID, "shared_expert_intermediate_size": 24},
        "cache",
        RECURRENT,
    ),
    "DeepseekV32": Case("DeepSeek V3.2", LATENT, "cache", "has layers of indexed_attention"),
    "xLSTM": Case("xLSTM", {}, "whole", OTHER),
    "Bert": Case("BERT", refused="its tokens see later ones, as in an encoder"),
    "Roberta": Case("RoBERTa", refused="its tokens see later ones, as in an encoder"),
    "T5": Case("T5, FLAN-T5", {"architectures": ["T5ForConditionalGeneration"]}, refused="has an encoder"),
    "Qwen2VL": Case(
        "Qwen 2 VL",
        {"architectures": ["Qwen2VLForConditionalGeneration"]},
        refused="is not a causal language model of transformers",
    ),
    "Bart": Case("BART", {"architectures": ["BartForCausalLM"]}, refused="has an encoder"),
}


def configured(name: str, **changes: Any) -> Any:
    """The tiny configuration of a case."""
    import transformers

    values = {**SMALL, **CASES[name].changes, **changes}
    return getattr(transformers, f"{name.partition('-')[0]}Config")(**values)


def built(name: str, **changes: Any) -> Any:
    """Its model in float64, with random weights, norms and biases."""
    import torch
    from transformers import AutoModelForCausalLM

    config = configured(name, **changes)
    check_class(config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
            elif float(parameter.detach().abs().max()) < 0.1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the grouped kernels have no float64
    return model.double().eval()


def class_of(name: str) -> str:
    """Name of a case's class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = configured(name)
    return config.architectures[0] if config.architectures else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]


def table() -> str:
    """Rows of docs/reference/models.md."""
    lines = ["| class | for example | sampled | trained | |", "|---|---|---|---|---|"]
    for name, case in CASES.items():
        sampled, trained = ("no", "no") if case.refused else (SAMPLED[case.sampling], case.layout)
        note = f'"{case.refused}"' if case.refused else case.note
        lines.append(f"| `{class_of(name)}` | {case.models} | {sampled} | {trained} | {note} |")
    return "\n".join(lines)
