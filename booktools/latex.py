"""Formulas: their arithmetic, which the checker does again, and the symbols they use."""

import math
import re
from typing import NamedTuple

_RELATION = re.compile(
    r"=|<|>|\\(?:approx|le|ge|leq|geq|ne|neq|ll|gg|sim|propto|to|in|leftarrow|rightarrow|mapsto|mid|equiv|qquad|quad)(?![A-Za-z])"
)
_SPACE = re.compile(
    r"\\[,;:! ]|\\(?:[bB]ig{1,2}[lr]?|left|right|displaystyle|textstyle|limits)(?![A-Za-z])|~"
)
_OPERATOR = re.compile(
    r"(?:^|[=<>(\[{,&|/]|\\(?:approx|leq?|geq?|neq?|ll|gg|sim|in|to|cdot|times|q?quad))$"
)
_NUMBER = re.compile(r"\d+(?:(?:\{,\}|,(?=\d{3}(?!\d)))\d{3})*(?:\.\d+)?|\.\d+")
_COMMA = re.compile(r",(?!\d{3}(?!\d))")
_CLAUSE = re.compile(_COMMA.pattern + r"|\\\\|;|\\q?quad(?![A-Za-z])|&")
_TUPLE = re.compile(r"\(.*\)|\[.*\]", re.S)
_FUNCTIONS = {
    "log": math.log,
    "ln": math.log,
    "exp": math.exp,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}


class Literal(NamedTuple):
    """A number as written: its absolute value, its decimals, its sign (`''`, `'+'`, `'-'`)."""

    value: float
    decimals: int
    sign: str
    text: str


def literal(text):
    """The `Literal` that a text is, or None."""
    match = re.fullmatch(rf"\s*([+-]?)\s*({_NUMBER.pattern})\s*", text)
    if not match:
        return None
    digits = match[2].replace("{,}", "").replace(",", "")
    return Literal(float(digits), len(digits.partition(".")[2]), match[1], match[0].strip())


