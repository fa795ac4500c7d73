"""Fakes for tests of agents with tools: scripted samplers, a search world, tokenizers of model families."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.events import Event
from palimpsest.rollout.episode import play
from palimpsest.text.codec import Codec
from palimpsest.text.tool_calls import CallStyle
from palimpsest.types import Completion, Problem, StopReason, Trajectory

BASE_MODEL = Path(__file__).parents[2] / "src" / "palimpsest" / "assets" / "base-model"
FACTS = ("Alice drinks tea.", "Bob lives in Rome.", "Carol plays chess.", "David has a cat.", "Emma likes rain.")
PASSAGES = tuple({"id": str(at), "title": "", "text": text} for at, text in enumerate(FACTS))
SMALL: dict[str, Any] = {"tools": {"search": {"topk": 1}}, "prompts": "short", "turn_tokens": 200}
SMALL |= {"context_tokens": 1500}
Reply = str | Callable[[str], str]


def world(question: str = "What does Alice drink?", passages: Sequence[Any] = PASSAGES, name: str = "p") -> Problem:
    return Problem(name, question, ("tea",), None, {"passages": tuple(passages)})


def call(tool: str, **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": tool, "arguments": arguments}) + "\n</tool_call>"


def search(query: str) -> str:
    return call("search", query=query)


def prune(*ids: str, memory: str = "tea") -> str:
    return call("prune_context", memory=memory, delete_ids=list(ids))


@lru_cache
def base_codec() -> Codec:
    """Codec of the packaged model."""
    return Codec.load(BASE_MODEL)


@dataclass
class Script:
    """A sampler that gives its replies in turn; a reply may be a function of the prompt's text."""

    codec: Codec
    replies: Sequence[Reply]
    max_context: int = 4000
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    async def generate(self, prompt_ids: Sequence[int], params: Any, **options: Any) -> Completion:
        await asyncio.sleep(0)
        reply = self.replies[len(self.prompts)] if len(self.prompts) < len(self.replies) else "FINAL_ANSWER: tea"
        self.prompts.append(tuple(prompt_ids))
        text = reply if isinstance(reply, str) else reply(self.codec.decode(prompt_ids))
        ids = (*self.codec.encode_trusted(text), self.codec.stop_ids[-1])
        cut = ids[: params.max_tokens]
        return Completion(cut, (-1.0,) * len(cut), StopReason.STOP if len(cut) == len(ids) else StopReason.LENGTH)

    def text(self, number: int) -> str:
        """Text of a prompt."""
        return self.codec.decode(self.prompts[number])


def played(
    policy: Any, replies: Sequence[Reply], problem: Problem | None = None, codec: Codec | None = None
) -> tuple[Trajectory, Script]:
    script = Script(codec or base_codec(), replies)
    parties: dict[str, Any] = {"policy": policy, "sampler": script, "codec": script.codec, "sampling": SamplingConfig()}
    episode = play(problem or world(), **parties, key=(0,), group_id="g", rollout=0)
    trajectory = asyncio.run(episode)
    failed = [event for event in trajectory.events if event.kind == "policy_error"]
    assert not failed, failed
    return trajectory, script


def events(trajectory: Trajectory, kind: str) -> list[Event]:
    return [event for event in trajectory.events if event.kind == kind]


def ids_of(policy: Any, count: int, problem: Problem | None = None) -> list[str]:
    """Ids of an episode's first results."""
    return [policy.result_id(problem or world(), number) for number in range(count)]


# --- chat templates, shortened to the rendering of messages; layout as published --------------------------------------

