"""What goes into and out of the REST API. Source: docs/api.md.

Answers that carry texts of models and tools are written as JSON by :func:`traces.api.answer`,
since such text may hold what a validated string may not (a lone surrogate); these schemas are
then their description, and tests hold the answers against them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import AfterValidator, ConfigDict

LARGEST = 2**31 - 1

Number = Annotated[int, Field(ge=0, le=LARGEST)]
"""A sequence, an event's or call's number, a row's id: what the columns can hold."""


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it must not hold NUL")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it must not be empty")
    return text


Line = Annotated[str, Field(max_length=200), AfterValidator(_no_nul)]
Words = Annotated[
    str, Field(max_length=1_000_000), AfterValidator(_no_nul), AfterValidator(_not_blank)
]


class Strict(Schema):
    """Unknown fields are errors: a misspelt option must not be ignored."""

    model_config = ConfigDict(extra="forbid")


# Traces ------------------------------------------------------------------------------------


class TraceOut(Schema):
    id: str
    mission: str
    status: str
    status_why: str
    origin: str
    provider: str
    model: str
    preset: str
    owner: str | None
    shared: bool
    turn: int
    head_sequence: int
    last_sequence: int
    last_event: int
    last_call: int
    parent_trace: str | None
    parent_message: int | None
    steps: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None = Field(description="US dollars; null where prices are not known")
    goals_done: int
    goals_total: int
    current_goal: str
    created_at: datetime
    updated_at: datetime


class TraceDetail(TraceOut):
    config: dict[str, Any]
    system_prompt: str
    children: list[str]


class TracePage(Schema):
    items: list[TraceOut]
    next: str | None = Field(description="cursor of the page after this one")


class StartIn(Strict):
    mission: Words
    config: dict[str, Any] = Field(
        default_factory=dict, description="RunConfig: provider, model, preset, workspace, …"
    )
    skills: list[Line] = Field(default_factory=list, max_length=50)
    shared: bool = False
    anchor: dict[str, Any] | None = Field(
        default=None, description="objective, completion_criteria, constraints; preset `recursive`"
    )

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "mission": "Find out why the tests fail",
                "config": {"provider": "openai", "model": "gpt-4o-mini", "preset": "cyber"},
                "skills": [],
            }
        },
    )


class Started(Schema):
    id: str
    status: str


# Root anchors ------------------------------------------------------------------------------


class AnchorRevisionOut(Schema):
    number: int
    anchor: dict[str, Any]
    sha256: str = Field(description="of the anchor's canonical JSON")
    supersedes: str = Field(description="SHA-256 of the one before; empty for the first")
    by: str = Field(description="the name at that time; empty for the first")
    at: datetime
    why: str


class AnchorOut(Schema):
    trace: str = Field(description="the run at the root of the tree")
    anchor: dict[str, Any]
    sha256: str
    revisions: list[AnchorRevisionOut]


class AnchorChangeOut(Schema):
    field: str
    added: list[str]
    removed: list[str]


class ContractChangeOut(Schema):
    trace: str
    objective: str
    gets: list[str] = Field(description="constraints that it gets added")
    loses: list[str] = Field(description="constraints of an earlier revision that it has no more")
    problem: str = Field(description="why they do not fit; empty where they do")


class AnchorPreviewOut(Schema):
    trace: str
    number: int
    anchor: dict[str, Any]
    sha256: str
    supersedes: str
    changes: list[AnchorChangeOut]
    contracts: list[ContractChangeOut]
    told: list[str] = Field(description="traces that would be told")
    problem: str = Field(description="why it would be refused; empty where it would not")


class ReviseIn(Strict):
    anchor: dict[str, Any] = Field(description="objective, completion_criteria, constraints")
    why: str = Field(default="", description="needed, but for a dry run")
    expected_sha256: Line = Field(description="of the anchor that you saw: 409 if it is another")
    dry_run: bool = False


# Messages, calls, events -------------------------------------------------------------------


class MessageOut(Schema):
    sequence: int
    parent_sequence: int | None
    depth: int
    role: str
    source: str
    parts: list[dict[str, Any]]
    tool_call_id: str
    name: str
    is_error: bool
    goal_id: str
    turn: int
    branch_type: str
    branch_id: str
    tokens: int
    usage: dict[str, Any] | None
    duration_ms: int | None
    full_output: str | None
    metadata: dict[str, Any]
    created_at: str


class MessagePage(Schema):
    items: list[MessageOut]
    next: int | None = Field(description="pass it as `after` for the next page")


