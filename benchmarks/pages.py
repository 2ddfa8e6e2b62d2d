"""Opening the run page of 1,000 and of 100,000 messages, as the server sees it.

    python -m benchmarks.pages

Bars: the long one at most 1.5 times the short one, at most 100 KB of HTML and 12 queries.
"""

from __future__ import annotations

from benchmarks.common import long_trace, medians, product, report

SHORT, LONG = 1_000, 100_000


def main() -> None:
    with product():
        from django.contrib.auth.models import User
        from django.db import connection
        from django.test import Client
        from django.test.utils import CaptureQueriesContext

        person = User.objects.create_superuser("bench")
        client = Client(headers={"host": "localhost"})
        client.force_login(person)
        traces = {n: long_trace(n, per_goal=n // 50, owner=person) for n in (SHORT, LONG)}

        def opened(n: int) -> bytes:
            answer = client.get(f"/runs/{traces[n].pk}/")
            assert answer.status_code == 200, answer.status_code
            return answer.content

        ms = medians({f"{n:,}": lambda n=n: opened(n) for n in (SHORT, LONG)})
        with CaptureQueriesContext(
            connection,
        ) as queries:
            size = len(opened(LONG))
        ratio = ms[f"{LONG:,}"] / ms[f"{SHORT:,}"]
        report(
            "The run page on the server",
            [
                *((f"{n} messages, ms", f"{value:.1f}") for n, value in ms.items()),
                ("HTML of the long one", f"{size:,} bytes"),
                ("queries", str(len(queries))),
            ],
            within=ratio <= 1.5 and size <= 100_000 and len(queries) <= 12,
            ms={n: round(value, 2) for n, value in ms.items()},
            ratio=round(ratio, 2),
            html_bytes=size,
            queries=len(queries),
        )


if __name__ == "__main__":
    main()
