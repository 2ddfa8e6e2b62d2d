"""One chain of a Claude Code session: the main conversation, or one sub-agent's.

Entries come in file order, which is the order shown: a message hangs on the one before it,
except after a compaction (a new root) and after a rewind (the person went back and wrote anew).
The file's own ``parentUuid`` graph is no list — parallel calls branch it, progress lines are links
of it — so it is asked for rewinds only. Source: docs/formats.md, "Claude Code".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cyberagent.core.types import Json, Text, ToolCall
from cyberagent.trace.formats.claude_blocks import (
    answer_part,
    blocks_of,
    content_parts,
    is_empty_text,
    merge_usage,
    usage_of,
)
from cyberagent.trace.formats.drafts import Draft, timestamp
from cyberagent.trace.formats.reading import is_object, trimmed
from cyberagent.trace.formats.values import Notes

Entry = dict[str, Any]
AGENT_TOOLS = ("Task", "Agent")
_MAX_WALK = 10_000
# Commands, their output and interruptions are stored as human turns too.
_NO_MISSION = ("<command-", "<local-command-", "[Request interrupted")


class Uuids:
    """The file's own parent graph: entry uuid → parent uuid. A uuid that several entries share
    says nothing about any of them."""

    def __init__(self) -> None:
        self._parents: dict[str, Json] = {}
        self._shared: set[str] = set()

    def add(self, entry: Entry) -> None:
        uuid = entry.get("uuid")
        if not isinstance(uuid, str):
            return
        if uuid in self._parents:
            self._shared.add(uuid)
        self._parents[uuid] = entry.get("parentUuid")

    def up(self, uuid: Json) -> Iterator[str]:
        """``uuid``, its parent, and so on: until the file is left, or a shared uuid is met."""
        for _ in range(_MAX_WALK):
            if not isinstance(uuid, str) or uuid in self._shared:
                return
            yield uuid
            uuid = self._parents.get(uuid)


@dataclass(slots=True, eq=False)
class Spawn:
    """A call that starts a sub-agent."""

    draft: Draft
    call: ToolCall
    prompt: str
    line: int
    taken: bool = False


@dataclass(slots=True)
class Chain:
    """``agent_id`` and ``first_text`` (its first human text) are how a sub-agent is found;
    ``asked`` holds the ``parentUuid`` of each human turn."""

    notes: Notes
    uuids: Uuids
    agent_id: str = ""
    drafts: list[Draft] = field(default_factory=list[Draft])
    tip: Draft | None = None
    first_text: str = ""
    mission: str = ""
    line: int = 0
    asked: list[Json] = field(default_factory=list[Any])
    spawns: list[Spawn] = field(default_factory=list[Spawn])
    agents: dict[str, Draft] = field(default_factory=dict[str, Draft])
    compaction: dict[str, Json] | None = None
    _answers: dict[str, Draft] = field(default_factory=dict[str, Draft])
    _usages: dict[Draft, dict[str, int]] = field(default_factory=dict[Draft, dict[str, int]])
    _open: dict[str, tuple[Draft, str]] = field(default_factory=dict[str, tuple[Draft, str]])
    _waiting: dict[Draft, deque[str]] = field(default_factory=dict[Draft, "deque[str]"])
    _calls: set[tuple[Draft, str]] = field(default_factory=set[tuple[Draft, str]])
    _found: dict[str, Draft | None] = field(default_factory=dict[str, "Draft | None"])
    _branch: str = ""

    def draft_at(self, uuid: Json) -> Draft | None:
        """This chain's nearest message at or above entry ``uuid`` of the file."""
        passed: list[str] = []
        found: Draft | None = None
        for name in self.uuids.up(uuid):
            if name in self._found:
                found = self._found[name]
                break
            passed.append(name)
        self._found |= dict.fromkeys(passed, found)
        return found

    def _became(self, entry: Entry, draft: Draft) -> None:
        if isinstance(uuid := entry.get("uuid"), str):
            self._found[uuid] = draft

    def add(self, line: int, entry: Entry) -> None:
        """Take in a user or assistant entry whose ``message`` is an object."""
        self.line = self.line or line
        if entry["type"] == "assistant":
            self._answer(line, entry)
        else:
            self._user(entry)

    def end(self) -> None:
        """After the last entry: settle usage, note what was left open."""
        for draft, counts in self._usages.items():
            draft.usage = usage_of(counts)
        summary: Draft | None = None
        for draft in self.drafts:
            if draft.source == "summary":
                summary = draft
            elif summary is not None and draft.usage is not None:
                tokens = summary.metadata.setdefault("stands_for", {})
                tokens["tokens_after"], summary = draft.usage.prompt, None
        for _ in self._open:
            self.notes.warn("a call has no result")

    # Assistant ---------------------------------------------------------------------------

    def _answer(self, line: int, entry: Entry) -> None:
        message: Entry = entry["message"]
        name = message.get("id")
        draft = self._answers.get(name) if isinstance(name, str) and name else None
        if draft is None:
            synthetic = message.get("model") == "<synthetic>"
            draft = Draft("assistant", "framework" if synthetic else "model")
            draft.metadata = self._common(entry) | _known(message, id="message_id", model="model")
            self._push(draft, entry)
            if isinstance(name, str) and name:
                self._answers[name] = draft
        else:
            uuids = draft.metadata.setdefault("uuids", [draft.metadata.get("uuid")])
            uuids.append(entry.get("uuid"))
        self._became(entry, draft)
        draft.metadata |= _known(message, stop_reason="stop_reason")
        merge_usage(self._usages.setdefault(draft, {}), message.get("usage"))
        self._blocks(draft, line, message)

    def _blocks(self, draft: Draft, line: int, message: Entry) -> None:
        model = message.get("model")
        model = model if isinstance(model, str) else ""
        for index, block in enumerate(blocks_of(message.get("content"))):
            part = answer_part(block, model, f"call_{line}_{index}")
            if isinstance(part, ToolCall):
                if (draft, part.id) in self._calls:
                    self.notes.ignore("repeated call")
                    continue
                self._call(draft, part, line)
            if part is not None:
                draft.parts.append(part)
            elif not is_empty_text(block):
                draft.metadata.setdefault("other_blocks", []).append(trimmed(block))
                self.notes.warn("an answer has a block of an unknown kind; kept as metadata")

    def _call(self, draft: Draft, call: ToolCall, line: int) -> None:
        self._calls.add((draft, call.id))
        self._open[call.id] = (draft, call.name)
        self._waiting.setdefault(draft, deque()).append(call.id)
        if call.name in AGENT_TOOLS:
            arguments = call.parsed()
            prompt = arguments.get("prompt") if is_object(arguments) else None
            prompt = prompt.strip() if isinstance(prompt, str) else ""
            self.spawns.append(Spawn(draft, call, prompt, line))

    # User --------------------------------------------------------------------------------

    def _user(self, entry: Entry) -> None:
        results: list[Entry] = []
        rest: list[Json] = []
        for block in blocks_of(entry["message"].get("content")):
            if is_object(block) and block.get("type") == "tool_result":
                results.append(block)
            else:
                rest.append(block)
        for block in results:
            self._result(entry, block, alone=len(results) == 1)
        if rest or not results:
            self._human(entry, rest)

    def _result(self, entry: Entry, block: Entry, *, alone: bool) -> None:
        call_id, caller, name = self._match(entry, block)
        draft = Draft("tool", "tool", name=name, tool_call_id=call_id, caller=caller)
        draft.is_error = block.get("is_error") is True
        draft.parts, other = content_parts(blocks_of(block.get("content")))
        draft.metadata = self._common(entry)
        if other:
            draft.metadata["other_blocks"] = other
        if alone and (detail := entry.get("toolUseResult")) is not None:
            draft.metadata["tool_use_result"] = trimmed(detail)
            if is_object(detail):
                draft.duration_ms = _milliseconds(detail)
                agent = detail.get("agentId")
                if isinstance(agent, str) and caller is not None:
                    self.agents[agent] = caller
        self._push(draft, entry)
        self._became(entry, draft)

    def _match(self, entry: Entry, block: Entry) -> tuple[str, Draft | None, str]:
        """The id, the caller and the tool's name of a result: by its own id, by the entry's
        ``sourceToolUseID``, else the oldest open call of the answer the entry names."""
        given = [block.get("tool_use_id"), entry.get("sourceToolUseID")]
        for name in given:
            if isinstance(name, str) and name in self._open:
                return name, *self._open.pop(name)
        source = self.draft_at(entry.get("sourceToolAssistantUUID"))
        if not given[0] and source is not None:
            waiting = self._waiting.get(source, deque())
            while waiting:
                name = waiting.popleft()
                if name in self._open and self._open[name][0] is source:
                    return name, *self._open.pop(name)
        self.notes.warn("a result answers no open call")
        return next((n for n in given if isinstance(n, str)), ""), None, ""

    def _human(self, entry: Entry, blocks: list[Json]) -> None:
        draft = Draft("user", "user")
        draft.parts, other = content_parts(blocks)
        draft.metadata = self._common(entry)
        if other:
            draft.metadata["other_blocks"] = other
        if entry.get("isCompactSummary") is True:
            self._summary(draft, entry)
        elif entry.get("isMeta") is True:
            draft.source = "framework"
            self._push(draft, entry)
        else:
            draft.human = True
            self.asked.append(entry.get("parentUuid"))
            self._notice_text(draft)
            self.tip = self._rewound_to(entry) or self.tip
            self._push(draft, entry)
        self._became(entry, draft)

    def _notice_text(self, draft: Draft) -> None:
        text = "\n".join(p.text for p in draft.parts if isinstance(p, Text))
        if not self.first_text:
            self.first_text = text
        if not self.mission and not text.lstrip().startswith(_NO_MISSION):
            self.mission = text

    def _summary(self, draft: Draft, entry: Entry) -> None:
        draft.source = "summary"
        found = self.compaction or {}
        self.compaction = None
        if "trigger" in found:
            draft.metadata["compaction"] = {"trigger": found["trigger"]}
        if "pre_tokens" in found:
            draft.metadata["stands_for"] = {"tokens_before": found["pre_tokens"]}
        draft.stands_for, turn = self.tip, self.tip.turn if self.tip else 0
        for old in self.tip.path() if self.tip else ():
            old.left = True
        self.tip = None
        self._push(draft, entry)
        draft.turn = turn

    def _rewound_to(self, entry: Entry) -> Draft | None:
        """The earlier message this human turn goes back to, if it does.

        It does when its parent is on the current path (not ``left`` behind) and something was
        said after it, by the model or a person; tool results alone are a batch of parallel
        calls coming in.
        """
        parent = self.draft_at(entry.get("parentUuid"))
        if parent is None or parent.left:
            return None
        later: list[Draft] = []
        draft = self.tip
        while draft is not None and draft is not parent:
            later.append(draft)
            draft = draft.parent
        if not any(d.role == "assistant" or d.human for d in later):
            return None
        for draft in later:
            draft.left = True
        return parent

    # Both --------------------------------------------------------------------------------

    def _push(self, draft: Draft, entry: Entry) -> None:
        draft.parent = self.tip
        draft.turn = (self.tip.turn if self.tip else 0) + draft.human
        draft.created_at = timestamp(entry.get("timestamp"))
        self.tip = draft
        self.drafts.append(draft)

    def _common(self, entry: Entry) -> dict[str, Json]:
        found = _known(
            entry, uuid="uuid", requestId="request_id", agentId="agent_id", isMeta="is_meta",
            isApiErrorMessage="is_api_error", isAbortedMidStream="is_aborted",
        )  # fmt: skip
        branch = entry.get("gitBranch")
        if isinstance(branch, str) and branch != self._branch:
            self._branch = found["git_branch"] = branch
        return found


def _known(entry: Entry, **names: str) -> dict[str, Json]:
    """Scalars of the entry under our names; false, empty and missing ones are left out."""
    return {
        ours: value
        for theirs, ours in names.items()
        if (value := entry.get(theirs)) and isinstance(value, str | int) and len(str(value)) <= 500
    }


def _milliseconds(detail: Entry) -> int | None:
    for name in ("totalDurationMs", "durationMs"):
        value = detail.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
            return int(value)
    return None
