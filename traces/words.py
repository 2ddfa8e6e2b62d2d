"""Sentences of the engine that pages show, noted here so that they are translated.

The engine itself speaks English and knows no Django; templates translate what it says where it
is one of these. ``tests/traces/test_translations.py`` holds the list against the engine.
"""

from __future__ import annotations

from django.utils.translation import gettext_noop

ENGINE = (
    gettext_noop("Long work with a plan: reads and writes files in its workspace"),
    gettext_noop("Short turns with a todo list; five layers of compaction"),
    gettext_noop("A todo list; old tool output is pruned, then all is summarised"),
    gettext_noop("Questions about files: reads, never writes"),
    gettext_noop("Work shared out to sub-agents under one root task, each result validated"),
    gettext_noop("Judges the work of another agent by its packet alone"),
    gettext_noop("OpenAI and compatible endpoints"),
    gettext_noop("Set OPENAI_API_KEY, or OPENAI_BASE_URL for another endpoint."),
    gettext_noop("Anthropic"),
    gettext_noop("Set ANTHROPIC_API_KEY."),
    gettext_noop("A small model on this machine (a few words a second; not clever)"),
    gettext_noop("the local model is not installed: install cyberagent[local]"),
    gettext_noop("Scripted: plays a written script, tools run"),
    gettext_noop("Replay: plays the model's turns of another run"),
    gettext_noop("Claude Code session"),
    gettext_noop("chat-completions messages"),
    gettext_noop("trace folder or zip"),
)
