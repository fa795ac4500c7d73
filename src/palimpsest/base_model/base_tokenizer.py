"""The embedded model's tokenizer: an ordinary byte-level BPE with GPT-2's word pattern, trained on the world's words.

Guaranteed: any text goes in and comes out unchanged; every name and value of the synthetic world is one token, with
a space before it and without. Not covered: compression of other text (about one token per two or three letters).
"""

from __future__ import annotations

from pathlib import Path

from palimpsest.data.synthetic.world import FILLER, PEOPLE, RELATIONS
from palimpsest.memory import document_baselines, overwrite
from palimpsest.training.supervised.skills import UNKNOWN

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COMMON = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were her all she there would their we him been has when who will more no if out so said what up its
about into than them can only other new some could time these two may then do first any my now such like our over man
me even most made after also did many before must through back years where much your way well down should because
each just those people how too little state good very make world still own see men work long get here between both
life being under never day same another know while last might us great old year off come since against go came right
used take three film American born known city band album song team season series book company University music
history family school member national United States English British Roman John William James born released located
television actor director writer singer player football county district village river town north south east west"""

FORMATS = (
    "<update> Alice drinks tea.</update>",
    "<recall>Alice</recall>",
    "<think>",
    "</think>",
    '<tool_call>\n{"name": "search", "arguments": {"query": "Alice"}}\n</tool_call>',
    '{"name": "prune_context", "arguments": {"memory": "Alice drinks tea.", "delete_ids": ["a1", "b2"]}}',
    '"memory": "", "delete_ids": []',
    "<tool_response>\n[id: c3] Alice drinks tea.\n</tool_response>",
    "system\n",
    "tool\n",
    "FINAL_ANSWER: tea",
    "FINAL_ANSWER: [",
)
"""Ways in which agents answer, so that tags and calls are few tokens."""


def corpus() -> list[str]:
    """The lines the merges are learnt from; words of the world weigh most."""
    values = [value for relation in RELATIONS for value in relation.values]
    lines: list[str] = []
    for word in dict.fromkeys([*PEOPLE, *values, UNKNOWN]):
        lines += [" " + word] * 40 + [word] * 40
    for relation in RELATIONS:
        texts = (*relation.statements, relation.question, relation.of or "")
        lines += [text.replace("{s}", "").replace("{v}", "") for text in texts] * 100
    lines += [
        *FILLER,
        overwrite.SHORT.read,
        overwrite.SHORT.read_section_first,
        overwrite.SHORT.answer,
        document_baselines.SHORT.answer,
        "user\n",
        "assistant\n",
        " none",
        *FORMATS,
    ] * 100
    lines += [" " + word for word in COMMON.split()] * 3
    return lines


def build_tokenizer(folder: Path, vocab_size: int = 2048) -> None:
    """Train and write tokenizer.json, tokenizer_config.json and the chat template into `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(str(folder))
