"""A page of 50 messages at the end of a path of 1,000 and of 100,000 messages.

    python -m benchmarks.paths

Bar: the deep one at most 1.5 times the shallow one.
"""

from __future__ import annotations

from benchmarks.common import long_trace, medians, product, report

SHALLOW, DEEP, PAGE = 1_000, 100_000, 50


def main() -> None:
    with product():
        from traces import paths

        traces = {n: long_trace(n) for n in (SHALLOW, DEEP)}
        ms = medians(
            {f"{n:,}": lambda n=n: paths.page(traces[n], n - PAGE + 1, n) for n in (SHALLOW, DEEP)},
            turns=60,
        )
        ratio = ms[f"{DEEP:,}"] / ms[f"{SHALLOW:,}"]
        report(
            "A page of the main path, ms",
            [(f"at depth {n}", f"{value:.2f}") for n, value in ms.items()],
            within=ratio <= 1.5,
            ms={n: round(value, 3) for n, value in ms.items()},
            ratio=round(ratio, 2),
        )


if __name__ == "__main__":
    main()
