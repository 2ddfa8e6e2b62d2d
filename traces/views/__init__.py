"""The pages of traces. Each view finds the trace for this person, calls one domain function and
renders. Source: docs/pages.md."""
