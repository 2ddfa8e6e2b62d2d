"""What was read of a trace, kept in the process and read on from where the last look ended.

Several threads read at once. A value is never changed: who reads on makes a new one, and the
newest is kept, so that nobody sees half of one and nothing is taken twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class ReadUpTo(Protocol):
    @property
    def upto(self) -> int:
        """Number of the last thing that the value was read from; 0: nothing yet."""
        ...


T = TypeVar("T", bound=ReadUpTo)


class Kept(Generic[T]):
    """The newest value of each of the ``most`` traces that were asked for last."""

    def __init__(self, nothing: T, most: int) -> None:
        self._nothing = nothing
        self._most = most
        self._values: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, trace_id: str) -> T:
        with self._lock:
            if trace_id not in self._values:
                return self._nothing
            self._values.move_to_end(trace_id)
            return self._values[trace_id]

    def keep(self, trace_id: str, value: T) -> None:
        """Nothing happens where another thread has read further meanwhile."""
        with self._lock:
            if self._values.get(trace_id, self._nothing).upto >= value.upto:
                return
            self._values[trace_id] = value
            self._values.move_to_end(trace_id)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
