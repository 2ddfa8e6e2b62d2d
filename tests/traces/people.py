"""People, traces and API clients for tests of access, API and terminal."""

import json
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from cyberagent.core.events import Session
from cyberagent.core.ports import NewTrace
from cyberagent.core.types import Message, Text, ToolCall, text_message
from traces import access, write
from traces.models import Trace


def person(name: str, role: str | None = None) -> User:
    user = User.objects.create_user(name)
    if role is not None:
        access.set_role(user, role)
    return user


class Api:
    """Calls ``/api/v1`` as one person: with a token, or with a browser's session."""

    def __init__(self, user: User | None = None, *, session: bool = False) -> None:
        self.client = Client(enforce_csrf_checks=True, raise_request_exception=False)
        self.headers: dict[str, str] = {}
        if user is not None and session:
            self.client.force_login(user)
        elif user is not None:
            _, token = access.create_token(user, "tests")
            self.headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str, /, **query: Any) -> Any:
        return self.client.get(f"/api/v1{path}", query, headers=self.headers)

    def post(self, path: str, body: Any) -> Any:
        """``body``: a value to be sent as JSON, or the bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(
            f"/api/v1{path}", data, content_type="application/json", headers=self.headers
        )

    def upload(self, path: str, files: dict[str, Any]) -> Any:
        return self.client.post(f"/api/v1{path}", files, headers=self.headers)

    def delete(self, path: str) -> Any:
        return self.client.delete(f"/api/v1{path}", headers=self.headers)


def stored_trace(
    owner: User | None = None,
    mission: str = "Count the files",
    status: str = "completed",
    **columns: Any,
) -> str:
    """The id of a trace without messages."""
    new = NewTrace(mission=mission, status=status)
    return write.create_trace(new, owner_id=owner.pk if owner else None, **columns).id


def conversation(trace_id: str) -> None:
    """Five messages: four on the main path (1, 2, 3, 5), number 4 on a side branch ``b1``."""
    call = ToolCall(id="c1", name="glob_files", arguments='{"pattern": "*"}')
    write.append(trace_id, [user("How many files?")], [Session(how="started")])
    write.append(trace_id, [assistant(Text("I look."), call)])
    result = Message(role="tool", parts=(Text("a\nb"),), source="tool", tool_call_id="c1")
    write.append(trace_id, [result])
    aside = text_message(
        "assistant", "Worth keeping: two files.", source="model",
        branch_type="reflection", branch_id="b1",
    )  # fmt: skip
    write.append(trace_id, [aside], move_head=False)
    write.append(trace_id, [assistant(Text("Two."))])


def user(text: str) -> Message:
    return text_message("user", text, source="user")


def assistant(*parts: Any) -> Message:
    return Message(role="assistant", parts=tuple(parts), source="model")


def trace_row(trace_id: str) -> Trace:
    return Trace.objects.get(pk=trace_id)
