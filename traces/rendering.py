"""From what a transcript holds to HTML that may stand on a page: Markdown, code, JSON, images.

Nothing of a transcript is trusted: Markdown is made without raw HTML, then sanitised by nh3 once
more; everything else is escaped. Long texts are shortened here and said to be so; the raw view
and the export have them whole. Source: docs/pages.md, "What a transcript may show".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import nh3
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from cyberagent.core.types import Image, Json, clean_text

LONGEST = 60_000
"""Characters of one text that a page shows; an inspector that freezes helps nobody."""

_HIGHLIGHTED = 20_000
_JSON_VALUES = 1_500
_JSON_DEPTH = 24
_DATA_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+\Z")

_TAGS = {
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "s", "del", "code",
    "pre", "blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "a",
    "img", "span", "div",
}  # fmt: skip
_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title"},
    "code": {"class"},
    "span": {"class"},
    "div": {"class"},
    "ol": {"start"},
}


def page_text(text: str) -> str:
    """``text`` as UTF-8 and an HTML parser can hold it: lone surrogates become U+FFFD, NUL the
    sign for it."""
    return clean_text(text).replace("\0", "\u2400")


def prose(text: str) -> SafeString:
    """Markdown as sanitised HTML; links leave without a referrer, images only from ``data:``."""
    html = _MARKDOWN.render(page_text(text[:LONGEST]))
    clean = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=_attribute,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
    )
    return _marked(clean, text)


def plain(text: str) -> SafeString:
    """``text`` as it is, in a block of its own."""
    return _marked(f'<pre class="block">{escape(page_text(text[:LONGEST]))}</pre>', text)


def code(text: str, language: str) -> SafeString:
    return _safe(f'<pre class="block hl">{_highlighted(page_text(text), language)}</pre>')


def tool_output(text: str) -> SafeString:
    """A tool's output: JSON folded, a diff coloured, all else as it is."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        try:
            return json_html(json.loads(text))
        except (ValueError, RecursionError):
            pass
    if text.startswith(("diff ", "--- ", "@@ ")) or "\n@@ " in text[:2000]:
        return code(text[:LONGEST], "diff")
    return plain(text)


def json_html(value: Json) -> SafeString:
    """A value as a tree that folds; one with very many or deeply nested values as its text."""
    if _size(value, 0, 0) > _JSON_VALUES:
        return plain(json.dumps(value, ensure_ascii=False, indent=1))
    return _safe(f'<div class="json">{_json(value, 0)}</div>')


def image(part: Image) -> SafeString:
    """The picture itself where it came with the message; a link is shown, never fetched."""
    source = f"data:{part.media_type};base64,{part.data}"
    if part.data and _DATA_IMAGE.match(source):
        return format_html('<img src="{}" alt="{}">', source, _("Image of the message"))
    if part.url:
        return format_html(
            '<p class="small soft">{} <code>{}</code></p>',
            _("An image elsewhere, not loaded:"),
            page_text(part.url[:500]),
        )
    return format_html(
        '<p class="small soft">{} <code>{}</code></p>',
        _("An image of a kind that is not shown:"),
        page_text(part.media_type[:100]),
    )


def _safe(html: str) -> SafeString:
    """Marks HTML of this module as what it is; whatever it holds of a transcript was escaped
    or sanitised above."""
    return SafeString(html)


# The parts ---------------------------------------------------------------------------------


def _highlighted(text: str, language: str) -> str:
    """HTML of ``text`` with the classes of pygments; only escaped where it has no lexer."""
    if len(text) > _HIGHLIGHTED or not language:
        return escape(text)
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return escape(text)
    return highlight(text, lexer, HtmlFormatter(nowrap=True))


def _fence(text: str, language: str, _attributes: str) -> str:
    return f'<pre><code class="hl">{_highlighted(text, language)}</code></pre>'


def _image_rule(
    renderer: RendererHTML, tokens: Sequence[Token], place: int, options: Any, env: Any
) -> str:
    """A picture that came with the text; one elsewhere is written out, since loading it would
    tell its host who reads this."""
    token = tokens[place]
    source = str(token.attrs.get("src", ""))
    if _DATA_IMAGE.match(source):
        return renderer.image(tokens, place, options, env)
    return f"<code>{escape(f'![{token.content}]({source})')}</code>"


_MARKDOWN = MarkdownIt("commonmark", {"html": False, "highlight": _fence, "maxNesting": 20})
_MARKDOWN.enable(["table", "strikethrough"])
_MARKDOWN.add_render_rule("image", _image_rule)


def _attribute(tag: str, name: str, value: str) -> str | None:
    if name == "src":
        return value if _DATA_IMAGE.match(value) else None
    if name == "href" and value.lstrip().lower().startswith("data:"):
        return None
    if name == "class":
        return value if re.fullmatch(r"hl|[a-z][a-z0-9]{0,2}", value) else None
    return value


def _marked(html: str, text: str) -> SafeString:
    if len(text) > LONGEST:
        html += format_html(
            '<p class="small faint">{}</p>',
            _("The first %(shown)s of %(all)s characters; the export has them all.")
            % {"shown": f"{LONGEST:,}", "all": f"{len(text):,}"},
        )
    return _safe(html)


def _size(value: Json, depth: int, seen: int) -> int:
    """How many values ``value`` holds; counting ends early where they are too many."""
    seen += 1
    if depth > _JSON_DEPTH:
        return _JSON_VALUES + 1
    children: Sequence[Any] = ()
    if isinstance(value, Mapping):
        children = list(cast(Mapping[str, Any], value).values())
    elif isinstance(value, list):
        children = cast(list[Any], value)
    for child in children:
        if seen > _JSON_VALUES:
            break
        seen = _size(child, depth + 1, seen)
    return seen


def _json(value: Json, depth: int) -> str:
    if isinstance(value, Mapping):
        items = [
            f'<span class="key">{escape(page_text(str(key)))}</span>: {_json(child, depth + 1)}'
            for key, child in cast(Mapping[str, Any], value).items()
        ]
        return _group("{…}", items, depth) if items else "{}"
    if isinstance(value, list):
        items = [_json(child, depth + 1) for child in cast(list[Any], value)]
        return _group("[…]", items, depth) if items else "[]"
    if isinstance(value, str):
        return f'<span class="str">{escape(page_text(value[:LONGEST]))}</span>'
    return f'<span class="lit">{escape(json.dumps(value))}</span>'


def _group(sign: str, items: list[str], depth: int) -> str:
    body = "".join(f"<li>{item}</li>" for item in items)
    if depth == 0:
        return f"<ul>{body}</ul>"
    opened = " open" if len(items) <= 8 and depth < 3 else ""
    return f"<details{opened}><summary>{sign} {len(items)}</summary><ul>{body}</ul></details>"
