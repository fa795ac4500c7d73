"""A response as an object, and as the events that come to it.

Guaranteed: the events are a function of what an episode told, so that a stream resumed after any `sequence_number`
goes on with the events that an unbroken one would have given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from palimpsest.servers.openai.chat_completions import content_of, failure_of, own_facts, timely, usage
from palimpsest.servers.openai.episode_progress import Episode

Event = dict[str, Any]


def response_of(record: Mapping[str, Any], episode: Episode | None, reasoning: str = "") -> dict[str, Any]:
    """The response object; `episode`: None where nothing is known of it any more."""
    result = None if episode is None else episode.result
    base = {
        "id": record["id"],
        "object": "response",
        "created_at": record["created_at"],
        "status": status_of(record, episode),
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        **record["echo"],
    }
    if episode is None or base["status"] == "cancelled":
        return base
    given = record.get("given") or {"input": record["rule"]}
    if result is None:
        return {**base, **_so_far(record, episode, given, reasoning)}
    base["palimpsest"] = own_facts(episode, result, given)
    failed = failure_of(result)
    if failed is not None:
        return {**base, "error": {"code": failed.code or "server_error", "message": str(failed)}}
    counts = usage(result, record.get("from_store", False))
    base["usage"] = {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": counts["completion_tokens_details"],
        "total_tokens": counts["total_tokens"],
    }
    if base["status"] == "incomplete":
        base["incomplete_details"] = {"reason": "max_output_tokens"}
    text = content_of(result, record.get("raw", False)) or ""
    reasoned = [_reasoning(record, reasoning)] if reasoning else []
    return {**base, "output": [*reasoned, _message(record, text, base["status"])]}


def _so_far(record: Mapping[str, Any], episode: Episode, given: Mapping[str, str], reasoning: str) -> dict[str, Any]:
    """What a response in progress says: how far it is and, in its reasoning, what was reported of the memory, or the
    section where nobody follows it."""
    progress = episode.progress()
    if record["progress"] and not reasoning and progress.get("section"):
        reasoning = f"section {progress['section']} of {progress['sections']}\n"
    output = [{**_reasoning(record, reasoning), "status": "in_progress"}] if reasoning else []
    return {"output": output, "palimpsest": {"episode": episode.id, **given, "progress": progress}}


def status_of(record: Mapping[str, Any], episode: Episode | None) -> str:
    if record.get("cancelled") or episode is None:
        return "cancelled"
    if episode.result is None:
        return "in_progress" if episode.started else "queued"
    if episode.result["outcome"] == "cancelled":
        return "cancelled"
    if failure_of(episode.result) is not None:
        return "failed"
    return "incomplete" if episode.result["finish_reason"] == "length" else "completed"


def reasoning_of(episode: Episode, progress: bool) -> str:
    """All that was told of the memory."""
    return "".join(text for kind, text in episode.news if kind == "reasoning") if progress else ""


def _reasoning(record: Mapping[str, Any], text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"id": f"rs_{record['id'][5:]}", "type": "reasoning", "summary": summary}


def _message(record: Mapping[str, Any], text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [_text_part(text)]
    item = {"id": f"msg_{record['id'][5:]}", "type": "message", "role": "assistant"}
    return {**item, "status": status, "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def events_of(record: Mapping[str, Any], episode: Episode) -> AsyncIterator[Event | str]:
    """Every event of a response, with its `sequence_number`; a text is a comment."""
    writer = _Writer(record)
    for each in writer.opening():
        yield each
    async for kind, text in timely(episode, record["progress"], record.get("raw", False)):
        if kind == "comment":
            yield text
            continue
        for each in writer.more(kind, text):
            yield each
    result = await episode.ended()
    if failure_of(result) is None and writer.kind != "content":
        for each in writer.more("content", ""):  # an answer without text is a message too
            yield each
    whole = response_of(record, episode, writer.reasoning)
    for each in writer.closing(whole):
        yield each


class _Writer:
    """Numbers events, and opens and closes the items that deltas belong to."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record
        self._number = -1
        self.kind = ""
        """Of the item that is open."""
        self._index = -1
        self._text = ""
        self.reasoning = ""

    def opening(self) -> Iterator[Event]:
        begun = {**response_of(self._record, None), "status": "in_progress"}
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=begun)

    def more(self, kind: str, text: str) -> Iterator[Event]:
        """A delta, in an item of its kind."""
        if kind != self.kind:
            yield from self._end_item("completed")
            self.kind, self._index, self._text = kind, self._index + 1, ""
            item = _reasoning(self._record, "") if kind == "reasoning" else _message(self._record, None, "in_progress")
            yield self._event("response.output_item.added", output_index=self._index, item=item)
            yield self._part("added", "")
        self._text += text
        if kind == "reasoning":
            self.reasoning += text
        if text:
            yield self._of_text("delta", delta=text)

    def closing(self, whole: Mapping[str, Any]) -> Iterator[Event]:
        status = whole["status"]
        yield from self._end_item("completed" if status == "completed" else "incomplete")
        kind = {"completed": "completed", "incomplete": "incomplete"}.get(status, "failed")
        yield self._event(f"response.{kind}", response=whole)

    def _end_item(self, status: str) -> Iterator[Event]:
        if not self.kind:
            return
        text = self._text
        yield self._of_text("done", text=text)
        yield self._part("done", text)
        item = _reasoning(self._record, text) if self.kind == "reasoning" else _message(self._record, text, status)
        yield self._event("response.output_item.done", output_index=self._index, item=item)

    def _of_text(self, what: str, **more: str) -> Event:
        if self.kind == "reasoning":
            return self._event(f"response.reasoning_summary_text.{what}", **self._place("summary_index"), **more)
        return self._event(f"response.output_text.{what}", **self._place("content_index"), logprobs=[], **more)

    def _part(self, what: str, text: str) -> Event:
        if self.kind == "reasoning":
            part: dict[str, Any] = {"type": "summary_text", "text": text}
            return self._event(f"response.reasoning_summary_part.{what}", **self._place("summary_index"), part=part)
        return self._event(f"response.content_part.{what}", **self._place("content_index"), part=_text_part(text))

    def _place(self, index: str) -> dict[str, Any]:
        prefix = "rs_" if self.kind == "reasoning" else "msg_"
        return {"item_id": prefix + self._record["id"][5:], "output_index": self._index, index: 0}

    def _event(self, kind: str, **more: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **more}
