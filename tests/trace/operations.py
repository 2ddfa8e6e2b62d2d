"""Goal operations at random, right ones and wrong ones."""

from __future__ import annotations

from hypothesis import strategies as st

IDS = st.sampled_from(["1", "2", "3", "1.1", "1.2", "2.1", "1'", "2'", "1.1'", "1.1.1", "4.4"])
OPERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "add": st.sampled_from(["a", "a, b", "a,,b", ["x, y"], ""]),
        "after": IDS,
        "under": IDS,
        "focus": IDS,
        "done": st.one_of(IDS, st.just("it worked")),
        "summary": st.just("a summary"),
        "abandon": st.one_of(IDS, st.just("it did not work")),
    },
)
