"""What all tests share: the mark ``rows``, how many examples property tests try, and real
servers for those that ask for them.

Which settings they run on stands in ``tests/settings.py``.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from django.db import connection
from django.test import TransactionTestCase

from tests import examples, services

examples.load_profile()

ROW_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "live_server"}


def touches_rows(item: pytest.Item) -> bool:
    case = getattr(item, "cls", None)
    return (
        item.get_closest_marker("django_db") is not None
        or bool(ROW_FIXTURES.intersection(getattr(item, "fixturenames", ())))
        or (isinstance(case, type) and issubclass(case, TransactionTestCase))
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if touches_rows(item):
            item.add_marker("rows")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Hand on how many examples a property test tried, from workers too."""
    report = yield
    told = getattr(item, "hypothesis_statistics", "")
    if told and report.when == "teardown":
        report.user_properties.append(("examples", examples.tried(told)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many examples property tests tried; in a soak, in which file how many."""
    found = [
        (report.nodeid.partition("::")[0], count)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "teardown"
        for name, count in report.user_properties
        if name == "examples"
    ]
    if not found:
        return
    if examples.PROFILE == "soak":
        for name, group in groupby(sorted(found), key=lambda one: one[0]):
            counts = [count for _, count in group]
            terminalreporter.line(f"{sum(counts):>10,} examples of {len(counts):>3} tests  {name}")
    total = sum(count for _, count in found)
    terminalreporter.line(f"{total:,} examples of {len(found)} property tests")


def pytest_report_header() -> str:
    if services.ON_SERVICES:
        return "services: PostgreSQL and a Redis-protocol server"
    return "services: SQLite, everything in one process"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Ends what is still connected before the test database is dropped.

    The thread in which an async test's rows were read keeps its connection when the test's event
    loop has ended; PostgreSQL would wait five seconds for it and then refuse to drop.
    """
    yield
    with django_db_blocker.unblock():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a real PostgreSQL server, for server processes that a test starts."""
    with services.postgres() as url:
        yield url


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """URL of a new, empty database on that server: a DATABASE_URL of one test's own."""
    with services.database(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a real Redis-protocol server: a REDIS_URL. Tests of one process share it."""
    with services.redis() as url:
        yield url


def pytest_make_parametrize_id(val: object) -> str | None:
    """Functions are named as such: their repr holds an address, which differs between the
    processes that share the tests."""
    return getattr(val, "__name__", "function").strip("<>") if callable(val) else None
