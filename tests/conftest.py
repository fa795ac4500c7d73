"""Fixtures shared by all tests: a small byte-level tokenizer, a random-weight Llama, the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads collapse where the cores are shared
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path
from typing import Any

import pytest

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
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def build_llama(vocab_size: int, *, seed: int = 0, **changes: Any) -> Any:
    """A random Llama in float32, hidden 32, 2 layers; weights large enough that logits differ clearly."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "attn_implementation": "sdpa",
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**{**options, **changes})).float().eval()


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_codec(tiny_tokenizer: Any) -> Any:
    from palimpsest.text.codec import Codec

    return Codec(tiny_tokenizer)


@pytest.fixture
def tiny_model(tiny_tokenizer: Any) -> Any:
    """Built anew for each test, so that a test may train it."""
    return build_llama(len(tiny_tokenizer))


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any) -> Path:
    """A Hugging Face folder: config, safetensors, tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-model")
    build_llama(len(tiny_tokenizer)).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the published files: $PALIMPSEST_DATA, or ../shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("PALIMPSEST_DATA", beside))
    if not (folder / "hotpotqa_train_100.json").is_file():
        pytest.skip(f"no published data at {folder}; set PALIMPSEST_DATA to the folder with hotpotqa_train_100.json")
    return folder


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def palimpsest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The console script in this process: torch is imported once for all tests."""
    from palimpsest.cli.main import main

    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["palimpsest", *args])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return run


@pytest.fixture
def refused(palimpsest: Run) -> Callable[..., str]:
    """The one line a command refuses with."""

    def run(*args: str) -> str:
        done = palimpsest(*args)
        assert done.returncode == 2, done.stderr
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: ")
        return lines[0]

    return run
