"""Conversations with tool calls: the messages and the tokens that are trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from palimpsest.errors import DataError
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.text.codec import Codec
from palimpsest.training.supervised.conversations import load_conversations, read_conversations, trained_messages
from palimpsest.types import Trajectory
from support.groups import sample_groups

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
PRUNE = call("prune_context", "Noted.", delete_ids=["r1"], memory="Alice")
ENDS_IN_PRUNE = [*HEAD, call("search", query="who"), say("tool", "r1: Alice"), PRUNE]
RESULTS = [say("tool", "r2: Oslo"), say("tool", "r3: Rome")]
ANSWER = say("assistant", "FINAL_ANSWER: Alice")
AFTER_A_PRUNE = [*HEAD, PRUNE, say("tool", "p1: done"), call("search", query="where"), *RESULTS, ANSWER]


def save(path: Path, *rows: list[dict[str, Any]], nested: bool = False, **columns: Any) -> Path:
    """A parquet file, of JSON or, as published, of nested columns in which arrow fills missing fields with None."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = (lambda value: value) if nested else json.dumps
    listed = [{"messages": column(row), "tools": column(SCHEMAS), **columns} for row in rows]
    pq.write_table(pa.Table.from_pylist(listed), path)
    return path


def trained_runs(trajectory: Trajectory, model: Codec) -> list[str]:
    """The text of every run of trained tokens of the one segment."""
    (segment,) = segments_of(trajectory)
    runs: list[list[int]] = []
    for at, trained in enumerate(segment.loss_mask):
        if trained and (at == 0 or not segment.loss_mask[at - 1]):
            runs.append([])
        if trained:
            runs[-1].append(segment.token_ids[at])
    return [model.decode(run) for run in runs]


# ---- Trained messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "indices"),
    [
        ("u s t s t a", (1, 3, 5)),  # no prune: every reply
        ("u s t p", (1, 3)),  # the first segment ends in its prune
        ("u p t s t a", (3, 5)),  # after it: the segment before trained the prune
        ("u p t s t p", (3, 5)),  # second segment of three
        ("u p t p t s t a", (5, 7)),  # two prunes survive
        ("u p t s t p t s t p", (7, 9)),
        ("u p t s t s", (3, 5)),  # cut short by a limit: neither an answer nor a prune
        ("u p", (1,)),
    ],
)
def test_messages_after_the_last_surviving_prune_are_trained(row: str, indices: tuple[int, ...]) -> None:
    """C9.1: an older message is never trained again in a context it was not generated in."""
    roles = {"u": say("user"), "t": say("tool"), "a": say("assistant"), "s": call("search"), "p": call("prune_context")}
    assert trained_messages([roles[kind] for kind in row.split()]) == indices


def test_over_all_segments_of_a_trajectory_every_message_is_trained_once() -> None:
    """Segments as MemAct writes them: the context right before each deletion, and the last one."""
    context: list[tuple[str, dict[str, Any]]] = []
    segments = []
    for i in range(10):
        pruning = i in (3, 4, 7)
        context.append((f"m{i}", call("prune_context" if pruning else "search")))
        if pruning:
            segments.append(list(context))
            context = [one for one in context if one[1]["tool_calls"][0]["function"]["name"] == "prune_context"]
    segments.append(context)
    counted = [rows[index][0] for rows in segments for index in trained_messages([message for _, message in rows])]
    assert sorted(counted) == [f"m{i}" for i in range(10)]


# ---- Trained tokens ------------------------------------------------------------------------------------------


def test_replies_are_trained_with_their_end_and_without_their_header(tmp_path: Path) -> None:
    """C9.3: the header is the text that the template writes before a reply, of any length."""
    model = codec(QWEN25)
    path = save(tmp_path / "a.parquet", ENDS_IN_PRUNE, AFTER_A_PRUNE)
    first, second = load_conversations(path, model, max_tokens=9999)
    written = '<tool_call>\n{{"name": "search", "arguments": {{"query": "{}"}}}}\n</tool_call><|im_end|>'
    assert trained_runs(first, model) == [
        written.format("who"),
        "Noted.\n<tool_call>\n"
        '{"name": "prune_context", "arguments": {"delete_ids": ["r1"], "memory": "Alice"}}\n</tool_call><|im_end|>',
    ]
    assert trained_runs(second, model) == [written.format("where"), "FINAL_ANSWER: Alice<|im_end|>"]