_LINE = "{{ '\\n' }}"  # a plain line break after a tag is trimmed
_TOOLS = "{% for tool in tools %}" + _LINE + "{{ tool | tojson }}{% endfor %}"
QWEN = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}"
    "You are Qwen.{% endif %}\n\n# Tools\n\n<tools>" + _TOOLS + "\n</tools>\n\n<tool_call>\n{...}\n</tool_call>"
    "<|im_end|>\n{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% else %}<|im_start|>system\nYou are Qwen.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant{% if m.content %}{{ '\\n' + m.content }}{% endif %}"
    "{% for c in m.tool_calls %}{{ '\\n<tool_call>\\n' }}"
    '{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user"
    "{% endif %}{{ '\\n<tool_response>\\n' }}{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = QWEN.replace(
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}",
    "{% if m.role == 'assistant' and '</think>' in m.content and not loop.last %}"  # strips the thinking of old replies
    "<|im_start|>assistant\n{{ m.content.split('</think>')[-1].lstrip('\\n') }}<|im_end|>\n"
    "{% elif m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}",
)
_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n".format
LLAMA3 = (
    "{{ bos_token }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% if messages[0].role == 'system' %}{% set said = messages[0].content | trim %}{% set messages = messages[1:] %}"
    "{% else %}{% set said = '' %}{% endif %}" + _HEADER("system") + "{% if tools %}Environment: ipython\n{% endif %}"
    "Today Date: {{ date_string }}\n\n{{ said }}<|eot_id|>"
    "{% if tools %}" + _HEADER("user") + 'Respond in the format {"name": ..., "parameters": ...}.\n\n'
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}{{ messages[0].content | trim }}<|eot_id|>"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' or m.role == 'ipython' %}"
    + _HEADER("ipython")
    + "{% if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}{% else %}{{ m.content }}"
    "{% endif %}<|eot_id|>{% elif 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    + _HEADER("assistant")
    + '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|eot_id|>{% else %}" + _HEADER("{{ m.role }}") + "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + _HEADER("assistant") + "{% endif %}"
)
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set said = messages[0].content %}{% set messages = messages[1:] %}"
    "{% endif %}{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% set ns = namespace(index=0) %}"
    "{% for m in messages %}{% if m.role in ('user', 'assistant') and not m.tool_calls is defined %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{% if tools and m == asked[-1] %}"
    "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{% if loop.last and said is defined %}"
    "{{ said }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls is defined %}[TOOL_CALLS][{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}"
    "{% if c.id | length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
    '{% endif %}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}'
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{\"content\": {{ m.content }}, "
    '"call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
BARE = (  # no system, no tools: Gemma's first templates
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('role not supported') }}"
    "{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
