"""Every error the engine raises on purpose, drawn as a tree.

CyberAgentError                 something a person or a model can be told as it stands
├── InvalidInput                what was handed in is malformed; nothing was changed
│   ├── InvalidConfig           a RunConfig or preset that cannot work
│   ├── InvalidGoalOperation    the goal tool was used wrongly; the plan is unchanged
│   ├── InvalidScript           a scripted provider's script is malformed
│   ├── ImportRefused           a file is not a transcript of any known form
│   ├── PathRefused             a path leaves the workspace, or a command is not allowed
│   └── ProtocolRefused         the recursive task protocol does not allow it
│       ├── InvalidTaskValue    an anchor, brief, report … is malformed; has the field, the limit
│       ├── RefRefused          a ContextRef that this trace does not hold
│       └── TreeTooLarge        the tree of traces would be too deep or have too many traces
├── NotFound                    no such trace, message, call, skill, preset, goal …
├── Conflict                    the state changed meanwhile (head moved, lease lost)
│   └── LeaseLost               another owner drives this trace now
├── ToolFailed                  a tool could not do its work; the model is told
├── WindowTooLarge              the window cannot be made to fit; has the numbers
└── ProviderError               a model call failed
    ├── RateLimited             429
    ├── Overloaded              529
    ├── ProviderTimeout         408, 504, nothing for too long
    ├── ConnectionBroken        5xx, refused, reset, a stream that ended half-way
    ├── PromptTooLong           413, "context length" and its many wordings
    ├── TokenExhausted          the answer hit the output limit with nothing usable
    ├── PayloadRefused          our own payload checker found a broken rule
    └── ModelError              all else; carries the provider's own words
"""

from __future__ import annotations


class CyberAgentError(Exception):
    """Base of all: ``str(error)`` is a plain English sentence for people."""


class InvalidInput(CyberAgentError):
    pass


class InvalidConfig(InvalidInput):
    pass


class InvalidGoalOperation(InvalidInput):
    pass


class InvalidScript(InvalidInput):
    pass


class ImportRefused(InvalidInput):
    pass


class PathRefused(InvalidInput):
    pass


class ProtocolRefused(InvalidInput):
    pass


class InvalidTaskValue(ProtocolRefused):
    """``what`` is the kind of value ("TaskBrief"), ``field`` where in it ("criteria[2].met", ""
    for the whole), ``limit`` the bound that was crossed, where it was one."""

    def __init__(self, what: str, field: str, why: str, *, limit: int | None = None) -> None:
        super().__init__(f"{what}: {field} {why}" if field else f"{what} {why}")
        self.what, self.field, self.limit = what, field, limit


class RefRefused(ProtocolRefused):
    pass


class TreeTooLarge(ProtocolRefused):
    pass


class NotFound(CyberAgentError):
    def __init__(self, what: str, name: object) -> None:
        super().__init__(f"there is no {what} {name!r}")
        self.what, self.name = what, name


class Conflict(CyberAgentError):
    pass


class LeaseLost(Conflict):
    pass


class ToolFailed(CyberAgentError):
    pass


class WindowTooLarge(CyberAgentError):
    def __init__(self, tokens: int, limit: int, floor: int | None = None) -> None:
        self.tokens, self.limit, self.floor = tokens, limit, floor
        part = "" if floor is None else f", of which {floor:,} cannot be removed"
        super().__init__(f"the window has {tokens:,} tokens{part}; {limit:,} fit")


class LimitReached(CyberAgentError):
    pass


class ProviderError(CyberAgentError):
    """A failed model call. ``status`` is the HTTP status where there was one; ``retry_after``
    seconds as the provider asked; ``retryable``: the same payload may be sent again."""

    retryable = False

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class RateLimited(ProviderError):
    retryable = True


class Overloaded(ProviderError):
    retryable = True


class ProviderTimeout(ProviderError):
    retryable = True


class ConnectionBroken(ProviderError):
    retryable = True


class PromptTooLong(ProviderError):
    pass


class TokenExhausted(ProviderError):
    pass


class PayloadRefused(ProviderError):
    pass


class ModelError(ProviderError):
    pass
