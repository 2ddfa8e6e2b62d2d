"""What the lab measures of a policy over a trace. Source: docs/lab.md, "What is measured"."""

from __future__ import annotations

from dataclasses import dataclass

from cyberagent.core.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """One pass: before which call (from 1 up), in which sizes, what each strategy did."""

    call: int
    tokens_before: int
    tokens_after: int
    success: bool
    why: str
    edits: tuple[tuple[str, str, int, int], ...]

    def to_json(self) -> dict[str, Json]:
        edits = [
            {"strategy": s, "what": w, "messages": n, "tokens_saved": t}
            for s, w, n, t in self.edits
        ]
        return {
            "call": self.call,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "success": self.success,
            "why": self.why,
            "edits": edits,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One policy over one trace; docs/lab.md, "What is measured", says how each is counted.

    ``passes`` succeeded, ``failed_passes`` changed nothing. ``overflows``: calls whose window
    does not fit the context window less the output reserve. ``recall``: None where nothing was
    used again. ``hidden``: messages that the last window holds in no form; ``shortened``: those
    that stand in it in another form. ``seconds``: spent in passes.
    """

    policy: str
    calls: int = 0
    peak_tokens: int = 0
    mean_tokens: float = 0.0
    passes: int = 0
    failed_passes: int = 0
    summary_calls: int = 0
    prefix_share: float = 0.0
    price: float = 0.0
    recall: float | None = None
    user_messages: int = 0
    user_messages_kept: int = 0
    violations: int = 0
    checked: int = 0
    overflows: int = 0
    hidden: int = 0
    shortened: int = 0
    seconds: float = 0.0
    problems: tuple[str, ...] = ()
    log: tuple[PassReport, ...] = ()

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {name: getattr(self, name) for name in _MEASURED}
        out["problems"] = list(self.problems)
        out["log"] = [p.to_json() for p in self.log]
        return out


_MEASURED = (
    "peak_tokens", "mean_tokens", "passes", "summary_calls", "prefix_share", "price", "recall",
    "user_messages_kept", "violations", "seconds", "calls", "failed_passes", "user_messages",
    "checked", "overflows", "hidden", "shortened",
)  # fmt: skip
