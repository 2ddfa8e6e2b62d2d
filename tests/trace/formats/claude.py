"""Writes sessions in Claude Code's format, a line at a time, for tests that read them."""

import json
from itertools import count


class Session:
    """Lines of a session file; each entry hangs on the one before unless ``parent`` is given."""

    def __init__(self, **common):
        self.lines = []
        self._common = {"sessionId": "s-1", "isSidechain": False, **common}
        self._last = None
        self._numbers = count(1)

    def entry(self, kind, *, parent=..., **fields):
        uuid = fields.pop("uuid", f"{self._common.get('agentId', 'u')}-{next(self._numbers)}")
        self.lines.append(
            json.dumps(
                {
                    **self._common,
                    "type": kind,
                    "uuid": uuid,
                    "parentUuid": self._last if parent is ... else parent,
                    "timestamp": "2026-01-05T10:00:00.000Z",
                    **fields,
                }
            )
        )
        self._last = uuid
        return uuid

    def human(self, content, **fields):
        return self.entry("user", message={"role": "user", "content": content}, **fields)

    def says(self, *blocks, id="m-1", usage=None, **fields):
        message = {"role": "assistant", "model": "claude-x", "id": id, "content": list(blocks)}
        if usage:
            message["usage"] = usage
        return self.entry("assistant", message=message, **fields)

    def result(self, call_id, content, **fields):
        error = {"is_error": True} if fields.pop("is_error", False) else {}
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content, **error}
        return self.human([block], **fields)

    def save(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in self.lines))
        return path


def text(words):
    return {"type": "text", "text": words}


def call(id, name="Read", **arguments):
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}
