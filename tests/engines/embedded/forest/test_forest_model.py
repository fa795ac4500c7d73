"""Log-probabilities and gradients of the vocabulary projection in chunks, compared with float64 in one piece."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GraniteConfig, GraniteForCausalLM

from palimpsest.config.engine import ModelConfig
from palimpsest.engines.embedded import architecture
from palimpsest.engines.embedded.architecture import LogitsHead, decoder_of, head_of
from palimpsest.engines.embedded.forest.forest_model import adopt, hidden_at, token_logprobs
from palimpsest.engines.embedded.forest.layout import build_forests, unweighted
from palimpsest.engines.embedded.model_loading import load_model
from palimpsest.engines.embedded.sampling.continuous_batch import score

LARGE = 151_936  # ids of Qwen3's output projection


@pytest.mark.parametrize("entropy", [False, True])
def test_chunks_of_the_vocabulary_projection_change_neither_values_nor_gradients(entropy: bool) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50)
    rows, targets, results = torch.randint(17, (23,)), torch.randint(50, (23,)), []
    start = torch.randn(17, 8)
    for chunks in ({"chunk_rows": 4}, {}):
        hidden = start.clone().requires_grad_()
        logprobs, spread = token_logprobs(
            hidden, head, rows, targets, 1.3, vocab=50, entropy_gradient=entropy, **chunks
        )
        assert spread.requires_grad is entropy
        (logprobs.sum() + (spread.sum() if entropy else 0)).backward()
        results.append((logprobs.detach(), spread.detach(), hidden.grad, head.weight.grad, head.bias.grad))
        head.zero_grad()
    exact = (head(start[rows]) / 1.3).log_softmax(-1)
    assert torch.allclose(results[0][0], exact.gather(1, targets[:, None])[:, 0], atol=1e-6)
    assert torch.allclose(results[0][1], -(exact.exp() * exact).sum(-1), atol=1e-5)
    for few, many in zip(*results, strict=True):
        assert torch.allclose(few, many, atol=1e-5)


class Task:
    """States, the ids that follow them and a weight for each, over a large vocabulary."""

    def __init__(self, count: int, width: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.hidden = (torch.ones(width) + 0.5 * torch.randn(count, width, generator=draw)).bfloat16()
        self.weight = torch.randn(LARGE, width, generator=draw).bfloat16()
        self.rows, self.targets = torch.arange(count), torch.randint(20, (count,), generator=draw)  # frequent ids
        self.credit = torch.rand(count, generator=draw)

    def gap(self) -> Tensor:
        """[rows, LARGE] gradient of the loss by the logits, in float64."""
        gap = -(self.hidden.double() @ self.weight.double().T).softmax(-1)
        gap[self.rows, self.targets] += 1
        return gap * self.credit[:, None].double()

    def exact(self) -> tuple[Tensor, Tensor]:
        """Gradients of the projection and of the states, in float64 and in one piece."""
        gap = self.gap()
        return gap.T @ self.hidden.double(), gap @ self.weight.double()

    def computed(self, dtype: torch.dtype, chunk_rows: int) -> tuple[Tensor, Tensor]:
        head = nn.Linear(self.hidden.shape[1], LARGE, bias=False, dtype=dtype)
        head.weight = nn.Parameter(self.weight.to(dtype))
        hidden = self.hidden.to(dtype, copy=True).requires_grad_()
        logprobs, _ = token_logprobs(hidden, head, self.rows, self.targets, 1.0, vocab=LARGE, chunk_rows=chunk_rows)
        (logprobs * self.credit).sum().backward()
        assert head.weight.grad is not None
        assert hidden.grad is not None
        return head.weight.grad, hidden.grad


def float32_bounds(task: Task) -> list[float]:
    """Relative errors that float32 sums may have on any processor: of the projection's gradient, of the states'.

    A sum of n products has an error of at most about 4 sqrt(n) u sum|products|, u = 2^-24, if roundings are independent
    (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019). Logits have such an error too.
    """
    gap, (of_weight, of_states) = task.gap(), task.exact()
    hidden, weight = task.hidden.double().abs(), task.weight.double().abs()
    width, unit = hidden.shape[1], 2.0**-24
    logits = 4 * width**0.5 * unit * float((hidden @ weight.T).max())  # absolute: relative for their softmax
    sizes = (gap.abs().T @ hidden).norm() / of_weight.norm(), (gap.abs() @ weight).norm() / of_states.norm()
    terms = len(hidden), len(weight)
    return [float(size) * (4 * count**0.5 * unit + logits) for size, count in zip(sizes, terms, strict=True)]


def errors(results: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Relative errors of whole gradients."""
    return [float((f.double() - e).norm() / e.norm()) for f, e in zip(results, exact, strict=True)]


def rounding_of_chunks(task: Task, size: int) -> float:
    """Relative error of the projection's gradient where each chunk's is rounded to bfloat16 and their sum is exact."""
    gap, hidden = task.gap(), task.hidden.double()
    sizes = [(g.T @ h).norm() for g, h in zip(gap.split(size), hidden.split(size), strict=True)]
    return 2.0**-8 * float(torch.stack(sizes).norm() / (gap.T @ hidden).norm())


@pytest.mark.slow
def test_the_heads_gradient_at_a_large_vocabulary_does_not_lose_bits_with_the_number_of_chunks() -> None:
    """In bfloat16, 64 chunks are about as exact as one; if added in bfloat16, they have 1.9 times the error."""
    task = Task(128, 8)
    exact = task.exact()
    many, one = (errors(task.computed(torch.bfloat16, size), exact) for size in (2, 128))
    assert many[0] < math.hypot(one[0], rounding_of_chunks(task, 2))
    assert many[1] < 1.1 * one[1]  # no sum over chunks: the same numbers, rounded to bfloat16 each
    single, bounds = errors(task.computed(torch.float32, 2), exact), float32_bounds(task)
    assert all(error < bound < error16 for error, bound, error16 in zip(single, bounds, one, strict=True))


