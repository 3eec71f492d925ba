"""Code as HTML: highlighted, an id for each line, saved names linked to where they are saved."""

import re
from html import escape

from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES, Comment, Keyword, Name, Number, Operator, String

_SHOWN = (Keyword, String, Comment, Number, Name.Function, Name.Class, Name.Builtin, Name.Decorator,
          Operator.Word)  # fmt: skip
_INLINE = re.compile(r"(?:arl\.)?(\w+)(?:\(.*\))?")
_LEXER = PythonLexer(stripnl=False, ensurenl=False)


def code_html(code, cell_id, name_link, scope):
    """The lines of `code`, each `<span id="c12-3">`, joined by newlines.

    `name_link(name)` gives `(address, title)` of a saved name, or None; `scope` holds the names
    that the chapter uses bare: those it saves and those it imports.
    """
    tokens = [(kind, text) for kind, text in _LEXER.get_tokens(code)]
    html = "".join(
        _token(kind, text, name_link if _refers(tokens, i, scope) else None)
        for i, (kind, text) in enumerate(tokens)
    )
    return "\n".join(
        f'<span id="{cell_id}-{n}">{line}</span>' for n, line in enumerate(html.split("\n"), 1)
    )


def _token(kind, text, name_link):
    place = name_link and name_link(text)
    if place:
        return f'<a class="saved" href="{escape(place[0])}" title="{escape(place[1])}">{text}</a>'
    if not any(kind in shown for shown in _SHOWN):
        return escape(text, quote=False)
    css = STANDARD_TYPES.get(kind, "")
    css = css[:1] if css[:1] in "kscmo" else css[:2]
    return "\n".join(
        f'<span class="{css}">{escape(part, quote=False)}</span>' if part else ""
        for part in text.split("\n")
    )


def _refers(tokens, i, scope):
    """Whether the token uses a saved name: `arl.NAME`, or a bare name that the chapter knows."""
    kind, text = tokens[i]
    if kind not in Name or kind in (Name.Function, Name.Class, Name.Decorator):
        return False
    before = [t for k, t in tokens[max(0, i - 4) : i] if t.strip()]
    if before and before[-1] == ".":
        return before[-2:-1] == ["arl"]
    after = next((t for _, t in tokens[i + 1 :] if t.strip(" ")), "")
    return text in scope and after != "="


def inline_name(text, names):
    """The saved name that a piece of code in prose is: `NAME`, `arl.NAME`, `NAME(...)`; or None."""
    found = _INLINE.fullmatch(text)
    return found[1] if found and found[1] in names else None
