"""Pandoc's document tree, as the JSON that pandoc writes: making, walking, rewriting."""


def node(kind, *content):
    """A node: `node("Str", "a")`, `node("Link", attr(), inlines, ["#x", ""])`, `node("Space")`."""
    return (
        {"t": kind, "c": content[0] if len(content) == 1 else list(content)}
        if content
        else {"t": kind}
    )


def attr(id="", classes=(), **pairs):
    return [id, list(classes), [[key, str(value)] for key, value in pairs.items()]]


def words(text):
    """Inlines of plain text: strings with spaces between."""
    found = []
    for i, word in enumerate(text.split(" ")):
        found += ([node("Space")] if i else []) + ([node("Str", word)] if word else [])
    return found


def link(inlines, target, classes=()):
    return node("Link", attr(classes=classes), inlines, [target, ""])


def raw(format, text, inline=False):
    return node("RawInline" if inline else "RawBlock", format, text)


def header(level, id, inlines):
    return node("Header", level, attr(id), inlines)


def div(blocks, id="", classes=(), **pairs):
    return node("Div", attr(id, classes, **pairs), blocks)


def get(attributes, key, default=""):
    return dict(attributes[2]).get(key, default)


def nodes(tree):
    """Every node below `tree`, itself included, in reading order."""
    if isinstance(tree, dict):
        if "t" in tree:
            yield tree
        yield from nodes(tree.get("c", ()))
    elif isinstance(tree, list):
        for item in tree:
            yield from nodes(item)


def rewrite(tree, change):
    """A copy with `change(node)` applied bottom-up: None keeps, a node or a list replaces."""
    if isinstance(tree, dict) and "t" in tree:
        return {**tree, "c": rewrite(tree["c"], change)} if "c" in tree else tree
    if not isinstance(tree, list):
        return tree
    found = []
    for item in tree:
        item = rewrite(item, change)
        new = change(item) if isinstance(item, dict) and "t" in item else None
        found.extend(new if isinstance(new, list) else [item if new is None else new])
    return found


_QUOTES = {"SingleQuote": "‘’", "DoubleQuote": "“”"}


def plain(tree):
    """The text of a tree, without markup; blocks are separated by spaces, mathematics is TeX."""
    return " ".join(_text(tree).split())


def _text(tree):
    if isinstance(tree, list):
        return "".join(map(_text, tree))
    if not isinstance(tree, dict):
        return ""
    kind, content = tree.get("t"), tree.get("c", [])
    if kind == "Str":
        return content
    if kind in ("Code", "Math", "CodeBlock"):
        return content[1] + (" " if kind == "CodeBlock" else "")
    if kind in ("Space", "SoftBreak", "LineBreak"):
        return " "
    if kind == "Quoted":
        return _text(content[1]).join(_QUOTES[content[0]["t"]])
    if kind in ("RawInline", "RawBlock"):
        return ""
    return _text(content) + (" " if kind in ("Para", "Plain", "Header") else "")
