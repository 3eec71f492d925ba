"""Rule 3: every number in the prose stands on an output, a setting, a formula or a source near it."""

import ast
import re
from bisect import bisect_left
from functools import cache

from . import latex, prose

SMALL = 12  # whole numbers up to this count things in running text, and need no evidence
_PLAIN = re.compile(
    r"""(?<![\w.,/-])(?:(?P<sign>[+\-−])(?=[\d.]))?
    (?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)
    (?P<scale>(?:\s?%|\s+per\s?cent\b|\s+percentage\s+points?)|(?:\s+(?:thousand|million|billion)\b))?
    (?![\w]|\.\d|,\d{3})""",
    re.VERBOSE,
)
_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9}
# numbers that name a place, a date, a version or a duration to plan with
_NAMES = re.compile(
    r"""\b(?:chapters?|sections?|appendix|appendices|exercises?|solutions?|figures?|tables?|equations?|parts?|cells?|steps?|rule|
        python|gymnasium|pytorch|torch|cuda|linux|version|CC\sBY|seeds?)\s+
        (?:[A-Z]\.)?\d+(?:\.\d+)*(?:(?:,\s*|\s+(?:and|to|or)\s+|\s*-\s*)(?:[A-Z]\.)?\d+(?:\.\d+)*)*
      | \b\d{4}-\d{2}-\d{2}\b
      | \b(?:1[89]|20)\d{2}\b(?!,\d)
      | \(\s*(?:easy|medium|hard)\s*,\s*\d+\s+(?:minutes?|hours?)\s*\)
      | ^\*\*\d+(?:\.\d+)+\*\* | ^\d+(?:\.\d+)+(?-i:(?=\s[A-Z]))
      | ^\**\d+\.(?=\s)
      | \b[A-Z]\.\d+\b
      | \b\d+[- ]bits?\b
      | \b\d+\s?%(?=\s+(?:confidence\s+)?(?:intervals?|bounds?|level)\b)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_ROUGH = re.compile(
    r"\b(?:about|nearly|roughly|almost|some|around|over|under|above|below|more than|less than|fewer than|at least|at most|up to|well over)\s*$"
)
EXERCISE = re.compile(r"\*\*([A-Z0-9]+\.\d+)\*\*\s*\(")
SOLUTION = re.compile(r"Solution ([A-Z0-9]+\.\d+)")
_HEADING = re.compile(r"^(#{1,6}) .*?(?:\{#([\w-]+)[^}\n]*\})? *$", re.M)
_LABEL = re.compile(rf"\{{#((?:{prose.REF_KINDS})-[\w-]+)")
_OUTPUT = re.compile(
    r"(?<![\w.])([+\-−]?)(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)(\s?%)?"
)


class Evidence:
    """The numbers that a part of a chapter shows or sets, to look others up in."""

    def __init__(self):
        self.shown, self.set, self._keys = [], set(), None

    def show(self, value, decimals, sign=""):
        """A printed number: its absolute value, its decimals and its sign."""
        self.shown.append((abs(value), decimals, sign))
        self._keys = None

    def backs(self, number, rough=False):
        """Whether a `latex.Literal` is a printed number at its rounding, or a setting."""
        if number.value in self.set:
            return True
        if self._keys is None:
            self.shown.sort()
            self._keys = [value for value, _, _ in self.shown]
        half = 0.5 * 10.0**-number.decimals
        if rough:  # about 1,600: the zeros are not stated
            digits = f"{number.value:.0f}"
            half = (
                max(half, 0.5 * 10 ** (len(digits) - len(digits.rstrip("0"))))
                if number.value >= SMALL
                else half
            )
        low = bisect_left(self._keys, number.value - half * (1 + 1e-9) - 1e-12)
        for value, decimals, sign in self.shown[low:]:
            if value > number.value + half * (1 + 1e-9) + 1e-12:
                return False
            # more digits than were printed are nowhere shown; a sign must be the printed one
            if (decimals >= number.decimals or value == number.value) and (
                number.sign != "-" or sign == "-"
            ):
                return True
        return False


def printed(text):
    """The numbers of an output's text, as `(value, decimals, sign)`; a percentage as a share too."""
    for sign, digits, percent in _OUTPUT.findall(text):
        plain = digits.replace(",", "")
        mantissa, _, exponent = plain.lower().partition("e")
        decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
        value, sign = float(plain), "-" if sign in ("-", "−") else sign
        yield value, decimals, sign
        if percent:
            yield value / 100, decimals + 2, sign


@cache
def _constants(source):
    try:
        tree = ast.parse(
            "".join(x for x in source.splitlines(True) if not x.lstrip().startswith(("%", "!")))
        )
    except SyntaxError:
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            found.add(abs(float(node.value)))
        elif isinstance(node, ast.BinOp):  # 3 * 40, 1 / 8: a setting written out
            if all(
                isinstance(x, (ast.BinOp, ast.Constant, ast.UnaryOp, ast.operator, ast.unaryop))
                for x in ast.walk(node)
            ):
                try:
                    result = eval(
                        compile(ast.Expression(node), "cell", "eval"), {"__builtins__": {}}
                    )
                except Exception:
                    continue
                if isinstance(result, (int, float)):
                    found.add(abs(float(result)))
    return frozenset(found)


class Chapter:
    """What a notebook shows and sets, section by section (`##`); whole numbers that it sets, and its `parameters`, hold for all."""

    def __init__(self, path):
        self.everywhere, self.sections, self.of_label = Evidence(), {}, {}
        self.of_cell, section = {}, 0
        for cell in prose.cells(path):
            start = section + bool(re.match(r"##? ", cell.source) and cell.kind == "markdown")
            if cell.kind == "markdown":
                for level, name in _HEADING.findall(cell.source):
                    section += len(level) <= 2
                    self.of_label[name] = section
                for name in _LABEL.findall(cell.source):
                    self.of_label.setdefault(name, section)
            self.of_label.setdefault(cell.options.get("label"), section)
            self.of_cell[cell.number] = range(start, section + 1)
            if cell.kind == "code":
                self._add_code(cell, section)
        for cell, sentence in prose.reading(path):
            for formula in prose.formulas(sentence):
                self._add_arithmetic(formula, self.of_cell[cell.number])

    def _section(self, number):
        return self.sections.setdefault(number, Evidence())

    def _add_code(self, cell, section):
        self.everywhere.set |= {x for x in _constants(cell.source) if x == int(x)}
        for home in [
            self._section(section),
            *([self.everywhere] if "parameters" in cell.tags else []),
        ]:
            home.set |= _constants(cell.source)
            for value in _constants(cell.source):  # a long constant may be stated rounded
                digits = repr(value).partition(".")[2]
                if len(digits) > 2 and "e" not in digits:
                    home.show(value, len(digits))
        for output in cell.outputs:
            for number in printed(prose.output_text(output)):
                self._section(section).show(*number)

    def _add_arithmetic(self, formula, sections):
        for left, right, a, b in latex.equations(formula):
            number = latex.literal(right) or latex.literal(left)
            results = [number] if number else latex.numbers(right)
            if abs(a - b) <= _room(left, right, a, b):
                for result in results:
                    for section in sections:
                        self._section(section).show(result.value, result.decimals, result.sign)

    def near(self, cell, names):
        """The `Evidence` for a cell's prose: its own sections, and those that the labels name."""
        sections = {
            *self.of_cell[cell.number],
            *(self.of_label[x] for x in names if x in self.of_label),
        }
        return [self.everywhere, *(self.sections[x] for x in sections if x in self.sections)]

    def whole(self):
        """The `Evidence` of all sections."""
        return [self.everywhere, *self.sections.values()]


@cache
def chapter(path, stamp):
    """The `Chapter` of a notebook, read once for each state of its file."""
    return Chapter(path)


def _chapter(path):
    stat = path.stat()
    return chapter(path, (stat.st_mtime_ns, stat.st_size))


def stated(sentence):
    """The numbers of a sentence's running text that need evidence: `(Literal, rough)` pairs."""
    text = sentence.plain("\ue002")
    names = [match.span() for match in _NAMES.finditer(text)]
    for match in _PLAIN.finditer(text):
        if any(start <= match.start("digits") < end for start, end in names):
            continue
        plain = match["digits"].replace(",", "")
        mantissa, _, exponent = plain.lower().partition("e")
        decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
        sign = "-" if match["sign"] in ("-", "−") else match["sign"] or ""
        value, scale = float(plain), (match["scale"] or "").strip()
        rough = bool(_ROUGH.search(text[: match.start()].rstrip("\ue002")))
        if scale in _SCALES:
            value, decimals = (
                value * _SCALES[scale],
                decimals - round(len(str(int(_SCALES[scale]))) - 1),
            )
        yield (
            latex.Literal(value, decimals, sign, match[0].strip()),
            rough,
            bool(scale) and scale not in _SCALES,
        )


def _is_small(number):
    return number.value <= SMALL and number.value == int(number.value) and number.decimals <= 0


def _room(left, right, a, b):
    """How far the sides of an equation may lie apart."""
    decimals = [x.decimals for side in (left, right) for x in latex.numbers(side)]
    loose = 2 * 10.0 ** -max(decimals) if any(decimals) else 1e-9 * max(abs(a), abs(b))
    return (latex.slack(left, right) or loose) * (1 + 1e-6)


class _Exercises:
    """Follows a chapter's exercises: what each states is given, there and in its solution."""

    def __init__(self):
        self.stated, self.name = {}, None

    def given(self, cell, sentence):
        """The numbers given where this sentence stands; None where all are."""
        asked = EXERCISE.match(sentence.text)
        title = SOLUTION.match(sentence.text)
        if asked:
            self.name = asked[1]
        elif (
            title
            or cell.kind == "code"
            or re.match(r"[A-Z]", sentence.text)
            and cell.source.startswith(":::")
        ):
            self.name = None
        if self.name:
            self.stated.setdefault(self.name, set()).update(
                x.value for x, _, _ in _numbers(sentence)
            )
            return None
        solution = re.match(r":::+ *\{[^}]*title=\"Solution ([A-Z0-9]+\.\d+)", cell.source)
        return self.stated.get(solution[1], set()) if solution else set()


def _numbers(sentence):
    found = list(stated(sentence))
    for formula in prose.formulas(sentence):
        found += [(number, False, False) for number in latex.numbers(formula)]
    return found


def _names(sentences):
    return {ref.lstrip("-@") for sentence in sentences for ref in sentence.of("ref")}


def check(path, homes=None):
    """`(cell, text, advice)` for each number of the prose that nothing near it backs.

    Near is the section, and what the cell refers to. `homes` maps the labels of the book
    (`sec-grpo`) to their notebooks: a sentence that refers to another chapter may state that
    chapter's numbers.
    """
    exercises, here, homes = _Exercises(), _chapter(path), homes or {}
    for cell, sentence in prose.reading(path):
        for formula in prose.formulas(sentence):
            for left, right, a, b in latex.equations(formula):
                if abs(a - b) > _room(left, right, a, b):
                    yield (
                        cell,
                        f"{left} = {right}",
                        f"the left side is {a:.6g}, the right {b:.6g}: correct the formula, or write out its rounded inputs",
                    )
        given = exercises.given(cell, sentence)
        if (
            given is None
            or sentence.of("cite", "url")
            or any("](http" in x for x in sentence.of("link"))
        ):
            continue
        around = prose.sentences(cell.source) if cell.kind == "markdown" else [sentence]
        backed = here.near(cell, _names(around))
        for name in _names([sentence]):
            if homes.get(name, path) != path:
                backed = [*backed, *_chapter(homes[name]).whole()]
        for number, rough, percent in _numbers(sentence):
            if _is_small(number) and not percent or number.value in given:
                continue
            forms = [number]
            if percent:
                forms.append(
                    latex.Literal(number.value / 100, number.decimals + 2, number.sign, number.text)
                )
            if not any(x.backs(form, rough) for x in backed for form in forms):
                yield (
                    cell,
                    f"{number.text} in {sentence.shown()[:160]!r}",
                    "no output, setting or formula of its section gives this number: correct it, print it, write "
                    "out how it comes about, refer to the section that shows it, or cite its source in the sentence",
                )
