"""What the tests of rows and runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traces.threads import close_connections


@pytest.fixture
def threads(transactional_db: None) -> Iterator[None]:
    """For tests that leave work to the threads of the process: their connections see committed
    rows alone, and are closed before the rows are cleared."""
    yield
    close_connections()
