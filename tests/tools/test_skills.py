"""Skills: read as leniently as they are written, and loaded whole."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.errors import InvalidInput
from cyberagent.core.ports import Skill
from cyberagent.tools.builtin.skill import skill
from cyberagent.tools.skills import builtin_skills, is_skill_name, load_skills, parse_skill
from tests.tools.helpers import call, error, make_context, ok

ROOT = Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT.parent / "shared" / "corpus" / "skills"


@pytest.mark.parametrize(
    ("text", "name", "description"),
    [
        ("---\nname: tidy-up\ndescription: Tidies.\n---\n# Body\n", "tidy-up", "Tidies."),
        ("---\r\nname: a\r\ndescription: CRLF\r\n---\r\nBody\r\n", "a", "CRLF"),
        ("\ufeff---\nname: bom\ndescription: d\n---\nBody", "bom", "d"),
        ("# Title\n\nFirst paragraph\nof it.\n\nMore", "the-folder", "First paragraph of it."),
        ("---\ndescription: No name\n---\nBody", "the-folder", "No name"),
        ("---\nname: SEO Optimizer\ndescription: d\n---\nBody", "the-folder", "d"),
        ("---\nname: ask_strategy\n---\nBody here", "ask_strategy", "Body here"),
        ("---\nname: a\ndescription: >-\n  folded\n  text\n---\nBody", "a", "folded text"),
        ("---\nname: a\ndescription: |\n  one\n  two\n---\nBody", "a", "one two"),
        ("---\nname: a\ndescription: Use when: it fits\n---\nBody", "a", "Use when: it fits"),
        ("---\nname: a\nbad: [\ndescription: >\n  x: y\n  z\n---\nBody", "a", "x: y z"),
        ('---\nname: "a"\nd: x: y\ndescription: "q"\n---\nBody', "a", "q"),
        ("---\nname: 42\ndescription: 2024-99-99\n---\nBody", "42", "2024-99-99"),
        ("---\nname: a\nallowed-tools: [x, y]\nmetadata:\n  k: v\n---\nBody", "a", "Body"),
        ("---\nname: a\ndescription: 处理中文 🎉\n---\n正文", "a", "处理中文 🎉"),
        ("---\nnever closed\n", "the-folder", "--- never closed"),
        ("---\n- a\n- list\n---\nBody", "the-folder", "Body"),
    ],
)
def test_front_matter_is_read_as_it_is_found_in_the_wild(
    text: str, name: str, description: str
) -> None:
    found = parse_skill(text, "The Folder")
    assert (found.name, found.description) == (name, description)


def test_the_text_of_a_skill_is_its_body() -> None:
    found = parse_skill("---\nname: a\n---\n\n# Do\r\n\r\n---\n\nthis\n\n", "x")
    assert found.text == "# Do\n\n---\n\nthis\n"


def test_a_description_over_the_limit_is_cut() -> None:
    found = parse_skill(f"---\nname: a\ndescription: {'x' * 2_000}\n---\nBody", "a")
    assert found.description == "x" * 1_023 + "…"


def test_a_skill_without_text_or_name_is_refused() -> None:
    for text, name in (("", "a"), ("---\nname: a\n---\n  \n", "a"), ("Body", "???")):
        with pytest.raises(InvalidInput):
            parse_skill(text, name)


@given(st.text(), st.text(min_size=1))
def test_no_text_makes_the_reader_fail_in_another_way(text: str, name: str) -> None:
    for whole in (text, f"---\n{text}\n---\nBody"):
        try:
            found = parse_skill(whole, name)
        except InvalidInput:
            continue
        assert is_skill_name(found.name)
        assert len(found.description) <= 1_024
        assert "\n" not in found.description


def test_yaml_nested_without_end_is_no_crash() -> None:
    text = f"---\nname: a\ndeep: {'[' * 9_000}\n---\nBody"
    assert parse_skill(text, "x").name == "a"


def test_a_folder_holds_files_and_folders_of_skills(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "single.md").write_text("---\ndescription: One file\n---\nBody\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "SKILL.md").write_text("---\nname: other-name\n---\nBody\n")
    (tmp_path / "twin.md").write_text("---\nname: single\n---\nBody\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.txt").write_text("no skill")
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    outside = tmp_path.parent / "outside.md"
    outside.write_text("secret")
    (tmp_path / "link.md").symlink_to(outside)
    with caplog.at_level(logging.WARNING):
        found = load_skills(tmp_path)
    assert list(found) == ["other-name", "single"]
    assert found["single"].description == "One file"
    assert [r.args[0] for r in caplog.records if isinstance(r.args, tuple)] == [
        "latin.md",
        "link.md",
        "twin.md",
    ]
    assert load_skills(tmp_path / "nowhere") == {}


def test_skills_come_with_the_package() -> None:
    found = builtin_skills()
    assert set(found) == {"plan-well", "write-findings"}
    assert all(s.description and len(s.text) > 500 for s in found.values())


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real skills is not here")
def test_every_real_skill_is_read() -> None:
    folders = [p for p in CORPUS.iterdir() if (p / "SKILL.md").is_file()]
    found = load_skills(CORPUS)
    assert len(found) == len(folders) > 0
    for folder in folders:
        lines = (folder / "SKILL.md").read_text(encoding="utf-8-sig").splitlines()
        # Independent of our reader: wherever strict YAML reads a valid name, it is the name.
        if lines[0].strip() == "---":
            end = next(i for i, line in enumerate(lines[1:], 1) if line.strip() == "---")
            try:
                matter = yaml.safe_load("\n".join(lines[1:end]))
            except yaml.YAMLError:
                continue
            name = matter.get("name")
            if isinstance(name, str) and name.replace("-", "").isalnum() and name.islower():
                assert name in found


# The tool ------------------------------------------------------------------------------------


async def test_a_skill_is_loaded_whole_and_never_shortened() -> None:
    skills = {"a": Skill(name="a", description="d", text="t" * 20_000)}
    outcome = await call(skill, make_context(skills=skills), name="a")
    assert (outcome.text, outcome.shorten) == ("t" * 20_000, False)


async def test_a_skill_has_a_limit_of_its_own() -> None:
    skills = {"a": Skill(name="a", description="d", text="t" * 50_007)}
    text = await ok(skill, make_context(skills=skills), name="a")
    assert text == "t" * 50_000 + "\n[7 characters left out]"


async def test_an_unknown_skill_is_answered_with_those_that_exist() -> None:
    context = make_context(skills=builtin_skills())
    text = await error(skill, context, name="nope")
    assert text == "there is no skill `nope`; there are: `plan-well`, `write-findings`"
    assert "there are: none" in await error(skill, make_context(), name="nope")