CHATML = (  # every role, no tools
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CODER = QWEN.replace(
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n',
    "<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>@"
    "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}@"
    "</parameter>\n{% endfor %}</function>\n".replace("@", _LINE),
)
_GLM = (
    "{% if tools %}<|system|>\n# ToolsTOOLS{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}@"
    "<tool_response>\n{{ m.content }}\n</tool_response>{% else %}<|{{ m.role }}|>\n"
    "{% if m.role == 'assistant' %}<think></think>@{% endif %}{{ m.content }}{% for c in m.tool_calls %}@"
    "<tool_call>{{ c.function.name }}@{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>@{% endfor %}</tool_call>"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
).replace("@", _LINE).replace("TOOLS", _TOOLS)  # fmt: skip
_GEMMA4 = (
    """{% macro val(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is boolean %}{{ 'true' if v else 'false' }}"""
    """{% elif v is mapping %}{{ '{' }}{% for k, x in v | dictsort %}{% if not loop.first %},{% endif %}"""
    """{{ k }}:{{ val(x) }}{% endfor %}{{ '}' }}{% elif v is sequence %}[{% for x in v %}{% if not loop.first %},"""
    """{% endif %}{{ val(x) }}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}"""
    "{% if tools or messages[0].role == 'system' %}<|turn>system\n{% if messages[0].role == 'system' %}"
    "{{ messages[0].content }}{% endif %}{% for t in tools %}<|tool>{{ t | tojson }}<tool|>{% endfor %}<turn|>\n"
    "{% endif %}{% for m in messages %}{% if m.role == 'tool' %}{% if not messages[1].tool_calls %}"
    "{{ raise_exception('results need a call') }}{% endif %}<|tool_response>response:tool{value:{{ val(m.content) }}}"
    "<tool_response|>{% elif m.role != 'system' %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% for c in m.tool_calls %}<|tool_call>call:{{ c.function.name }}{{ val(c.function.arguments) }}<tool_call|>"
    "{% endfor %}{% if not m.tool_calls %}{{ m.content }}<turn|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model\n{% endif %}"
)
_HARMONY = (
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}<|end|>"
    "{% if tools or messages[0].role == 'system' %}<|start|>developer<|message|>{% if messages[0].role == 'system' %}"
    "{{ messages[0].content }}{% endif %}{% for t in tools %}{{ t | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{% if not messages[1].tool_calls %}"
    "{{ raise_exception('results need a call') }}{% endif %}<|start|>functions.tool to=assistant<|channel|>commentary"
    "<|message|>{{ m.content | tojson }}<|end|>{% elif m.tool_calls %}{% if m.content %}<|start|>assistant<|channel|>"
    "analysis<|message|>{{ m.content }}<|end|>{% endif %}{% set f = m.tool_calls[0].function %}<|start|>assistant to="
    "functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
_LFM2 = (
    r"""{% macro val(v) %}{% if v is string %}'{{ v | replace('\\', '\\\\') | replace("'", "\\'") """
    r"""| replace('\n', '\\n') }}'{% elif v is mapping or v is iterable %}{{ v | tojson }}{% else %}{{ v | string }}"""
    "{% endif %}{% endmacro %}{% if tools %}<|im_start|>system\nList of tools: {{ tools | tojson }}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}<|tool_call_start|>[{% for c in "
    "m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ val(v) }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]<|tool_call_end|>"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MISTRAL_NAMES = ("INST", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS")
FAMILIES = {
    "qwen": (QWEN, ["<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>"]),
    "qwen3": (QWEN3, ["<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]),
    "llama3": (
        LLAMA3,
        ["<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"],
    ),
    "mistral": (MISTRAL, ["</s>", "<s>", *(f"[{end}{name}]" for name in _MISTRAL_NAMES for end in ("", "/"))]),
    "chatml": (CHATML, ["<|im_end|>", "<|im_start|>"]),
    "spm": (CHATML, ["<|im_end|>", "<|im_start|>"]),  # Llama 2 and the first Mistrals: characters, else bytes
    "bare": (BARE, ["<end_of_turn>", "<start_of_turn>"]),
}
_GEMMA_NAMES = ("turn", "tool", "tool_call", "tool_response", "channel")
CALLING = {  # by the format of their calls
    "qwen_coder": (_CODER, ["<|im_end|>", "<|im_start|>", "<think>", "</think>"]),
    "glm": (_GLM, ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"]),
    "gemma4": (
        _GEMMA4,
        ["<eos>", '<|"|>', *(f"<{mark}>" for name in _GEMMA_NAMES for mark in (f"|{name}", f"{name}|"))],
    ),
    "harmony": (
        _HARMONY,
        ["<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"],
    ),
    "lfm2": (_LFM2, ["<|im_end|>", "<|im_start|>", "<|tool_call_start|>", "<|tool_call_end|>"]),
}

TOOL_FAMILIES: dict[CallStyle, str] = {"hermes": "qwen", "llama3": "llama3", "mistral": "mistral"}
TOOL_FAMILIES |= {style: style for style in CALLING}  # type: ignore[misc]
"""A family that writes calls in each format."""


@lru_cache
def family_codec(name: str) -> Codec:
    """A tokenizer with the control tokens and the chat template of a family; byte-level, but for spm."""
    from transformers import PreTrainedTokenizerFast

    template, controls = (FAMILIES | CALLING)[name]
    backend = _byte_fallback(controls) if name == "spm" else _byte_level(controls)
    begin = {"bos_token": controls[1]} if name in ("llama3", "mistral") else {}
    return Codec(
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=controls[0], chat_template=template, **begin)
    )


def _byte_fallback(controls: Sequence[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *map(chr, range(33, 127))]
    merges = [("\u2581", "{"), ("}", "}"), ("t", "o"), ("a", "r"), ("c", "h")]
    vocabulary = {piece: at for at, piece in enumerate([*pieces, *map("".join, merges)])}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(control, normalized=False) for control in controls])
    return backend


def _byte_level(controls: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(controls), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([*FACTS, search("Alice"), prune("a1", "b2")], trainer)
    return backend
