"""Policy-gradient and supervised training of the weights that the sampler reads, on packed prefix forests.

Guaranteed: the gradient of a step is the sum over its segments for any packing and micro-batches (segments with only
zero advantages and no KL or entropy term have no gradient and are skipped: they count in denominators, not in the
learner's metrics); a prefix shared within a micro-batch is computed once; log-probabilities are computed at the
sampling temperature and only where the loss mask is set; a saved folder opens with `from_pretrained` and restores
weights and optimizer bit for bit. With adapters (model_loading.py), only the adapters are trained, saved and restored;
the KL reference is the model without them.
Not covered: several devices; saving the KL reference, the run's initial model: `load` only checks its fingerprint.
"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from palimpsest.config.schema import LossConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.architecture import head_of, max_context, ways_of
from palimpsest.engines.embedded.checkpoint_state import (
    FACTS,
    ONE_FILE,
    SHARES,
    CheckpointFacts,
    read_facts,
    read_shares,
)
from palimpsest.engines.embedded.compute import keep_freed_memory
from palimpsest.engines.embedded.forest.forest_model import adopt, hidden_at, token_logprobs
from palimpsest.engines.embedded.forest.gradients import (
    ForestGradients,
    OldLogprobs,
    logprobs_of,
    scores_of,
    skips_silent,
)
from palimpsest.engines.embedded.forest.layout import (
    Forest,
    SegmentRow,
    forest_reuse,
    pack,
    rows_of,
    with_signal,
)
from palimpsest.engines.embedded.model_loading import save_adapter
from palimpsest.engines.embedded.optim import Optimizer
from palimpsest.engines.embedded.weight_transfer import no_room, size_of, write_untied
from palimpsest.engines.protocol import FOREST_REUSE, Limits, Objective, StepBatch, UpdateStats
from palimpsest.errors import CheckpointError, first_line
from palimpsest.files import hashes
from palimpsest.models.checkpoint_manifest import STATE_FOLDER
from palimpsest.models.model_files import refusing
from palimpsest.provenance import weights_digest


class ForestLearner:
    """Synchronous implementation of `engines.protocol.Learner`; engine.py makes it asynchronous."""

    def __init__(
        self,
        model: Any,
        *,
        optim: OptimConfig,
        loss: LossConfig | None = None,
        objective: Objective = "policy",
        temperature: float = 1.0,
        micro_batch_tokens: int = 16384,
        total_steps: int | None = None,
        tokenizer: Any = None,
    ) -> None:
        """`total_steps`: step at which a linear or cosine schedule reaches 0; `tokenizer` is saved with the weights."""
        self._model, self._objective, self._tokenizer = model, objective, tokenizer
        self._loss_config = loss or LossConfig()
        self._temperature = temperature or 1.0
        self._micro_batch_tokens = micro_batch_tokens
        keep_freed_memory()
        if ways_of(model).layout is None:
            adopt(model)
        self._layout = ways_of(model).layout or "forest"
        self.max_context = max_context(model)
        self.vocab = int(model.get_output_embeddings().weight.shape[0])
        self._optimizer = Optimizer(model.named_parameters(), optim, total_steps)
        self._adapted = hasattr(model, "peft_config")
        self._reference: Any = None
        if objective == "policy" and self._loss_config.kl_loss_coef > 0:
            self._reference = model if self._adapted else copy.deepcopy(model).requires_grad_(False)
        self._gradients = ForestGradients(model, objective, self._loss_config)
        check_savable(model, tokenizer)
        self._skips_silent = skips_silent(objective, self._loss_config)

    @property
    def version(self) -> int:
        return self._optimizer.steps

    @property
    def limits(self) -> Limits:
        return Limits(self.vocab, self.max_context)

    def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
        """See `Learner.update`. A single step needs no extra pass: old and new log-probabilities are equal."""
        recomputes = self._objective == "policy" and self._loss_config.old_logprobs == "recompute"
        before: list[OldLogprobs | None] = [None] * len(steps)
        if recomputes and len(steps) > 1:
            before = [logprobs_of(self._lay_out(self._rows(batch)), self._forward) for batch in steps]
        return [self.apply(self.accumulate(batch, old)) for batch, old in zip(steps, before, strict=True)]

    def accumulate(self, batch: StepBatch, old: OldLogprobs | None = None) -> UpdateStats:
        """Accumulate the gradient of one optimizer step, in micro-batches bounded by tokens.

        `old`: the ratio's old log-probabilities under `loss.old_logprobs=recompute`; None: those computed here.
        """
        rows = self._rows(batch)
        stats = self._gradients.accumulate(self._lay_out(rows), self._forward, old)
        return stats if self._layout == "forest" else replace(stats, extra={FOREST_REUSE: forest_reuse(rows)})

    def apply(self, accumulated: UpdateStats) -> UpdateStats:
        """Clip, apply and zero the accumulated gradient; returns `accumulated` completed with the step's outcome."""
        return self._optimizer.step(accumulated)

    def save(self, folder: Path) -> dict[str, str]:
        """Write a Hugging Face folder, with optimizer state under `learner/`; see `Learner.save`."""
        if self._adapted:
            save_adapter(self._model, folder)
        else:
            self._model.save_pretrained(folder)
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(folder)
        inner = folder / STATE_FOLDER
        inner.mkdir(exist_ok=True)
        save_file(self._optimizer.state(), inner / "optimizer.safetensors")
        reference = _fingerprint(self._reference) if self._reference is not None else None
        facts = CheckpointFacts(ONE_FILE, self._optimizer.steps, self._optimizer.skipped, reference)
        (inner / FACTS).write_text(facts.to_json())
        return hashes(folder)

    def write_weights(self, folder: Path) -> None:
        """Write weights for sampling in another process; see `write_untied`. Raises EngineError if the write fails."""
        try:
            write_untied(self._model, folder)
        except (OSError, SafetensorError) as error:
            needed = size_of(self._model, self._model.dtype)
            raise no_room(folder, error, needed=needed, key="sampler.folder") from None

    @property
    def _device(self) -> torch.device:
        return self._model.get_input_embeddings().weight.device  # type: ignore[no-any-return]

    def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """[T - 1] nats of each of `ids` after its predecessors, at temperature 1."""
        return scores_of(ids, partial(self._forward, temperature=1.0), self.max_context, self._device)

    def load(self, folder: Path) -> None:
        """Restore a save of this class or of ranks; raises CheckpointError for a missing file or another model."""
        inner = folder / STATE_FOLDER
        try:
            facts = read_facts(inner)
            in_shares = facts.format == SHARES
            tensors = read_shares(inner, facts.version) if in_shares else load_file(inner / "optimizer.safetensors")
            saved = _saved_weights(self._model, folder)
        except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"checkpoint {folder}: {first_line(error)}; use an older one or start over") from None
        if self._reference is not None and facts.reference != self._origin(in_shares):
            raise CheckpointError(
                f"checkpoint {folder}: loss.kl_loss_coef compares with another model than the run started from; "
                f"restore the original model.path"
            )
        self._copy_weights(saved, folder)
        self._optimizer.restore(tensors)
        self._optimizer.steps, self._optimizer.skipped = facts.version, facts.grad_skipped

    # ---- parts ----------------------------------------------------------------------------------------------

    def _origin(self, of_files: bool) -> str:
        """Digest of the reference, over its weights or, as ranks do, over its files."""
        return weights_digest(Path(self._model.name_or_path)) if of_files else _fingerprint(self._reference)

    def _rows(self, batch: StepBatch) -> list[SegmentRow]:
        chosen = with_signal(batch.segments) if self._skips_silent else None
        return rows_of(batch.segments, self.max_context, chosen)

    def _lay_out(self, rows: Sequence[SegmentRow]) -> list[Forest]:
        exact = torch.promote_types(self._model.dtype, torch.float32)
        packed = pack(rows, self._micro_batch_tokens, self._layout)
        return [forest.lay_out(self._device, exact) for forest in packed]

    def _forward(self, forest: Forest, reference: bool, temperature: float | None = None) -> tuple[Tensor, Tensor]:
        """[N] log-probabilities and [N] entropies of the trained tokens under the model, or its reference."""
        with self._model.disable_adapter() if reference and self._adapted else nullcontext():
            model = self._reference if reference else self._model
            return token_logprobs(
                hidden_at(model, forest),
                head_of(model),
                forest.predicts,
                forest.targets,
                temperature or self._temperature,
                vocab=self.vocab,
                entropy_gradient=self._objective == "policy" and self._loss_config.entropy_coeff != 0,
            )

    @torch.no_grad()
    def _copy_weights(self, theirs: dict[str, Tensor], folder: Path) -> None:
        for name, p in self._model.named_parameters():
            if self._adapted and not p.requires_grad:
                continue  # only adapters are saved
            if name not in theirs or theirs[name].shape != p.shape:
                raise CheckpointError(f"checkpoint {folder}: weight {name} does not fit the model of this run")
            p.copy_(theirs[name])


