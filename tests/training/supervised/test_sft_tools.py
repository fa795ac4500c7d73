"""Conversations with tool calls: which messages are learnt, in which tokens; and which recorded episodes are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from palimpsest.cli.train import read_imitated
from palimpsest.errors import ConfigError, DataError
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.text.codec import Codec
from palimpsest.training.supervised.conversations import load_conversations, read_conversations, trained_messages
from palimpsest.training.supervised.supervised_loop import read_trajectories, select
from palimpsest.types import Grade, Group, Outcome, Problem, Trajectory

QWEN25 = (
    "{%- if tools %}<|im_start|>system\n{{ messages[0].content }}\n\n# Tools\n<tools>"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{%- else %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{%- elif message.role == 'assistant' %}<|im_start|>assistant"
    "{% if message.content %}\n{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls %}{% set f = call.function %}\n<tool_call>\n"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
    "{%- elif message.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""The form of Qwen 2.5's template, tool results inside user turns; with Qwen 3's empty thinking before replies."""
LLAMA3 = (
    "<|begin|>{% for message in messages %}<|head|>{{ message.role }}<|/head|>\n\n"
    "{% if message.tool_calls %}{% set f = message.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% else %}{{ message.content }}{% endif %}'
    "{% if loop.first %}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
PLAIN = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
LAST_ONLY = PLAIN.replace("{{ message.content }}", "{{ message.content if loop.last else '...' }}")

SCHEMAS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("search", "prune_context")
]


def codec(template: str, *, end: str = "<|im_end|>") -> Codec:
    """Every byte a token, and the control tokens. Newlines of a template are meant, also after a tag."""
    template = template.replace("\n", "{{ '\\n' }}")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|/head|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, chat_template=template)
    return Codec(fast)


def say(role: str, content: str | None = None) -> dict[str, Any]:
    return {"role": role, "content": content}


def call(name: str, content: str | None = None, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}


HEAD = [say("system", "Be brief."), say("user", "Who, and where?")]
ENDS_IN_PRUNE = [
    *HEAD,
    call("search", query="who"),
    say("tool", "r1: Alice"),
    call("prune_context", "Noted.", delete_ids=["r1"], memory="Alice"),
]
AFTER_A_PRUNE = [
    *HEAD,
    call("prune_context", "Noted.", delete_ids=["r1"], memory="Alice"),
    say("tool", "p1: done"),
    call("search", query="where"),
    say("tool", "r2: Oslo"),
    say("tool", "r3: Rome"),
    say("assistant", "FINAL_ANSWER: Alice"),
]


