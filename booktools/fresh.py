"""Rules 1 and 2: a chapter runs on a clean kernel, and its fresh outputs agree with the stored ones.

`python -m booktools.fresh nbs/09_grpo.ipynb` runs the chapter once, with nbdev's own runner (the
one of `nbdev-test`), and compares what each cell leaves with what the notebook stores. A cell says
with `#| tolerance: ...` how far its numbers may move on another machine; CONTRIBUTING.md has the
rule. Figures are compared by their number and size.
"""

import json
import os
import re
import sys
from pathlib import Path

from . import prose

WORDS = ("intervals", "timing", "sample")
_OTHERS = 0.2  # with `intervals`, for numbers that are no mean with its interval
_NUMBER = re.compile(
    r"(?<![\w.])([+\-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?|[+\-−]?\.\d+)(?!(?!s\b)\w)"
)
_FIGURE = re.compile(r"<Figure size ([\d.]+)x([\d.]+) with (\d+) Axes>")
_NOISE = 1e-6  # what is smaller is rounding noise, and differs between machines


def tolerance(cell):
    """The tolerance that a cell declares: a number, one of `WORDS`, or None for the default.

    Raises ValueError for anything else.
    """
    text = cell.options.get("tolerance")
    if text is None or text in WORDS:
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 < value < 10:
        raise ValueError(
            f"`#| tolerance: {text}` is none of a number above 0 and below 10, {', '.join(WORDS)}: correct it"
        )
    return value


def agree(stored, fresh, allowed=None):
    """Whether two printed numbers agree.

    Without a tolerance: whole numbers are equal, others within a unit in the last printed digit or
    a millionth of their size. A tolerance t allows t, or t times the larger of the two if above 1.
    """
    a, b = _value(stored), _value(fresh)
    if allowed is not None:
        return abs(a - b) <= allowed * max(1, abs(a), abs(b)) * (1 + 1e-9)
    if re.fullmatch(r"[+\-−]?[\d,]+", stored) and re.fullmatch(r"[+\-−]?[\d,]+", fresh):
        return a == b
    unit = max(_unit(stored), _unit(fresh))
    return abs(a - b) <= max(unit * (1 + 1e-6), 1e-6 * max(abs(a), abs(b)), _NOISE)


def _unit(text):
    mantissa, _, exponent = text.lower().partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def text_difference(stored, fresh, allowed=None):
    """What differs between two printed texts, in a few words, or None. Spacing is not compared."""
    if allowed == "sample":
        return None if bool(stored.strip()) == bool(fresh.strip()) else "one of the two is empty"
    a, b = _NUMBER.split(stored), _NUMBER.split(fresh)
    words = ["".join(x.split()) for x in a[::2]], ["".join(x.split()) for x in b[::2]]
    if words[0] != words[1]:
        for left, right in zip(stored.splitlines(), fresh.splitlines()):
            if _wordless(left) != _wordless(right):
                return f"the stored line is {left.strip()[:90]!r}, the fresh one {right.strip()[:90]!r}"
        return f"{len(stored.splitlines())} lines are stored, the fresh run prints {len(fresh.splitlines())}"
    if allowed == "timing":
        return None
    means, skipped = _intervals(a) if allowed == "intervals" else {}, set()
    for at in range(1, len(a), 2):
        left, right = a[at], b[at]
        if at in skipped:
            continue
        if at in means:
            skipped |= {at + 2, at + 4}
            width = max(abs(_value(x[at + 4]) - _value(x[at + 2])) for x in (a, b))
            fine = abs(_value(left) - _value(right)) <= width or agree(left, right, 0.05)
        else:
            fine = agree(left, right, _OTHERS if allowed == "intervals" else allowed)
        if not fine:
            return f"{left} is stored, the fresh run gives {right} ({_place(stored, left)})"
    return None


def _value(text):
    return float(text.replace(",", "").replace("−", "-"))