class _Reader:
    """Recursive descent over arithmetic in LaTeX; anything else raises ValueError."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def peek(self, word):
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1
        if not self.text.startswith(word, self.at):
            return False
        after = self.text[self.at + len(word) : self.at + len(word) + 1]
        return not (word[-1:].isalpha() and after.isalpha())

    def take(self, word):
        found = self.peek(word)
        self.at += len(word) * found
        return found

    def whole(self):
        value = self.sum()
        self.peek("")
        if self.at < len(self.text):
            raise ValueError(self.text[self.at :])
        return value

    def sum(self):
        sign = -1 if self.take("-") else 1
        self.take("+")
        value = sign * self.product()
        while True:
            if self.take("+"):
                value += self.product()
            elif self.take("-"):
                value -= self.product()
            else:
                return value

    def product(self):
        value = self.power()
        while True:
            if self.take("\\cdot") or self.take("\\times"):
                value *= -self.power() if self.take("-") else self.power()
            elif self.take("/"):
                value /= self.power()
            elif self.at < len(self.text) and (
                self.peek("(")
                or self.peek("[")
                or self.peek("\\frac")
                or self.peek("\\tfrac")
                or self.peek("\\sqrt")
                or self.peek("\\log")
                or self.peek("\\exp")
            ):
                value *= self.power()
            else:
                return value

    def power(self):
        value = self.base()
        return value ** self.argument() if self.take("^") else value

    def argument(self):
        if self.take("{"):
            return self.until("}")
        self.peek("")
        if re.match(r"\d", self.text[self.at :]):
            self.at += 1
            return float(self.text[self.at - 1])
        return self.base()

    def until(self, close):
        value = self.sum()
        if not self.take(close):
            raise ValueError(close)
        return value

    def base(self):
        self.peek("")
        number = _NUMBER.match(self.text, self.at)
        if number:
            self.at = number.end()
            return float(number[0].replace("{,}", "").replace(",", ""))
        for opening, close in (("(", ")"), ("[", "]"), ("{", "}")):
            if self.take(opening):
                return self.until(close)
        if self.take("\\frac") or self.take("\\tfrac") or self.take("\\dfrac"):
            top = self.argument()
            return top / self.argument()
        if self.take("\\binom"):
            top = self.argument()
            return math.comb(int(top), int(self.argument()))
        if self.take("\\sqrt"):
            root = 2
            if self.take("["):
                root = self.until("]")
            return self.argument() ** (1 / root)
        for name, function in _FUNCTIONS.items():
            if self.take("\\" + name):
                return function(self.power())
        for name, function in (("\\min", min), ("\\max", max)):
            if self.take(name):
                if not self.take("("):
                    raise ValueError(name)
                values = [self.sum()]
                while self.take(","):
                    values.append(self.sum())
                if not self.take(")"):
                    raise ValueError(name)
                return function(values)
        raise ValueError(self.text[self.at :])


def value(text):
    """The number that an arithmetic expression in LaTeX comes to, or None if it is none."""
    try:
        return float(_Reader(_SPACE.sub(" ", text).strip(" .;")).whole())
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        return None


def _split(text, pattern):
    """Split where a pattern matches outside all brackets; the separators stand between."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if text[at] in "({[":
            depth += 1
        elif text[at] in ")}]":
            depth -= 1
        match = pattern.match(text, at) if depth <= 0 else None
        if match and match.end() > at:
            parts += [text[start:at], match[0]]
            start = at = match.end()
        else:
            at += 2 if text[at] == "\\" else 1
    return [*parts, text[start:]]


def equations(formula):
    """The statements of a formula that are pure arithmetic: `(left, right, left value, right value)`.

    `a = b \\approx c` gives two. A pair of bare numbers, and anything with a symbol, gives none.
    """
    text = _SPACE.sub(" ", formula)
    for clause in _split(text, _CLAUSE)[::2]:
        parts = _split(clause, _RELATION)
        for at in range(1, len(parts), 2):
            if parts[at] in ("=", "\\approx"):
                for left, right in _pairs(parts[at - 1].strip(" ."), parts[at + 1].strip(" .")):
                    values = value(left), value(right)
                    if None not in values and not (literal(left) and literal(right)):
                        yield left, right, *values


def _pairs(left, right):
    """The two sides, or if both are tuples `(a, b)` of one length, their entries in pairs."""
    entries = [
        _split(side[1:-1], _COMMA)[::2] if _TUPLE.fullmatch(side) else [] for side in (left, right)
    ]
    if len(entries[0]) == len(entries[1]) > 1:
        return list(zip(*([x.strip() for x in side] for side in entries)))
    return [(left, right)]


def slack(left, right):
    """How far the two sides may lie apart: half a unit of the last decimal of the side that is rounded.

    From three decimals on it is a whole unit, since the other side's numbers are often rounded too.
    """
    stated = [x for x in map(literal, (left, right)) if x]
    return (1.0 if stated[0].decimals > 2 else 0.5) * 10.0 ** -stated[0].decimals if stated else 0.0


def numbers(formula):
    """The `Literal`s in a formula, outside sub- and superscripts and single digits of fractions."""
    text = _SPACE.sub(" ", formula)
    text = re.sub(r"\\(?:text\w*|math\w+|operatorname|begin|end)\s*\{[^{}]*\}", " x ", text)
    text = re.sub(r"[_^]\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\?\w)", " ", text)
    if symbols(text):  # whole numbers in the fractions of a formula with letters are its own
        text = re.sub(r"\\[td]?frac\s*(\d|\{\d+\})\s*(\d|\{\d+\})", " x ", text)
    text = re.sub(r"(\\[td]?frac)\s*(\d)\s*(\d)(?!\d)", r"\1{\2}{\3}", text)
    found = []
    for match in _NUMBER.finditer(text):
        before = text[: match.start()].rstrip()
        sign = before[-1:] if before[-1:] in "+-" else ""
        if sign and not _OPERATOR.search(before[:-1].rstrip()):  # a difference, not a sign
            sign = ""
        found.append(literal(sign + match[0]))
    return found


# Symbols.

_ACCENTS = "hat|bar|tilde|vec|dot|ddot|widehat|widetilde|overline|underline"
_FONTS = "mathcal|mathbb|mathbf|boldsymbol|mathfrak|mathsf|bm"
_WORDS = r"\\(?:text\w*|mathrm|mathit|mathtt|operatorname\*?)"
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi "
    "varpi rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi "
    "Pi Sigma Upsilon Phi Psi Omega ell nabla partial infty"
).split()
_FREE = {"\\nabla", "\\partial", "\\infty"}  # mathematics' own, in no table
_SYMBOL = re.compile(
    rf"""
    \\(?P<accent>{_ACCENTS})(?![A-Za-z])\s*(?:\{{\s*(?P<wide>\\?[A-Za-z]+)(?P<rest>[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*)\}}|(?P<narrow>\\[A-Za-z]+|[A-Za-z]))
  | \\(?P<font>{_FONTS})(?![A-Za-z])\s*(?:\{{\s*(?P<styled>\\?\w+)\s*\}}|(?P<bare>\\[A-Za-z]+|\w))
  | {_WORDS}\s*\{{(?P<word>(?:[^{{}}]|\{{[^{{}}]*\}})*)\}}
  | \\(?P<command>[A-Za-z]+)
  | (?P<letter>[A-Za-z])
    """,
    re.VERBOSE,
)


def symbols(formula):
    """The symbols of a formula, as a set: letters and Greek commands with their accent or font.

    Scripts are read too (`r_{i,t}` gives r, i and t); words in `\\text{}` are not symbols, names
    in `\\operatorname{}` are; so are single letters in `\\mathrm{}`.
    """
    found = set()
    text = re.sub(r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?", " ", formula)
    for match in _SYMBOL.finditer(text):
        if match["accent"]:
            base = match["wide"] or match["narrow"]
            accent = {"widehat": "hat", "widetilde": "tilde", "overline": "bar"}.get(
                match["accent"], match["accent"]
            )
            if match["rest"] and match["rest"].strip():
                found |= symbols(f"{base}{match['rest']}")
            found.add(f"\\{accent} {base}")
        elif match["font"]:
            found.add(f"\\{match['font']}{{{match['styled'] or match['bare']}}}")
        elif match["word"] is not None:
            word = match["word"].strip()
            name = match[0].startswith("\\operatorname")
            if name:
                found.add(f"\\operatorname{{{word}}}")
            elif (
                re.fullmatch(r"[A-Za-z]", word)
                or match[0].startswith("\\mathrm")
                and re.fullmatch(r"[A-Z]{2,}|[a-z]+", word)
            ):
                found.add(word if len(word) == 1 else f"\\operatorname{{{word}}}")
            else:
                for inner in re.findall(r"\$([^$]+)\$", word):
                    found |= symbols(inner)
        elif match["command"] in _GREEK:
            found.add("\\" + match["command"])
        elif match["letter"]:
            found.add(match["letter"])
    return found - _FREE
