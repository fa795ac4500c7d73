"""Notes: what a run or an evaluation reports besides figures, each with a code and values.

A note is the text that a person reads, made of the code's template and the values. `events.jsonl`, `summary.json` and
`compare.json` hold code and values next to the text, so that programs need not read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTES: Mapping[str, str] = {
    # a run
    "resumed": "resumed after step {step} from {checkpoint}",
    "config_changed": "resumed with another {change}",
    "config_changed_later": "resumed with another {change}: later steps differ from an uninterrupted run's",
    "environment_changed": "resumed with other versions or on another machine ({differences}): later steps may round "
    "differently",
    "no_checkpoint": "{run} has no checkpoint: it starts again; the records of its steps are kept as {moved}",
    "records_missing": "{folder}: the records of steps {steps} are missing",
    "checkpoint_damaged": "{error}; falling back to the checkpoint before it",
    "best_checkpoint": "step {step}: best {metric} so far, {value:.4g}, kept as checkpoints/best",
    "stopping": "{signal}: finishing the step and saving; a second one ends the process at once",
    "restart": "{error}; restart {number} of {most} in {wait_s:g} s (cluster.max_restarts)",
    "moved_aside": "{path}: what it held is now {moved}",
    "sink_failed": "{sink} failed ({error}); the run continues without it",
    "sink_failed_often": "{sink} failed {count} times in this run",
    "rows_without_gold": "rows left out by data.on_missing_gold=skip: {count}, the first: {first}",
    "held_out_changed": "the held-out problems are not those of earlier evaluations ({differences}): eval/ metrics of "
    "steps before and after can't be compared",
    # training
    "no_signal_at_all": "no group had a signal in any step; the weights are unchanged. Give problems that the model "
    "solves now and then (easier or harder data), a larger train.group_size, or a reward with more values",
    "no_signal": "step {step}: for {steps} steps no group had different rewards, so nothing is learned; the problems "
    "are too hard or too easy, or the reward is constant",
    "few_groups_with_signal": "step {step}: {groups} of {wanted} groups have a signal after {refills} refills; "
    "training on those (reported once, events.jsonl has every such step)",
    "no_group_with_signal": "step {step}: 0 of {wanted} groups have a signal after {refills} refills: {reason} "
    "(reported once, events.jsonl has every such step)",
    "documents_cut": "step {step}: {episodes} episodes left out a part of their document, which is longer than "
    "policy.options.max_chunks or the window take (reported once; episode/documents_cut counts them)",
    "episodes_ungraded": "step {step}: {count} of {episodes} episodes have no grade, so nothing is learned from them; "
    "{reason} (reported once; reward/ungraded counts them)",
    "gradient_not_finite": "step {step}: the gradient of {count} of {updates} optimiser steps is not finite "
    "({reason}); they are skipped (reported once; optim/grad_skipped counts them, {most} in a row end the run)",
    "rewards_unread": "step {step}: the reward gives {parts}, which {rule} does not look at, so the outcome alone is "
    "learned from; credit.adv_estimator=state_mix with an alpha below 1 mixes them in",
    "curriculum_grows": "step {step}: documents grow from {before} to {after} chunks",
    "training_layers": "training puts on top of reward.name={reward}: {layers}; evaluation doesn't",
    "rows_too_long": "{path}: left out {count} of {total} rows, longer than {tokens} tokens",
    # an evaluation
    "documents_cut_by": "{count} of {total} documents are longer than {policies} reads: cut",
    "episodes_played_before": "{count:,} of {total:,} episodes are there already",
    "episodes_not_requested": "{count:,} episodes of earlier calls are left out: the last call did not request them",
    "layers_left_out": "left out, as they count in training alone: {layers}",
    "lines_unreadable": "{folder}/samples.jsonl: lines that can't be read and are left out: {count}",
    "episodes_missing": "{folder}: episodes that have not ended yet: {count:,}",
    "episode_record_full": "{path}: {megabytes:g} MB are full, further episodes are left out (evaluation.record=all "
    "keeps every one)",
    "episode_record_unwritable": "{path}: can't be written ({reason}); further episodes are left out",
    "model_of_recipe": "the recipe's model is {recipe}; this plays {model}: --model {recipe} plays that",
    "trained_on_these_problems": "these are the problems it was trained on; give --data or data.val_files",
    "other_policy": "{model} was trained with {trained}, not {policy}",
    "files_missing": "{folder} lacks {names}, left out; {make}",
    "more_files_missing": "missing and left out, too: {names}",
    "measures_reading": "fits the window: measures reading, not memory: {names}",
    "bootstrap_intervals": "intervals of {names} are a bootstrap's, as values are outside 0 to 1; those of the other "
    "rows are Wilson's",
    # a comparison
    "side_counts": "{side}: {counts} of {episodes}; not in its accuracy",
    "side_episodes_not_requested": "{side}: {count:,} episodes of earlier calls are left out: the last call did not "
    "request them",
    "nothing_in_common": "{side} and {first} have no graded problem in common: there is no difference{warning}",
    "pairing": "{side} against {first}: over {problems} that both graded; {warning}",
}


class Note(str):
    """A text with the code and the values that it was made of.

    >>> note = Note("curriculum_grows", step=3, before=1, after=2)
    >>> note
    'step 3: documents grow from 1 to 2 chunks'
    >>> note.code, note.values["after"]
    ('curriculum_grows', 2)
    """

    code: str
    values: Mapping[str, Any]

    def __new__(cls, code: str, /, **values: Any) -> Note:
        """The text of `code`, a key of `NOTES`, with `values` in its template."""
        note = super().__new__(cls, NOTES[code].format(**values))
        note.code, note.values = code, values
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str], Mapping[str, Any]]:
        """For copies, and for other processes."""
        return (self.code,), self.values

    def to_json(self) -> dict[str, Any]:
        """Code, values and text."""
        return {"code": self.code, "values": dict(self.values), "text": str(self)}