class CallOut(Schema):
    number: int
    provider: str
    model: str
    projection: str
    sha256: str = Field(description="of the exact bytes that were sent")
    estimated_tokens: int
    exact: bool
    composition: dict[str, int]
    branch_id: str
    after_sequence: int
    status: str
    message_sequence: int | None
    usage: dict[str, Any] | None
    finish_reason: str
    first_token_ms: int | None
    duration_ms: int | None
    tries: int
    error: str
    cost: float | None
    created_at: str


class CallPage(Schema):
    items: list[CallOut]
    next: int | None


class WindowOut(Schema):
    sha256: str
    holds: bool = Field(description="whether the payload rebuilt now has that hash")
    payload: Any


class EventPage(Schema):
    items: list[dict[str, Any]]
    next: int | None


# Commands ----------------------------------------------------------------------------------


class CommandIn(Strict):
    """An act and what it needs; what belongs to another act is an error."""

    name: Literal["say", "pause", "resume", "stop", "rewind", "edit", "compact", "policy", "inject"]
    text: Words | None = Field(default=None, description="`say`, `edit`: the words")
    to: Number | None = Field(default=None, description="`rewind`: a message; 0: before the first")
    head: Number | None = Field(
        default=None, description="`rewind`, `edit`: the head that you saw; refused if it moved"
    )
    why: Line | None = Field(default=None, description="`rewind`: for the record")
    sequence: Number | None = Field(default=None, description="`edit`: a message by a person")
    resume: bool | None = Field(default=None, description="`edit`: go on from it (default)")
    policy: Line | None = Field(default=None, description="`policy`; `compact`: for this once")
    skill: Line | None = Field(default=None, description="`inject`")

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"name": "say", "text": "Look at the tests first."}},
    )


class CommandOut(Schema):
    id: int
    name: str
    arguments: dict[str, Any]
    by: str | None
    status: str
    result: str
    created_at: datetime
    applied_at: datetime | None


class CommandPage(Schema):
    items: list[CommandOut]
    next: int | None


# Going back, the window, knowledge ---------------------------------------------------------


class ReceiptOut(Schema):
    asked: int
    to: int = Field(description="the safe point that it leads to")
    head: int
    leaves: int = Field(description="messages of the main path that are left")
    brings_back: int = Field(description="messages that are on the path again")
    goals_done: int
    goals_total: int
    current_goal: str
    skills: list[str]
    calls: int
    checked: int
    held: int
    first_broken: int | None
    then: int | None = Field(description="the call that was made right there")
    then_sha256: str
    now_sha256: str
    equal: bool | None
    difference: str
    state: Literal["holds", "partial", "differs", "no_calls"]


class ForkIn(Strict):
    at: Number = Field(description="the last message that both have")


class PreviewOut(Schema):
    policy: str
    tokens_before: int
    tokens_after: int
    tokens_saved: int
    floor: int = Field(description="tokens that nothing can remove")
    limit: int | None = Field(description="the most that can be sent")
    edits: list[dict[str, Any]]
    users_whole: list[int]
    users_quoted: list[int]
    cached_lost: int
    stubbed: bool = Field(description="a model would write a summary; a stub stands for it")
    worth_it: bool
    why: str


class CompactionPage(Schema):
    items: list[dict[str, Any]]
    next: int | None


class InjectionOut(Schema):
    number: int
    at: str
    what: str
    why: str
    fired: bool
    call: int | None
    message: int | None
    tokens: int
    window: Literal["whole", "changed", "gone", "later", ""]


class InjectionPage(Schema):
    items: list[InjectionOut]
    next: int | None


class KnowledgeOut(Schema):
    id: int
    name: str
    text: str
    sources: list[int]
    goal_id: str
    status: str
    judge: str = Field(description="a person's name, or knowledge_eval")
    why: str
    created_at: datetime
    judged_at: datetime | None


class KnowledgePage(Schema):
    items: list[KnowledgeOut]
    next: int | None


class JudgementIn(Strict):
    status: Literal["accepted", "rejected"]
    why: Annotated[str, Field(max_length=2000), AfterValidator(_no_nul)] = ""


# Imports, providers, tokens ----------------------------------------------------------------


class ImportedOut(Schema):
    trace: str
    messages: int = Field(description="stored messages of the trace itself")
    tool_calls: int = Field(description="distinct calls")
    side_branches: int
    children: int
    skipped_lines: int


class TokenIn(Strict):
    name: Annotated[str, Field(max_length=100), AfterValidator(_no_nul)]


class TokenOut(Schema):
    id: int
    name: str
    prefix: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewTokenOut(TokenOut):
    token: str = Field(description="shown now and never again")


class Problem(Schema):
    detail: str
