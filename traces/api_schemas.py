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
    name: Literal["say", "pause", "resume", "stop"]
    text: Words | None = Field(default=None, description="what to say; only for `say`")

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
