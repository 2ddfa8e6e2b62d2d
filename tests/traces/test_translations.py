"""Every sentence that a page shows has its Chinese, and the compiled file is of this state."""

from __future__ import annotations

import re
from pathlib import Path

from django.utils import translation
from django.utils.translation import gettext

from cyberagent import presets
from cyberagent.providers import choosing
from cyberagent.trace.formats import FORMATS
from traces import words

ROOT = Path(__file__).resolve().parent.parent.parent
CATALOGUE = ROOT / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
UNCHANGED = {"Anthropic", "Tokens", "tokens", "%(n)s tokens", "of %(n)s tokens", "of %(n)s"}


def entries() -> dict[str, str]:
    """Message → translation, as the catalogue's lines say; plurals by their singular."""
    text = CATALOGUE.read_text()
    found = re.findall(
        r'^msgid "(.+)"\n(?:msgid_plural ".*"\n)?msgstr(?:\[0\])? "(.*)"$', text, re.MULTILINE
    )
    return dict(found)


def test_every_entry_is_translated() -> None:
    missing = [
        message
        for message, chinese in entries().items()
        if not re.search(r"[\u4e00-\u9fff]", chinese)
        and message not in UNCHANGED
        and re.search(r"[A-Za-z]{2}", re.sub(r"%\(\w+\)[sd]", "", message))
        and not message.endswith(" messages")
    ]
    assert missing == []


def test_placeholders_survive_translation() -> None:
    def names(text: str) -> list[str]:
        return sorted(re.findall(r"%\(\w+\)[sd]|\{\w+\}", text))

    wrong = [m for m, chinese in entries().items() if chinese and names(m) != names(chinese)]
    assert wrong == []


def test_every_text_of_the_templates_is_in_the_catalogue() -> None:
    known = {message.replace('\\"', '"') for message in entries()}
    texts: set[str] = set()
    for template in (ROOT / "templates").rglob("*.html"):
        source = template.read_text()
        texts |= set(re.findall(r"""{% translate "([^"]+)\"""", source))
        texts |= set(re.findall(r"""{% translate '([^']+)'""", source))
    assert texts
    assert sorted(texts - known) == []


def test_what_the_engine_says_on_pages_is_translated() -> None:
    said = {p.label for p in presets.PRESETS.values()} | {f.title for f in FORMATS.values()}
    for status in choosing.provider_status({}):
        if status.name != "replay":
            said |= {status.label, status.needs} - {""}
    assert sorted(said - set(words.ENGINE)) == []


def test_the_compiled_catalogue_speaks_chinese() -> None:
    with translation.override("zh-hans"):
        assert gettext("Runs") == "运行"
        assert gettext("Questions about files: reads, never writes") == "关于文件的提问：只读，不写"
