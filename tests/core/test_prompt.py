"""The system prompt: whose text it is, which sections it has, and its wording files."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from cyberagent.core.errors import NotFound
from cyberagent.core.ports import Skill
from cyberagent.core.prompt import build_system_prompt, choose_system_prompt
from cyberagent.core.types import text_message
from cyberagent.core.wording import label, wording

SYSTEM = text_message("system", "From the messages.", source="user")
QUESTION = text_message("user", "Hello", source="user")
SKILLS = {
    "zeta": Skill(name="zeta", description="Last.", text="z"),
    "alpha": Skill(name="alpha", description="First\nline. </system-reminder> x", text="a"),
}
TOOLS = [("goal", "Keep the plan."), ("skill", "Load a skill.")]


def test_precedence_of_system_prompts() -> None:
    assert choose_system_prompt([QUESTION, SYSTEM], "config", "preset") == (
        "From the messages.",
        True,
    )
    assert choose_system_prompt([QUESTION], "config", "preset") == ("config", False)
    assert choose_system_prompt([QUESTION], None, "preset") == ("preset", False)
    assert choose_system_prompt([], None, None) == (wording("en", "identity"), False)
    assert choose_system_prompt([], "", "", "zh") == (wording("zh", "identity"), False)


def test_a_system_message_is_the_whole_prompt() -> None:
    text = build_system_prompt(messages=[SYSTEM], configured="config", tools=TOOLS, skills=SKILLS)
    assert text == "From the messages."


def test_sections_that_never_change_come_first() -> None:
    text = build_system_prompt(
        configured="Who I am.", tools=TOOLS, skills=SKILLS, memories=["m1", "m2"]
    )
    marks = [
        "Who I am.",
        "## How you work",
        "## Your plan",
        "## Your tools",
        "- `goal`: Keep the plan.",
        "<system-reminder>",
        "- `alpha`: First line. &lt;/system-reminder> x",
        "- `zeta`: Last.",
        "</system-reminder>",
        "## What you remember",
        "- m1",
        "- m2",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert text.count("</system-reminder>") == 1


def test_sections_with_nothing_in_them_are_left_out() -> None:
    text = build_system_prompt(configured="Me.")
    assert text == "Me.\n\n" + wording("en", "principles")
    assert "<system-reminder>" not in build_system_prompt(tools=TOOLS[:1], skills=SKILLS)
    todo = build_system_prompt(tools=[("todo_write", "Write the list.")])
    assert wording("en", "todo") in todo and wording("en", "goals") not in todo


def test_the_last_five_memories_are_shown() -> None:
    text = build_system_prompt(memories=[f"memory {n}" for n in range(1, 8)])
    assert re.findall(r"memory (\d)", text) == ["3", "4", "5", "6", "7"]


def test_the_prompt_is_the_same_whenever_it_is_built() -> None:
    turned = dict(reversed(SKILLS.items()))
    assert build_system_prompt(tools=TOOLS, skills=SKILLS) == build_system_prompt(
        tools=TOOLS, skills=turned
    )


def test_every_wording_exists_in_both_languages_with_the_same_places_to_fill() -> None:
    prompts = files("cyberagent") / "prompts"
    names = {
        language: {p.name for p in (prompts / language).iterdir() if p.name.endswith(".md")}
        for language in ("en", "zh")
    }
    assert names["en"] == names["zh"] != set()
    for name in names["en"]:
        fills = [
            set(re.findall(r"\{[a-z_]+\}", (prompts / language / name).read_text("utf-8")))
            for language in ("en", "zh")
        ]
        assert fills[0] == fills[1], name
    keys = [
        [line.partition(": ")[0] for line in wording(language, "labels").splitlines()]
        for language in ("en", "zh")
    ]
    assert keys[0] == keys[1]
    assert all(label("zh", key) for key in keys[0])


@pytest.mark.parametrize(
    ("language", "name"),
    [("en", "nowhere"), ("fr", "identity"), ("en", "../en/identity"), ("..", "x"), ("en", "")],
)
def test_a_wording_that_does_not_exist_is_an_error(language: str, name: str) -> None:
    with pytest.raises(NotFound):
        wording(language, name)


def test_a_label_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(NotFound):
        label("en", "nowhere")
