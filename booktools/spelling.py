"""Rule 6: British spelling, by the dictionary in `words/` and the book's own list beside it.

`en_GB.dic` and `en_GB.aff` are Hunspell's British dictionary, unchanged (`en_GB.license`); its
affixes are expanded here, so that no spelling program needs to be installed.
"""

import re
from functools import cache
from pathlib import Path

from . import prose

WORDS = Path(__file__).parent / "words"
OWN = "book.txt"
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


@cache
def dictionary():
    """Every word of the British dictionary, as a frozenset."""
    prefixes, suffixes, cross = {}, {}, {}
    for line in (WORDS / "en_GB.aff").read_text(encoding="utf-8").splitlines():
        part = line.split()
        if len(part) == 4 and part[0] in ("PFX", "SFX"):
            cross[part[1]] = part[2] == "Y"
        elif len(part) >= 5 and part[0] in ("PFX", "SFX"):
            strip, add = (x if x != "0" else "" for x in part[2:4])
            add = add.split("/")[0]
            table = prefixes if part[0] == "PFX" else suffixes
            end = "^" if part[0] == "PFX" else ""
            table.setdefault(part[1], []).append(
                (strip, add, re.compile(end + part[4] + ("" if end else "$")))
            )
    words = set()
    for line in (WORDS / "en_GB.dic").read_text(encoding="utf-8").splitlines()[1:]:
        stem, _, flags = line.split("\t")[0].partition("/")
        forms = {stem}
        for flag in flags:
            forms |= {
                stem[: len(stem) - len(strip)] + add
                for strip, add, condition in suffixes.get(flag, ())
                if condition.search(stem)
            }
        for flag in flags:
            for strip, add, condition in prefixes.get(flag, ()):
                forms |= {
                    add + form[len(strip) :]
                    for form in list(forms)
                    if condition.search(form) and (cross[flag] or form == stem)
                }
        words |= forms
    return frozenset(words)


@cache
def own_words():
    """The book's own words, one a line."""
    path = WORDS / OWN
    return tuple(path.read_text(encoding="utf-8").split()) if path.exists() else ()


@cache
def known(word):
    """Whether a word is in the dictionary or the book's list: as it is, in lower case, or as a name in capitals."""
    word = word.replace("’", "'")
    bases = {word, word.removesuffix("'s")}
    forms = {form for base in bases for form in (base, base.lower(), base.upper())}
    return any(form in dictionary() for form in forms) or not forms.isdisjoint(own_words())


def check(path):
    """`(cell, text, advice)` for each word of the prose that no list has, once a notebook."""
    seen = set()
    for cell, sentence in prose.reading(path):
        text = re.sub(
            r"[\w.+-]*\d[\w.-]*|\b\w+\.[a-z]\w+\b",  # with digits, or dotted: files, names in captions
            " ",
            sentence.plain(),
        )
        for word in _WORD.findall(text):
            if len(word) > 1 and word not in seen and not known(word):
                yield (
                    cell,
                    f"{word!r} in {sentence.shown()[:100]!r}",
                    (
                        f"correct the spelling, put it in code type, or add it to booktools/words/{OWN}"
                    ),
                )
            seen.add(word)


def list_faults():
    """What is wrong with the book's own list: out of order, twice, or in the dictionary anyway."""
    own = own_words()
    for left, right in zip(own, own[1:]):
        if left.casefold() > right.casefold() or left == right:
            yield f"booktools/words/{OWN}: {right!r} must stand before {left!r}, once: sort the list"
    for word in own:
        if word in dictionary():
            yield f"booktools/words/{OWN}: {word!r} is in the dictionary: delete the line"