def check_savable(model: Any, tokenizer: Any) -> None:
    """Raise ModelError, before any training, if a checkpoint could not be written.

    Everything except the weights is written once. A generation_config that transformers can't write, such as a
    temperature with do_sample=false, gets do_sample=true, or is reduced to its token ids.
    """
    generation = getattr(model, "generation_config", None)
    with tempfile.TemporaryDirectory(prefix="palimpsest-") as folder:
        if generation is not None:
            model.generation_config = _writable(generation, folder)
        with refusing("model: not saveable"):
            if hasattr(model, "peft_config"):
                model.peft_config[model.active_adapter].save_pretrained(folder)
            else:
                model.save_pretrained(folder, state_dict={})
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)


def _writable(generation: Any, folder: str) -> Any:
    sampling, plain = copy.deepcopy(generation), type(generation)()
    sampling.do_sample = True
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(plain, name, getattr(generation, name, None))
    for candidate in (generation, sampling):
        with suppress(ValueError, TypeError, AttributeError):
            candidate.save_pretrained(folder)
            return candidate
    return plain


def _saved_weights(model: Any, folder: Path) -> dict[str, Tensor]:
    """Saved weights by the names of `model`'s parameters; for a peft model, its adapters."""
    if hasattr(model, "peft_config"):
        stored, part = load_file(folder / "adapter_model.safetensors"), f".{model.active_adapter}."  # names omit it
        return {n: stored[s] for n, _ in model.named_parameters() if (s := n.replace(part, ".")) in stored}
    with torch.random.fork_rng():
        saved = type(model).from_pretrained(folder, dtype=model.dtype, use_safetensors=True, trust_remote_code=False)
    return dict(saved.named_parameters())


def _fingerprint(model: Any) -> str:
    """SHA-256 over all weights except adapters, in order of their names."""
    digest = hashlib.sha256()
    weights = [(name, p) for name, p in model.named_parameters() if ".lora_" not in name]
    for name, p in sorted(weights, key=lambda item: item[0]):
        digest.update(name.encode())
        digest.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
