"""Notes: messages of a run or an evaluation, each with a code and values.

The text of a note is the code's template filled with the values. `events.jsonl`, `summary.json` and `compare.json`
contain code and values next to the text, so that programs need not parse it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTES: Mapping[str, str] = {
    # a run
    "resumed": "resumed after step {step} from {checkpoint}",
    "config_changed": "resumed with another {change}",
    "config_changed_later": "resumed with another {change}: later steps differ from those of an uninterrupted run",
    "environment_changed": "resumed with other versions or inputs, or on another machine ({differences}): later steps "
    "may differ",
    "no_checkpoint": "{run} has no checkpoint and starts over; the records of earlier steps are now {moved}",
    "records_missing": "{folder}: the records of steps {steps} are missing",
    "checkpoint_damaged": "{error}; using the previous checkpoint",
    "best_checkpoint": "step {step}: best {metric} so far, {value:.4g}, saved as checkpoints/best",
    "stopping": "{signal}: finishing the step and saving; a second one ends the process immediately. Resume: {resume}",
    "restart": "{error}; restart {number} of {most} in {wait_s:g} s (cluster.max_restarts)",
    "moved_aside": "{path}: its old content is now {moved}",
    "sink_failed": "{sink} failed ({error}); the run continues without it",
    "sink_failed_often": "{sink} failed {count} times in this run",
    "rows_without_gold": "rows skipped by data.on_missing_gold=skip: {count}, first: {first}",
    "held_out_changed": "the held-out problems differ from those of earlier evaluations ({differences}): do not "
    "compare eval/ metrics of earlier and later steps",
    # training
    "no_signal_at_all": "no group had a signal in any step, so training did not change the weights. Use problems that "
    "the model sometimes solves (easier or harder data), a larger train.group_size, or a reward with more values",
    "no_signal": "step {step}: for {steps} steps no group had different rewards, so training has no effect; the "
    "problems are too hard or too easy, or the reward is constant",
    "no_signal_at_start": "step 1, before its update: in 0 of {groups} groups rewards differ (mean {mean:.2g} over "
    "{episodes} episodes{facts}), so rewards teach nothing here; {advice}",
    "few_groups_with_signal": "step {step}: in {groups} of {wanted} groups rewards differ (refills: {refills}); "
    "training on those (reported once, events.jsonl has every such step)",
    "no_group_with_signal": "step {step}: in 0 of {wanted} groups rewards differ (refills: {refills}): {reason} "
    "(reported once, events.jsonl has every such step)",
    "documents_cut": "step {step}: {episodes} episodes omitted a part of their document, which exceeds "
    "policy.options.max_chunks or the window (reported once; episode/documents_cut counts them)",
    "calls_unread": "{rate:.2g} tool calls per episode can't be read, so the model reads an error instead of a result. "
    "If its format is another one, set policy.options.call_style (reported once; tool_errors_unreadable counts them)",
    "episodes_ungraded": "step {step}: {count} of {episodes} episodes have no grade, so training ignores them; "
    "{reason} (reported once; reward/ungraded counts them)",
    "gradient_not_finite": "step {step}: the gradient of {count} of {updates} optimizer steps is not finite "
    "({reason}); training skips them (reported once; optim/grad_skipped counts them, {most} in a row end the run)",
    "rewards_unread": "step {step}: the reward returns {parts}, but {rule} uses only the outcome; "
    "credit.adv_estimator=state_mix with an alpha below 1 mixes them in",
    "segments_apart": "step {step}: the learner computes each segment alone, {times:.2g} times the tokens of a prefix "
    "forest (reported once; learner/forest_reuse has every step)",
    "curriculum_grows": "step {step}: documents grow from {before} to {after} chunks",
    "training_layers": "training adds to reward.name={reward}: {layers}; evaluation doesn't",
    "rows_too_long": "{path}: skipped {count} of {total} rows, longer than {tokens} tokens",
    # an evaluation
    "left_blank": "{name}: left blank; {reason}",
    "documents_cut_by": "{count} of {total} documents exceed the limit of {policies}, which cuts them",
    "episodes_played_before": "{count:,} of {total:,} episodes exist already",
    "episodes_not_requested": "excluded {count:,} episodes of earlier calls that the last call did not request",
    "layers_left_out": "excluded, since they count only in training: {layers}",
    "lines_unreadable": "{folder}/samples.jsonl: unreadable lines, excluded: {count}",
    "episodes_missing": "{folder}: episodes that have not ended yet: {count:,}",
    "episode_record_full": "{path}: reached {megabytes:g} MB and omits further episodes (evaluation.record=all "
    "records all)",
    "episode_record_unwritable": "{path}: writing failed ({reason}), so further episodes are missing",
    "model_of_recipe": "this evaluates {model}; the recipe's model is {recipe}, for palimpsest eval {recipe}",
    "unknown_to_bundled": 'the bundled model knows only sentences like "Omar sells tea.", and this text has none; use '
    "a Hugging Face model, e.g. Qwen/Qwen3-4B",
    "files_skipped": "files of other kinds, which a folder's document omits: {names}; name each to read it",
    "reply_cut": "the reply has no end: {tokens} tokens are its budget ({option})",
    "reply_unmarked": "the reply has no marked answer: this is its whole text",
    "clusters": "the 95% interval counts by cluster, {clusters} for the {problems} problems, which share documents or "
    "questions: {names}",
    "trained_on_these_problems": "the model trained on these problems; set --data or data.val_files for others",
    "other_policy": "{model} trained with {trained}, not {policy}",
    "files_missing": "{folder} lacks {names}, excluded; {make}",
    "more_files_missing": "also missing and excluded: {names}",
    "measures_reading": "fits the window: measures reading, not memory: {names}",
    "only_reasoned": "{count:,} of {turns:,} replies have reasoning but no text: raise engine.thinking_tokens",
    "prompt_cut": "the endpoint cut {count:,} of {turns:,} prompts, of which it counts fewer tokens; "
    "raise its context length (Ollama: num_ctx), or check --tokenizer",
    "bootstrap_intervals": "{names} have bootstrap intervals, since values are outside 0 to 1; the other rows have "
    "Wilson's",
    # a comparison
    "side_counts": "{side}: {counts} of {episodes}; not in its accuracy",
    "side_episodes_not_requested": "{side}: excluded {count:,} episodes of earlier calls that the last call did not "
    "request",
    "other_reward": "{side} has the reward {reward}, {first} {first_reward}: their accuracies are of different scales; "
    "grade one again: palimpsest eval --regrade DIR reward.name={first_reward}",
    "nothing_in_common": "{side} and {first} share no graded problem, so their difference is undefined{warning}",
    "pairing": "{side} against {first}: over {problems} that both graded; {warning}",
}


class Note(str):
    """A text with its code and values.

    >>> note = Note("curriculum_grows", step=3, before=1, after=2)
    >>> note
    'step 3: documents grow from 1 to 2 chunks'
    >>> note.code, note.values["after"]
    ('curriculum_grows', 2)
    """

    code: str
    values: Mapping[str, Any]

    def __new__(cls, code: str, /, **values: Any) -> Note:
        """Text of `code`, a key of `NOTES`, with `values` in its template."""
        note = super().__new__(cls, NOTES[code].format(**values))
        note.code, note.values = code, values
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str], Mapping[str, Any]]:
        return (self.code,), self.values

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "values": dict(self.values), "text": str(self)}
