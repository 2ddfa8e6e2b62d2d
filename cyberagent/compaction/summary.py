"""Level 2: a model's summary in place of the history. Source: docs/compaction.md, "Level 2"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from cyberagent.compaction.cut import safe_cut
from cyberagent.compaction.keep import (
    USER_MESSAGES_BUDGET,
    kept_json,
    kept_turns,
    pinned_places,
    quote,
    rebuilt_history,
    skill_places,
)
from cyberagent.compaction.values import (
    Facts,
    Items,
    Links,
    Step,
    SummaryRequest,
    edits_between,
    inserted,
    is_lasting,
    link,
    newest_turn,
    opening,
)
from cyberagent.core.guards import Budget, raw_size
from cyberagent.core.ports import FinishReason, TokenCounter
from cyberagent.core.tokens import count_message
from cyberagent.core.types import Image, Json, Message, Text, clean_text
from cyberagent.core.window import Item
from cyberagent.core.wording import label, wording
from cyberagent.trace.goals import GoalTree
from cyberagent.trace.plan_text import flat

# The strategies ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SummaryCompaction:
    """The strategies ``summary``, ``full`` and ``auto``.

    ``prompt``: the wording that asks for the summary; ``role``: of its message; ``characters``:
    the most that is kept of its text (0: all); ``continues``: in the middle of tools, a message
    to go on follows; ``recent_share``: the share of the room below the target that the newest
    turns may fill word for word, the summary then being of what came before them.
    """

    name: str = "summary"
    level: int = 2
    last_resort: bool = True
    always: bool = False
    prompt: Literal["compression", "compaction", "auto_summary"] = "compression"
    role: Literal["user", "assistant"] = "user"
    characters: int = 0
    continues: bool = False
    user_messages_budget: int = USER_MESSAGES_BUDGET
    recent_share: float = 0.0

    def apply(self, items: Items, budget: Budget, facts: Facts) -> Step | SummaryRequest:
        """What to ask for. Nothing where a call still waits for its result, and where only what
        would come back anyway is left to summarise."""
        links = link(items)
        newest = newest_turn(items)
        pending = any(place >= newest for place in links.open)
        head = items[: self._cut(items, "", budget, facts)]
        if pending or not self._has_work(head, link(head), facts):
            return Step(items)
        stood = _stood_for(head)
        instruction = wording(facts.language, self.prompt).format(
            index=message_index(stood, facts), characters=self.characters
        )
        return SummaryRequest(
            strategy=self.name,
            items=items,
            instruction=instruction,
            tokens=raw_size(stood),
            characters=self.characters,
        )

    @staticmethod
    def _has_work(items: Items, links: Links, facts: Facts) -> bool:
        """Whether there is more than a pass would put back as it is."""
        wanted = {*pinned_places(items, links, facts), *skill_places(items, facts)}
        back = {id(i) for i in kept_turns(items, links, wanted, facts)}
        first = opening(items)
        return any(
            id(i) not in back
            and i is not first
            and i.kind != "inserted"
            and not is_lasting(i.message)
            for i in items
        )

    def rebuild(self, items: Items, text: str, budget: Budget, facts: Facts) -> Step:
        """The history with a summary of this text. The summary is a draft, to be stored as a
        child of the first user message; see :func:`settled`."""
        text = clean_text(text).strip()
        if self.characters and len(text) > self.characters:
            text = text[: self.characters - 1] + "…"
        cut = self._cut(items, text, budget, facts)
        after, stood = self._rebuilt(items, cut, text, budget, facts)
        why = f"a summary stands for {stood} messages"
        edits = edits_between(items, after, strategy=self.name, level=self.level, why=why)
        return Step(after, edits)

    def _cut(self, items: Items, text: str, budget: Budget, facts: Facts) -> int:
        """Where the newest turns begin that stay as they are: as many as fit into their share of
        what is left below the target, never a call apart from its result."""
        if not self.recent_share:
            return len(items)
        whole, _ = self._rebuilt(items, len(items), text, budget, facts)
        room = (budget.target - budget.size(whole)) * self.recent_share / budget.ratio
        cut = len(items)
        while cut > 1 and (room := room - items[cut - 1].message.tokens) >= 0:
            cut -= 1
        links = link(items)
        while cut < len(items) and safe_cut(items, links, cut) != cut:
            cut += 1
        return cut

    def _rebuilt(
        self, items: Items, cut: int, text: str, budget: Budget, facts: Facts
    ) -> tuple[Items, int]:
        """The history in which a summary of this text stands for what is before ``cut``, and how
        many messages leave the path for it."""
        head, recent = items[:cut], list(items[cut:])
        if self.continues and not recent and items and items[-1].message.role == "tool":
            again = label(facts.language, "summary_continue")
            recent.append(inserted(again, facts, strategy=self.name, why="it was amid tools"))
        draft = summary_message(head, text, facts, role=self.role)
        item = Item(draft, "inserted", self.name, "stands for what came before")
        after = rebuilt_history(
            head, item, facts, budget, user_messages_budget=self.user_messages_budget, tail=recent
        )
        noted = {
            **stands_for_note(items),
            "tokens_before": raw_size(items),
            "tokens_after": raw_size(after),
        }
        metadata = {**draft.metadata, "stands_for": noted, "kept": kept_json(after)}
        final = replace(item, message=replace(draft, metadata=metadata))
        return tuple(final if i is item else i for i in after), noted["messages"]


def settled(items: Items, stored: Message) -> Items:
    """The history with the summary as it was stored: the draft becomes a whole message."""
    return tuple(
        Item(stored) if i.kind == "inserted" and i.message.source == "summary" else i for i in items
    )


# The summary's message -------------------------------------------------------------------------


def summary_message(
    items: Items, text: str, facts: Facts, *, role: Literal["user", "assistant"] = "user"
) -> Message:
    """The draft: a head that marks it as data, the model's text as a quotation, and the plan
    with what came of each goal, from its own record. ``metadata`` holds ``stands_for`` and the
    ``snapshot`` that replay starts from."""
    stood = _stood_for(items)
    first, last = _span(stood)
    head = label(facts.language, "summary_head").format(first=first, last=last)
    parts = [Text(f"{head}\n{quote(text)}")]
    if len(facts.plan):
        parts.append(Text(facts.plan.to_prompt(include_summary=True, language=facts.language)))
    skills = {
        name: {"message_id": f"m{sequence}", "sequence": sequence}
        for name, sequence in facts.skills.items()
    }
    metadata: dict[str, Json] = {
        "stands_for": stands_for_note(items),
        "snapshot": {"goals": facts.plan.to_json(), "injected_skills": skills},
    }
    draft = Message(role=role, parts=tuple(parts), source="summary", metadata=metadata)
    return replace(draft, tokens=count_message(facts.counter, draft))


def stands_for_note(items: Items) -> dict[str, int]:
    """Which stored messages leave the path when a summary takes the place of ``items``."""
    stood = _stood_for(items)
    first, last = _span(stood)
    return {"first": first, "last": last, "messages": len(stood)}


def _stood_for(items: Items) -> Items:
    """The stored messages that a summary replaces: all but the first user message."""
    first = opening(items)
    return tuple(
        i for i in items if i is not first and i.kind != "inserted" and i.message.role != "system"
    )


def _span(stood: Items) -> tuple[int, int]:
    """First and last sequence, those of an earlier summary's messages included."""
    numbers = [i.message.sequence for i in stood]
    for item in stood:
        earlier = item.message.metadata.get("stands_for")
        if item.message.source == "summary" and isinstance(earlier, Mapping):
            value = cast("Mapping[str, Json]", earlier).get("first")
            numbers += [value] if isinstance(value, int) else []
    return (min(numbers), max(numbers)) if numbers else (0, 0)