def save(path: Path, *rows: list[dict[str, Any]], **columns: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    listed = [{"messages": json.dumps(row), "tools": json.dumps(SCHEMAS), **columns} for row in rows]
    pq.write_table(pa.Table.from_pylist(listed), path)
    return path


def save_structs(path: Path, *rows: list[dict[str, Any]]) -> Path:
    """As published: nested columns, in which arrow fills what an object lacks with None."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([{"messages": row, "tools": SCHEMAS} for row in rows]), path)
    return path


def learnt(trajectory: Trajectory, model: Codec) -> list[str]:
    """The text of every run of trained tokens of the one segment."""
    (segment,) = segments_of(trajectory)
    runs: list[list[int]] = []
    for at, trained in enumerate(segment.loss_mask):
        if trained and (at == 0 or not segment.loss_mask[at - 1]):
            runs.append([])
        if trained:
            runs[-1].append(segment.token_ids[at])
    return [model.decode(run) for run in runs]


# ---- which messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "places"),
    [
        ("u s t s t a", (1, 3, 5)),  # no prune: everything
        ("u s t p", (1, 3)),  # the first segment ends in its prune, and both are its own
        ("u p t s t a", (3, 5)),  # after it: the prune was learnt in the segment before
        ("u p t s t p", (3, 5)),  # second segment of three
        ("u p t p t s t a", (5, 7)),  # two prunes survive
        ("u p t s t p t s t p", (7, 9)),
        ("u p t s t s", (3, 5)),  # cut short by a limit: neither an answer nor a prune
        ("u p", (1,)),
    ],
)
def test_messages_after_the_last_surviving_prune_are_learnt(row: str, places: tuple[int, ...]) -> None:
    """C9.1: an older message is never learnt again in a context it was not generated in."""
    kinds = {
        "u": say("user"),
        "t": say("tool"),
        "a": say("assistant"),
        "s": call("search"),
        "p": call("prune_context"),
    }
    assert trained_messages([kinds[kind] for kind in row.split()]) == places


def test_over_all_segments_of_a_trajectory_every_message_is_learnt_once() -> None:
    """Segments as MemAct writes them: what is in context right before each deletion, then what remains."""
    said = [(f"m{i}", call("prune_context" if i in (3, 4, 7) else "search")) for i in range(10)]
    context: list[tuple[str, dict[str, Any]]] = []
    segments = []
    for name, message in said:
        context.append((name, message))
        if message["tool_calls"][0]["function"]["name"] == "prune_context":
            segments.append(list(context))
            context = [one for one in context if one[1]["tool_calls"][0]["function"]["name"] == "prune_context"]
    segments.append(context)
    counted = [rows[place][0] for rows in segments for place in trained_messages([message for _, message in rows])]
    assert sorted(counted) == [f"m{i}" for i in range(10)]


# ---- which tokens --------------------------------------------------------------------------------------------


def test_the_replies_are_learnt_with_their_end_and_without_their_header(tmp_path: Path) -> None:
    """C9.3: no length of a header is assumed; it is what the template writes before a reply."""
    model = codec(QWEN25)
    first, second = load_conversations(
        save(tmp_path / "a.parquet", ENDS_IN_PRUNE, AFTER_A_PRUNE), model, max_tokens=9999
    )
    assert learnt(first, model) == [
        '<tool_call>\n{"name": "search", "arguments": {"query": "who"}}\n</tool_call><|im_end|>',
        "Noted.\n<tool_call>\n"
        '{"name": "prune_context", "arguments": {"delete_ids": ["r1"], "memory": "Alice"}}\n</tool_call><|im_end|>',
    ]
    assert learnt(second, model) == [
        '<tool_call>\n{"name": "search", "arguments": {"query": "where"}}\n</tool_call><|im_end|>',
        "FINAL_ANSWER: Alice<|im_end|>",
    ]


@pytest.mark.parametrize(("template", "end"), [(QWEN25, "<|im_end|>"), (LLAMA3, "<|eot_id|>")])
@pytest.mark.parametrize("messages", [ENDS_IN_PRUNE, AFTER_A_PRUNE])
def test_the_pieces_are_the_whole_rendering_and_stay_one_segment(
    tmp_path: Path, template: Any, end: Any, messages: Any
) -> None:
    """C9.18: compared with the tokens of the arguments as they stand, so that the order of arguments plays no part."""
    model = codec(template, end=end)
    (trajectory,) = load_conversations(save(tmp_path / "a.parquet", messages), model, max_tokens=9999)
    (segment,) = segments_of(trajectory)
    whole = model.tokenizer.apply_chat_template(messages_as_loaded(messages), tools=SCHEMAS, tokenize=False)
    assert whole.startswith(model.decode(segment.token_ids))
    assert whole[len(model.decode(segment.token_ids)) :].strip() == ""  # after the last end of turn nothing is sampled
    assert model.encode_trusted(whole)[: len(segment.token_ids)] == list(segment.token_ids)


def messages_as_loaded(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message | {"content": message["content"] or ""} for message in messages]


def test_arguments_keep_their_order_unless_memory_is_asked_for_first(tmp_path: Path) -> None:
    """C9.18: one order through the whole row."""
    path, model = save(tmp_path / "a.parquet", ENDS_IN_PRUNE), codec(QWEN25)
    (kept,) = load_conversations(path, model, max_tokens=9999)
    (turned,) = load_conversations(path, model, max_tokens=9999, memory_first=True)
    assert '"arguments": {"delete_ids": ["r1"], "memory": "Alice"}' in learnt(kept, model)[1]
    assert '"arguments": {"memory": "Alice", "delete_ids": ["r1"]}' in learnt(turned, model)[1]


def test_nested_columns_and_arguments_as_text_read_like_objects(tmp_path: Path) -> None:
    plain = list(read_conversations(save(tmp_path / "a.parquet", ENDS_IN_PRUNE, AFTER_A_PRUNE)))
    nested = list(read_conversations(save_structs(tmp_path / "b.parquet", ENDS_IN_PRUNE, AFTER_A_PRUNE)))
    for one, other in zip(plain, nested, strict=True):
        assert one.messages == other.messages  # equal objects, whatever order arrow gave their fields
    text = json.loads(json.dumps(ENDS_IN_PRUNE))
    function = text[2]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    assert next(read_conversations(save(tmp_path / "c.parquet", text))).messages == plain[0].messages


def test_a_row_without_tool_calls_anywhere_is_an_ordinary_chat(tmp_path: Path) -> None:
    """C9.18: a missing `tool_calls` of the last message is no error."""
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [*HEAD, say("assistant", "Alice."), say("user", "Thanks.")]}) + "\n")
    model = codec(PLAIN + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    (trajectory,) = load_conversations(path, model, max_tokens=999)
    assert learnt(trajectory, model) == ["Alice.<|im_end|>"]


def test_a_row_that_does_not_fit_is_refused_or_left_out_and_counted_but_never_cut(tmp_path: Path) -> None:
    """C9.18: cutting from the left would lose the system prompt."""
    path, model = save(tmp_path / "a.parquet", [*HEAD, say("assistant", "x" * 2000)], ENDS_IN_PRUNE), codec(QWEN25)
    with pytest.raises(
        DataError, match=r"a\.parquet row 1: \d+ tokens, the model's context is 1000; .*--drop-too-long"
    ):
        load_conversations(path, model, max_tokens=1000)
    told: list[str] = []
    (kept,) = load_conversations(path, model, max_tokens=1000, drop_too_long=True, warn=told.append)
    assert told == [f"{path}: skipped 1 of 2 rows, longer than 1000 tokens"]
    assert model.decode(kept.turns[0].prompt_ids).startswith("<|im_start|>system\nBe brief.")
    with pytest.raises(DataError, match="no row of at most 10 tokens"):
        load_conversations(path, model, max_tokens=10, drop_too_long=True, warn=told.append)


@pytest.mark.parametrize(
    ("messages", "template", "said"),
    [
        (ENDS_IN_PRUNE, PLAIN, "doesn't render tool calls"),
        (ENDS_IN_PRUNE, PLAIN + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "tool calls"),
        (AFTER_A_PRUNE, LAST_ONLY, r"messages\[4\]: the chat template renders earlier messages"),
        (ENDS_IN_PRUNE, QWEN25.replace("{{ tool | tojson }}", ""), "doesn't show search, prune_context"),
        (ENDS_IN_PRUNE, QWEN25.replace("<|im_end|>", "[end]"), "no stop token"),
        ([*HEAD[:1], say("user", "a<|im_end|>b"), say("assistant", "c")], QWEN25, "control token <|im_end|>"),
        (ENDS_IN_PRUNE, "{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        (HEAD, QWEN25, "none with role 'assistant'"),
        ([*HEAD, {"role": "bot", "content": "x"}], QWEN25, r"messages\[2\].role='bot'"),
        ([*HEAD, say("assistant", 5)], QWEN25, r"messages\[2\].content must be a string"),
        ([{**call("search"), "tool_calls": [{"name": "search", "arguments": "{no"}]}], QWEN25, "is not valid JSON"),
        ([{**call("search"), "tool_calls": [{"name": "search", "arguments": [1]}]}], QWEN25, "must be an object"),
        ([{**call("search"), "tool_calls": {"name": "search"}}], QWEN25, "tool_calls must be a list"),
    ],
)
def test_a_row_that_can_not_be_rendered_faithfully_is_refused_with_its_number(
    tmp_path: Path, messages: Any, template: Any, said: str
) -> None:
    path = save(tmp_path / "a.parquet", messages)
    with pytest.raises(DataError, match=said.replace("|", r"\|")) as caught:
        load_conversations(path, codec(template), max_tokens=9999)
    assert "a.parquet row 1" in str(caught.value)


def test_thinking_switched_off_is_refused_where_earlier_replies_lose_their_empty_thinking(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", ENDS_IN_PRUNE, enable_thinking=False)
    with pytest.raises(DataError, match="omit enable_thinking"):
        load_conversations(path, codec(QWEN25), max_tokens=9999)


# ---- which recorded episodes ---------------------------------------------------------------------------------


def played(*episodes: tuple[str, float | None]) -> list[tuple[Trajectory, float | None]]:
    return [(Trajectory(p, "g", i, (), Outcome.ANSWERED), grade) for i, (p, grade) in enumerate(episodes)]


EPISODES = played(("a", 1.0), ("a", 0.5), ("b", None), ("b", 0.0), ("a", 1.0), ("b", 0.5), ("c", None))


@pytest.mark.parametrize(
    ("least", "per_problem", "kept", "counts"),
    [
        (None, None, [0, 1, 2, 3, 4, 5, 6], (0, 0, 0)),
        (1.0, None, [0, 4], (3, 2, 0)),
        (0.5, None, [0, 1, 4, 5], (1, 2, 0)),
        (0.5, 1, [4, 5], (1, 2, 2)),  # among equals the later
        (0.0, 2, [0, 3, 4, 5], (0, 2, 1)),
        (None, 1, [4, 5, 6], (0, 0, 4)),  # ungraded ones only where a problem has no other
    ],
)
def test_episodes_are_chosen_by_grade_and_best_of_a_problem_and_all_are_accounted_for(
    least: float | None, per_problem: int | None, kept: list[int], counts: tuple[int, int, int]
) -> None:
    chosen = select(EPISODES, min_grade=least, per_problem=per_problem)
    assert [one.rollout for one in chosen.trajectories] == kept
    assert (chosen.below, chosen.ungraded, chosen.surplus) == counts
    assert len(kept) + sum(counts) == len(EPISODES)


def test_the_records_of_a_run_are_found_in_its_folder_and_problems_counted_over_files(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    for step in (1, 2):
        grades = tuple(Grade(float(i)) for i in (0, 1))
        episodes = tuple(Trajectory("p", f"{step}/p", i, (), Outcome.ANSWERED, str(step)) for i in (0, 1))
        group = Group(Problem("p", "?", ("x",)), episodes, grades)
        (tmp_path / "trajectories" / f"step-{step:06d}.jsonl.zst").write_bytes(encode_groups([group]))
    chosen = read_trajectories(tmp_path, min_grade=1.0, per_problem=1)
    assert [(one.rollout, one.answer) for one in chosen.trajectories] == [(1, "2")]
    assert str(chosen) == ("kept 1 episodes; skipped 2 below the grade, 0 ungraded, 1 beyond --best")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"records": Path("r"), "data": Path("d")}, "exclude each other"),
        ({"data": Path("d"), "min_grade": "all"}, "add --from"),
        ({"data": Path("d"), "best": 2}, "add --from"),
        ({"records": Path("r"), "memory_first": True}, "add --data"),
        ({"records": Path("r"), "min_grade": "good"}, "--min-grade good"),
        ({"records": Path("r"), "min_grade": "nan"}, "--min-grade nan"),
    ],
)
def test_options_without_a_meaning_together_are_refused(options: dict[str, Any], said: str) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("records", "min_grade", "best", "data"))
    with pytest.raises(ConfigError, match=said):
        read_imitated(**{**nothing, "memory_first": False, "drop_too_long": False, **options})


def test_the_command_learns_conversations_and_then_its_own_best_episodes(
    tmp_path: Path, palimpsest: Any, tiny_model_folder: Path
) -> None:
    """End to end on a tiny model: --data with a template that shows tools, then --from a run folder."""
    import shutil

    from palimpsest.runs.jsonl_rows import read_rows
    from support.groups import sample_groups

    model = tmp_path / "model"
    shutil.copytree(tiny_model_folder, model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    end = tokenizer.eos_token
    tokenizer.chat_template = (
        "{{ tools | tojson if tools }}{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}|{% else %}"
        "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}" + end + "{% endif %}{% endfor %}"
    )
    tokenizer.save_pretrained(model)
    sizes = ["train.max_steps=2", "train.batch_size=4", "logging.report_to=[jsonl]", f"model.path={model}"]
    rows = save(tmp_path / "a.parquet", AFTER_A_PRUNE, [*HEAD, say("assistant", "x " * 2000)])
    done = palimpsest(
        "sft", "memagent-quickstart", "--data", str(rows), "--drop-too-long", *sizes, "--out", str(tmp_path / "run")
    )
    assert "skipped 1 of 2 rows, longer than 512 tokens" in done.stderr
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
    (tmp_path / "played" / "trajectories").mkdir(parents=True)
    record = tmp_path / "played" / "trajectories" / "step-000001.jsonl.zst"
    record.write_bytes(encode_groups(sample_groups(2), Codec.load(str(model)).digest))
    options = ("--from", str(tmp_path / "played"), "--min-grade", "correct", "--out", str(tmp_path / "second"))
    done = palimpsest("sft", "memagent-quickstart", *options, *sizes)
    assert done.returncode == 0
    assert "kept 2 episodes; skipped 0 below the grade, 2 ungraded" in done.stderr