def _intervals(parts):
    """Where in a split text a mean is followed by its interval, `0.5 [0.4, 0.6]`."""
    return {
        at
        for at in range(1, len(parts) - 5, 2)
        if (parts[at + 1].strip(), parts[at + 3].strip()) == ("[", ",")
        and parts[at + 5].lstrip().startswith("]")
    }


def _wordless(line):
    return ["".join(x.split()) for x in _NUMBER.split(line)[::2]]


def _place(text, number):
    line = next((x for x in text.splitlines() if number in x), "")
    return f"in the line {line.strip()[:80]!r}"


def _streams(outputs):
    found = {}
    for output in outputs:
        if output["output_type"] == "stream":
            found[output["name"]] = found.get(output["name"], "") + "".join(output["text"])
    return found


def _shows(outputs):
    """`(text, figure size or None)` of each displayed value, in order."""
    found = []
    for output in outputs:
        if output["output_type"] in ("display_data", "execute_result"):
            picture = any(k.startswith("image/") for k in output["data"])
            text = prose.output_text(output)
            size = _FIGURE.search(text)
            found.append(
                (text, tuple(map(float, size.groups())) if size else () if picture else None)
            )
    return found


def cell_difference(stored, fresh, allowed=None):
    """What differs between two lists of outputs of one cell, or None."""
    left, right = _streams(stored), _streams(fresh)
    for name in sorted(left.keys() | right.keys()):
        difference = text_difference(left.get(name, ""), right.get(name, ""), allowed)
        if difference:
            return difference
    left, right = _shows(stored), _shows(fresh)
    if len(left) != len(right):
        return f"{len(left)} values or figures are stored, the fresh run shows {len(right)}"
    for (text, size), (fresh_text, fresh_size) in zip(left, right):
        if (size is None) != (fresh_size is None):
            return "one of the two is a figure, the other isn't"
        if size is None:
            difference = text_difference(text, fresh_text, allowed)
            if difference:
                return difference
        elif size and fresh_size:
            if size[2] != fresh_size[2] or any(
                abs(x - y) > 0.02 * x for x, y in zip(size[:2], fresh_size[:2])
            ):
                return f"the stored figure has size and axes {size}, the fresh one {fresh_size}"
    return None


def differences(path, fresh):
    """`(cell, what differs, advice)` between a notebook's stored outputs and fresh ones by cell id."""
    for cell in prose.cells(path):
        if cell.kind != "code" or cell.options.get("eval") == "false":
            continue
        try:
            allowed = tolerance(cell)
        except ValueError as error:
            yield cell, str(error), ""
            continue
        difference = cell_difference(cell.outputs, fresh.get(cell.id, []), allowed)
        if difference:
            yield (
                cell,
                difference,
                (
                    "store the new outputs with `make save` and read the prose about them again, "
                    "or declare what may move with `#| tolerance: ...`"
                ),
            )


def run(path):
    """Run a notebook with nbdev's runner: the outputs by cell id, or None when a cell failed (shown on stderr)."""
    import nbdev.test
    from nbdev.config import get_config

    kept = []
    nbdev.test.write_nb, write = lambda nb, fn: kept.append(nb), nbdev.test.write_nb
    config = get_config(path.parent)
    try:
        passed, _ = nbdev.test.test_nb(
            path, basepath=config.config_path, save=True, cell_timeout=config.cell_timeout or None
        )
    finally:
        nbdev.test.write_nb = write
    if not passed:
        return None
    cells = kept[0].cells if kept else []
    return {
        c["id"]: json.loads(json.dumps(c.get("outputs", [])))
        for c in cells
        if c["cell_type"] == "code"
    }


def main(arguments):
    """Run and compare one notebook; 0 when all agrees. Findings are lines that begin with FINDING."""
    path = Path(arguments[0]).resolve()
    fresh = run(path)
    if fresh is None:
        return 1
    found = list(differences(path, fresh))
    for cell, text, advice in found:
        print(f"FINDING cell {cell.number} {cell.begins()!r}: {text}: {advice}".rstrip(": "))
    print(f"{path.name}: ran; {len(found)} cell(s) with other outputs than the stored ones")
    return 1 if found else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.exit(main(sys.argv[1:]))