@pytest.mark.parametrize(("template", "end"), [(QWEN25, "<|im_end|>"), (LLAMA3, "<|eot_id|>")])
@pytest.mark.parametrize("messages", [ENDS_IN_PRUNE, AFTER_A_PRUNE])
def test_a_row_is_one_segment_with_the_tokens_of_its_rendering(
    tmp_path: Path, template: str, end: str, messages: list[dict[str, Any]]
) -> None:
    """C9.18: arguments are compared in their order."""
    model = codec(template, end=end)
    (trajectory,) = load_conversations(save(tmp_path / "a.parquet", messages), model, max_tokens=9999)
    (segment,) = segments_of(trajectory)
    loaded = [message | {"content": message["content"] or ""} for message in messages]
    rendered = model.tokenizer.apply_chat_template(loaded, tools=SCHEMAS, tokenize=False)
    text = model.decode(segment.token_ids)
    assert rendered.startswith(text)
    assert rendered[len(text) :].strip() == ""  # after the last end of turn nothing is sampled
    assert model.encode_trusted(rendered)[: len(segment.token_ids)] == list(segment.token_ids)


@pytest.mark.parametrize(
    ("memory_first", "text"),
    [(False, '{"delete_ids": ["r1"], "memory": "Alice"}'), (True, '{"memory": "Alice", "delete_ids": ["r1"]}')],
)
def test_arguments_stay_in_order_except_with_memory_first(tmp_path: Path, memory_first: bool, text: str) -> None:
    """C9.18: one order through the row."""
    path, model = save(tmp_path / "a.parquet", ENDS_IN_PRUNE), codec(QWEN25)
    (trajectory,) = load_conversations(path, model, max_tokens=9999, memory_first=memory_first)
    assert f'"arguments": {text}' in trained_runs(trajectory, model)[1]


def test_nested_columns_and_arguments_as_text_read_like_objects(tmp_path: Path) -> None:
    plain = list(read_conversations(save(tmp_path / "a.parquet", ENDS_IN_PRUNE, AFTER_A_PRUNE)))
    nested = read_conversations(save(tmp_path / "b.parquet", ENDS_IN_PRUNE, AFTER_A_PRUNE, nested=True))
    assert [one.messages for one in nested] == [one.messages for one in plain]
    text = json.loads(json.dumps(ENDS_IN_PRUNE))
    function = text[2]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    assert next(read_conversations(save(tmp_path / "c.parquet", text))).messages == plain[0].messages