NAME_CHARS = 80
"""Characters of a goal or a tool where it is only named."""


def message_index(items: Items, facts: Facts) -> str:
    """Which messages belong to which goal, a line each, so that a summary can name sequences."""
    spans: dict[str, list[int]] = {}
    for item in items:
        message = item.message
        spans.setdefault(message.goal_id, []).append(message.sequence)
    lines: list[str] = []
    for goal_id, numbers in spans.items():
        goal = facts.plan.get(goal_id) if goal_id in facts.plan else None
        name = flat(f"{goal.label} {goal.description}" if goal else goal_id or "-", NAME_CHARS)
        lines.append(f"- {name}: {min(numbers)}-{max(numbers)}")
    return "\n".join(lines)


# Checks ----------------------------------------------------------------------------------------

_ERROR = re.compile(
    r"""[\[{("'*]*(?:
        (?:(?:api|http|server|internal|request)\ )*error(?:["']?\s*[:：]|\s+\d{3}|\ code\b)
      | traceback\ \(most\ recent | rate\ limit(?:ed|\ exceeded|\ reached) | too\ many\ requests
      | service\ unavailable | (?:i['’]?m|i\ am)\ sorry | sorry,\ (?:but\ )?i\ can
      | i\ (?:cannot|can['’]t)\ (?:help|assist) | as\ an\ ai\b
      | 错误\s*[:：] | 请求失败 | 抱歉 | 对不起 | 很抱歉
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_SPEAKER = re.compile(
    r"^[ \t]*(?:\*\*|\[|<\|?)?(?:user|human|assistant|用户|助手)(?:\*\*|\]|\|?>)?[ \t]*[:：]",
    re.IGNORECASE | re.MULTILINE,
)
_CALL = re.compile(
    r"<\|?/?(?:\w+:)?(?:tool_calls?|function_calls?|tool_use|invoke|im_start)\b"
    r"|^[ \t]*\{[ \t]*\"(?:name|tool|function|tool_calls?)\"[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)
_GOES_ON = re.compile(
    r"(?:sure|okay|ok|certainly|understood|great)[,!. ]+(?:i|let|here'?s my next)\b"
    r"|let me (?:now |continue|start|check|read|look|run)|i(?:['’]ll| will) (?:now |continue|go on)"
    r"|好的[，,。！]?\s*(?:我|让我)|让我|接下来我|我将继续|我会继续",
    re.IGNORECASE,
)


def problems_of_summary(
    text: str,
    replaced_tokens: int,
    finish_reason: FinishReason,
    has_calls: bool,
    counter: TokenCounter,
) -> str | None:
    """Why a model's answer cannot stand for the history, in one sentence; None if it can.

    ``replaced_tokens``: of what it would replace, which it must stay below.
    """
    text = text.strip()
    if has_calls or finish_reason == "tool_calls" or _CALL.search(text):
        return "the model called a tool instead of summarising"
    if not text:
        return "the summary is empty"
    if finish_reason != "stop":
        return f"the summary did not come to its end ({finish_reason})"
    if _ERROR.match(text):
        return "the summary is the text of an error or a refusal"
    if _SPEAKER.match(text) or len(_SPEAKER.findall(text)) > 1 or _GOES_ON.match(text):
        return "the model continued the conversation instead of summarising it"
    tokens = counter.count(text)
    if tokens >= replaced_tokens:
        return f"the summary has {tokens:,} tokens, what it replaces {replaced_tokens:,}"
    return None


# Pieces ----------------------------------------------------------------------------------------


def transcript(items: Iterable[Item]) -> list[str]:
    """The history as text, a block per message that names its sequence. What tools and files
    brought is quoted, so that it cannot pass for anybody's words."""
    return [_block(item.message) for item in items]


def _block(message: Message) -> str:
    who = {"tool": "tool result", "user": message.source}.get(message.role, message.role)
    name = flat(clean_text(message.name), NAME_CHARS)
    lines = [f"[{message.sequence or '-'}] {who}{' ' + name if name else ''}:"]
    for part in message.parts:
        if isinstance(part, Text):
            lines.append(quote(part.text) if message.role == "tool" else clean_text(part.text))
    for call in message.tool_calls:
        lines.append(
            f"calls {flat(clean_text(call.name), NAME_CHARS)}({clean_text(call.arguments)})"
        )
    lines += ["(an image)" for p in message.parts if isinstance(p, Image)]
    return "\n".join(lines)


def pieces(request: SummaryRequest, room: int, counter: TokenCounter) -> tuple[str, ...]:
    """The history as texts of at most ``room`` tokens each, for a summariser whose window is too
    small for the whole, or which is given no tools. A message that is too long alone is cut.

    Ask for a summary of each in turn with :func:`piece_prompt`, handing the one before along.
    Raises ValueError where ``room`` is not above 0.
    """
    if room < 1:
        raise ValueError(f"there is no room for a summary: {room} tokens")
    out: list[str] = []
    block: list[str] = []
    size = 0
    for text in transcript(request.items):
        for part, tokens in _cut_to(text, room, counter):
            if block and size + tokens > room:
                out.append("\n\n".join(block))
                block, size = [], 0
            block.append(part)
            size += tokens
    return (*out, "\n\n".join(block)) if block else tuple(out)


_SEPARATOR_TOKENS = 2


def _cut_to(text: str, room: int, counter: TokenCounter) -> list[tuple[str, int]]:
    """``text`` in parts of at most ``room`` tokens, each with its tokens and the blank line
    after it. A single character may be over it."""
    tokens = counter.count(text) + _SEPARATOR_TOKENS
    if tokens <= room or len(text) < 2:
        return [(text, tokens)]
    half = len(text) // 2
    return [*_cut_to(text[:half], room, counter), *_cut_to(text[half:], room, counter)]


def piece_prompt(
    request: SummaryRequest, texts: Sequence[str], part: int, earlier: str, language: str
) -> str:
    """What to ask a summariser for piece ``part`` (from 0 up). ``earlier``: its summary of the
    pieces before, which the new one takes up."""
    return wording(language, "summary_piece").format(
        part=part + 1,
        parts=len(texts),
        earlier=quote(earlier) if earlier else "-",
        history=texts[part],
        instruction=request.instruction,
    )


# Without a model -------------------------------------------------------------------------------


def stub_summary(plan: GoalTree, language: str = "en", characters: int = 0) -> str:
    """What the lab counts in place of a model's summary: the closed goals' own summaries, up to
    ``characters`` (0: all)."""
    lines = [label(language, "summary_stub")]
    lines += [
        f"- {g.label} {flat(g.description)}: {g.summary}" for g in plan.walk() if not g.is_open
    ]
    text = "\n".join(lines)
    return text if not characters or len(text) <= characters else text[: characters - 1] + "…"
