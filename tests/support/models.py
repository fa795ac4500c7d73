"""A small byte-level tokenizer, a random-weight Llama and a random-weight BERT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "the color of Anna is blue. the pet of Boris is a cat. question: what is the color of Anna?",
    "memory: the city of Clara is Rome. section: the job of David is baker. updated memory:",
    "Therefore, the answer is \\boxed{blue}. <memory> nothing known </memory> 0 1 2 3 4 5 6 7 8 9",
)


def build_tokenizer() -> Any:
    """A byte-level BPE of about 380 ids with the chat markers as special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    markers = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    sizes: Any = {"vocab_size": 380, "initial_alphabet": alphabet, "show_progress": False}
    trainer = trainers.BpeTrainer(special_tokens=markers, **sizes)
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )


def build_llama(vocab_size: int, *, seed: int = 0, **changes: Any) -> Any:
    """A random Llama in float32, hidden 32, 2 layers; weights large enough that logits differ clearly."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True, "initializer_range": 0.2}
    tokens = {"vocab_size": vocab_size, "eos_token_id": 2, "pad_token_id": 0}
    options: dict[str, Any] = {**sizes, **heads, **tokens, "attn_implementation": "sdpa", **changes}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**options)).float().eval()


def nats_by(model: Any, ids: Sequence[int]) -> list[float]:
    """Nats of each id but the first, by transformers."""
    import torch

    with torch.no_grad():
        nats = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0, :-1], -1)
    return [float(row[id_]) for row, id_ in zip(nats, ids[1:], strict=True)]


def save_bert(folder: Path, words: Sequence[str]) -> Path:
    """A random BERT with a word-level tokenizer, whose ids of `words` start at 4."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    vocabulary = {word: i for i, word in enumerate((*special.values(), *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, initializer_range=0.5, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def bert_vector(folder: Path, words: Sequence[str], text: str, pooling: str) -> np.ndarray:
    """The unit vector of one text, without padding, in float64, from ids put together by hand."""
    import torch
    from transformers import BertModel

    ids = [2, *(words.index(word) + 4 if word in words else 1 for word in text.replace(":", " : ").split()), 3]
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).double().eval()
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy()
    vector = hidden[0] if pooling == "first" else sum(hidden) / len(hidden)
    unit: np.ndarray = vector / np.sqrt(sum(x * x for x in vector))
    return unit


def sampling_gap(model: Any, prompt: Sequence[int], completion: Any, temperature: float = 1.0) -> float:
    """Largest distance of a completion's log-probabilities to those of one forward of `model`, in nats."""
    import torch

    ids = torch.tensor([[*prompt, *completion.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double() / temperature
    exact = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    return float((exact - torch.tensor(completion.logprobs).double()).abs().max())