def test_a_row_without_tool_calls_is_an_ordinary_chat(tmp_path: Path) -> None:
    """C9.18: a missing `tool_calls` of the last message is allowed."""
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [*HEAD, say("assistant", "Alice."), say("user", "Thanks.")]}) + "\n")
    model = codec(PLAIN + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    (trajectory,) = load_conversations(path, model, max_tokens=999)
    assert trained_runs(trajectory, model) == ["Alice.<|im_end|>"]


def test_a_row_that_does_not_fit_is_rejected_or_skipped_and_counted_but_never_cut(tmp_path: Path) -> None:
    """C9.18: cutting from the left would lose the system prompt."""
    path, model = save(tmp_path / "a.parquet", [*HEAD, say("assistant", "x" * 2000)], ENDS_IN_PRUNE), codec(QWEN25)
    reason = r"a\.parquet row 1: \d+ tokens, the model's context is 1000; .*--drop-too-long"
    with pytest.raises(DataError, match=reason):
        load_conversations(path, model, max_tokens=1000)
    warnings: list[str] = []
    (row,) = load_conversations(path, model, max_tokens=1000, drop_too_long=True, warn=warnings.append)
    assert warnings == [f"{path}: skipped 1 of 2 rows, longer than 1000 tokens"]
    assert model.decode(row.turns[0].prompt_ids).startswith("<|im_start|>system\nBe brief.")
    with pytest.raises(DataError, match="no row of at most 10 tokens"):
        load_conversations(path, model, max_tokens=10, drop_too_long=True, warn=warnings.append)


def search_with(tool_calls: Any) -> list[dict[str, Any]]:
    return [{**call("search"), "tool_calls": tool_calls}]


@pytest.mark.parametrize(
    ("messages", "template", "message"),
    [
        (ENDS_IN_PRUNE, PLAIN, "doesn't render tool calls"),
        (ENDS_IN_PRUNE, PLAIN + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "tool calls"),
        (AFTER_A_PRUNE, LAST_ONLY, r"messages\[4\]: the chat template renders earlier messages"),
        (ENDS_IN_PRUNE, QWEN25.replace("{{ tool | tojson }}", ""), "doesn't show search, prune_context"),
        (ENDS_IN_PRUNE, QWEN25.replace("<|im_end|>", "[end]"), "no stop token"),
        ([*HEAD[:1], say("user", "a<|im_end|>b"), say("assistant", "c")], QWEN25, r"control token <\|im_end\|>"),
        (ENDS_IN_PRUNE, "{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        (HEAD, QWEN25, "none with role 'assistant'"),
        ([*HEAD, {"role": "bot", "content": "x"}], QWEN25, r"messages\[2\].role='bot'"),
        ([*HEAD, say("assistant", 5)], QWEN25, r"messages\[2\].content must be a string"),
        (search_with([{"name": "search", "arguments": "{no"}]), QWEN25, "is not valid JSON"),
        (search_with([{"name": "search", "arguments": [1]}]), QWEN25, "must be an object"),
        (search_with({"name": "search"}), QWEN25, "tool_calls must be a list"),
    ],
)
def test_a_row_that_cannot_be_rendered_faithfully_is_rejected_with_its_number(
    tmp_path: Path, messages: Any, template: str, message: str
) -> None:
    path = save(tmp_path / "a.parquet", messages)
    with pytest.raises(DataError, match=message) as caught:
        load_conversations(path, codec(template), max_tokens=9999)
    assert "a.parquet row 1" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tools": ["search"]}, r"tools\[0\]"),
        ({"tools": [{"function": "search"}]}, r"tools\[0\]"),
        ({"tools": [{"function": {"name": 5}}]}, r"tools\[0\]\.name"),
        ({"enable_thinking": "false"}, "enable_thinking must be true or false"),
    ],
)
def test_columns_of_another_form_are_rejected_with_their_row(
    columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": AFTER_A_PRUNE, **columns}) + "\n")
    with pytest.raises(DataError, match=rf"a\.jsonl line 1: .*{message}"):
        list(read_conversations(tmp_path / "a.jsonl"))


def test_disabled_thinking_is_rejected_where_earlier_replies_lose_their_empty_thinking(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", ENDS_IN_PRUNE, enable_thinking=False)
    with pytest.raises(DataError, match="omit enable_thinking"):
        load_conversations(path, codec(QWEN25), max_tokens=9999)


def test_sft_trains_on_conversations_and_on_episodes_of_a_run(
    tmp_path: Path, palimpsest: Any, tiny_model_folder: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model_folder, model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    tokenizer.chat_template = (
        "{{ tools | tojson if tools }}{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}|{% else %}"
        "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}" + tokenizer.eos_token + "{% endif %}{% endfor %}"
    )
    tokenizer.save_pretrained(model)
    sizes = ["train.max_steps=2", "train.batch_size=4", "logging.report_to=[jsonl]", f"model.path={model}"]
    rows = save(tmp_path / "a.parquet", AFTER_A_PRUNE, [*HEAD, say("assistant", "x " * 2000)])
    data = ("--data", str(rows), "--drop-too-long", "--out", str(tmp_path / "run"))
    done = palimpsest("sft", "memagent-quickstart", *data, *sizes)
    assert "skipped 1 of 2 rows, longer than 512 tokens" in done.stderr
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
    (tmp_path / "played" / "trajectories").mkdir(parents=True)
    record = tmp_path / "played" / "trajectories" / "step-000001.jsonl.zst"
    record.write_bytes(encode_groups(sample_groups(2), Codec.load(str(model)).digest))
    options = ("--from", str(tmp_path / "played"), "--min-grade", "correct", "--out", str(tmp_path / "second"))
    done = palimpsest("sft", "memagent-quickstart", *options, *sizes)
    assert done.returncode == 0
    assert "kept 2 episodes; skipped 0 below the grade, 2 ungraded" in done.stderr