def test_in_float32_the_heads_gradient_has_the_bits_of_autograds_sum_over_chunks() -> None:
    torch.manual_seed(1)
    head, start = nn.Linear(16, 300, bias=False), torch.randn(40, 16)
    rows, targets = torch.arange(40), torch.randint(300, (40,))

    def piece(states: Tensor, wanted: Tensor) -> Tensor:
        every: Tensor = head(states).div(0.7).log_softmax(-1)
        return every.gather(1, wanted[:, None])[:, 0]

    results = []
    for ours in (True, False):
        hidden = start.clone().requires_grad_()
        if ours:
            values, _ = token_logprobs(hidden, head, rows, targets, 0.7, vocab=300, chunk_rows=7)
        else:
            parts = zip(hidden.split(7), targets.split(7), strict=True)
            values = torch.cat([checkpoint(piece, *part, use_reentrant=False) for part in parts])
        (values * torch.linspace(-1, 1, 40)).sum().backward()
        results.append((values.detach(), hidden.grad, head.weight.grad))
        head.zero_grad()
    for computed, wanted in zip(*results, strict=True):
        assert computed is not None
        assert torch.equal(computed, wanted)


def test_a_scaled_projection_in_chunks_has_the_gradient_of_the_models_logits() -> None:
    torch.manual_seed(2)
    config = GraniteConfig(
        vocab_size=120, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, logits_scaling=3.0, tie_word_embeddings=False,
    )  # fmt: skip
    model: Any = GraniteForCausalLM(config).eval()
    ids = torch.randint(120, (1, 12))
    model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).sum().backward()
    exact = model.lm_head.weight.grad.clone()
    model.zero_grad()
    hidden = model.model(ids).last_hidden_state[0, :-1]
    sizes = {"vocab": 120, "chunk_rows": 2}
    token_logprobs(hidden, head_of(model), torch.arange(11), ids[0, 1:], 1.0, **sizes)[0].sum().backward()
    assert torch.allclose(model.lm_head.weight.grad, exact, atol=1e-5)


def test_logits_in_bfloat16_are_one_chunk_so_that_no_sum_is_in_bfloat16() -> None:
    calls, head = list[int](), nn.Linear(4, 4000, dtype=torch.bfloat16)
    head.register_forward_hook(lambda module, arguments, result: calls.append(len(result)))
    hidden = torch.randn(500, 4, dtype=torch.bfloat16, requires_grad=True)
    token_logprobs(hidden, head, torch.arange(500), torch.zeros(500, dtype=torch.long), 1.0, vocab=4000)
    assert calls == [500]


@pytest.mark.parametrize(("bias", "chunk_rows"), [(False, None), (True, None), (False, 4)])
def test_float32_logits_of_bfloat16_weights_round_no_log_probability(
    bias: bool, chunk_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    projection = nn.Linear(64, 300, bias=bias, dtype=torch.bfloat16)
    nn.init.normal_(projection.weight)
    rows, targets, start = torch.arange(20), torch.randint(300, (20,)), torch.randn(20, 64).bfloat16()
    weights = [weight.detach().double().requires_grad_() for weight in (start, *projection.parameters())]
    every = nn.functional.linear(weights[0], weights[1], weights[2] if bias else None).log_softmax(-1)
    exact = every.gather(1, targets[:, None])[:, 0]
    wanted, values, gradients = torch.autograd.grad(exact.sum(), weights), [], []
    for devices in ({"cuda"}, {"cpu"}):
        monkeypatch.setattr(architecture, "WIDE", devices)
        hidden = start.clone().requires_grad_()
        head = LogitsHead(None, projection, None, None, None)
        logprobs, _ = token_logprobs(hidden, head, rows, targets, 1.0, vocab=300, chunk_rows=chunk_rows)
        logprobs.sum().backward()
        values.append(float((logprobs - exact).detach().abs().max()))
        grads = [hidden.grad, *(weight.grad for weight in projection.parameters())]
        gradients.append(errors([grad for grad in grads if grad is not None], wanted))
        projection.zero_grad()
    assert values[1] < 1e-4 < 1e-2 < values[0]
    assert max(gradients[1]) < 2.0**-7  # rounded to bfloat16 twice


def test_sampler_and_learner_of_a_bfloat16_model_have_the_same_float32_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "WIDE", {"cpu"})
    model = load_model(ModelConfig(dtype="bfloat16", device="cpu"))  # its class rounds logits to bfloat16
    vocab = int(model.config.vocab_size)
    ids = torch.randint(vocab, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        states = decoder_of(model)(input_ids=torch.tensor([ids])).last_hidden_state[0, :-1].double()
    every = (states @ model.get_output_embeddings().weight.detach().double().t()).log_softmax(-1)
    exact = every.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    adopt(model)
    (forest,) = build_forests([unweighted(ids)], 100, 100, torch.device("cpu"))
    for devices, least, most in (({"cuda"}, 1e-3, 0.1), ({"cpu"}, 0, 1e-5)):
        monkeypatch.setattr(architecture, "WIDE", devices)
        with torch.no_grad():
            hidden = hidden_at(model, forest)
            learner, _ = token_logprobs(hidden, head_of(model), forest.predicts, forest.targets, 1.0, vocab=vocab)
        sampler = torch.tensor(score(model, ids[:1], ids[1:]))
        assert torch.equal(learner, sampler)
        assert least <= float((sampler - exact).abs().mean()) < most
