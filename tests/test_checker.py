"""The checker: a small clean chapter passes every rule, and a planted fault of each kind is caught."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from booktools import (
    alone,
    check,
    fresh,
    latex,
    notation,
    numerals,
    project,
    prose,
    refs,
    run,
    spelling,
)

ROOT = Path(__file__).resolve().parent.parent
PIXEL = {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure size 640x320 with 1 Axes>"}

TEXT = r"""## 3.1 Means {#sec-policy-mean}

The *mean* of rewards $R_1, \dots, R_G$ is $\bar R = \frac1G \sum_i R_i$ [@kool2019buy]. It passes 0.46 of 1,200
attempts, 46% to be exact, and costs 2.5 s. By hand, $(0.75 + 0.25)/2 = 0.5$, and `mean` gives it too:"""
FIGURE = """#| label: fig-policy-mean
#| fig-cap: "The mean against attempts."
#| fig-alt: "One line that rises from 0.1 at the first attempt to 0.46 at the last."
draw()"""
EXERCISE = """**3.1** (easy, 10 minutes) *By hand.* What is the mean of 0.125 and 0.375?

::: {.callout-note collapse="true" title="Solution 3.1"}
$(0.125 + 0.375)/2 = 0.25$.
:::"""
NOTATION = r"""# Notation {#sec-notation}

| Symbol | Meaning | Chapters |
| --- | --- | --- |
| $G$ | attempts a task | all |
| $R_i$, $\bar R$ | rewards, their mean | 3 |
"""


def cells():
    """The clean chapter."""
    return {
        "title": new_markdown_cell("# Policies {#sec-policy}\n\n> What a policy is."),
        "setup": new_code_cell("#| default_exp: policy\n#| include: false\nimport agentrl as arl"),
        "parameters": new_code_cell("seed = 0\nattempts = 1200", metadata={"tags": ["parameters"]}),
        "text": new_markdown_cell(TEXT),
        "saved": new_code_cell(
            '#@save\ndef mean(x):\n    """Mean of `x`."""\n    return sum(x) / len(x)'
        ),
        "print": new_code_cell(
            "print('pass 0.4583 in', attempts, 'took', 2.47, arl.mean([0.25, 0.75]))",
            outputs=[
                new_output("stream", name="stdout", text="pass 0.4583 in 1200 took 2.47 0.5\n")
            ],
        ),
        "figure": new_code_cell(FIGURE, outputs=[new_output("display_data", PIXEL)]),
        "after": new_markdown_cell(
            "It rises (@fig-policy-mean), from 0.1; see section 3.1, [the preface](index.ipynb#sec-preface) and exercise 3.1."
        ),
        "values": new_code_cell(
            "0.1", outputs=[new_output("execute_result", {"text/plain": "0.1"})]
        ),
        "more": new_markdown_cell(
            "## 3.2 More {#sec-policy-more}\n\nAs @sec-policy-mean says, 0.46 of them pass."
        ),
        "exercise": new_markdown_cell(EXERCISE),
        "solution": new_code_cell("#| code-fold: true\nassert arl.mean([0.125, 0.375]) == 0.25"),
    }


def write(root, given):
    """Write the chapter into a small book."""
    for key, cell in given.items():
        cell["id"] = key
    nb = json.loads(nbformat.writes(new_notebook(cells=list(given.values()))))
    path = root / "nbs/03_policy.ipynb"
    path.write_text(run._dumps(nbformat.from_dict(nb)), encoding="utf-8")
    alone.stamp(root)
    return path


@pytest.fixture
def book(tmp_path):
    for name in ("nbs", "agentrl"):
        (tmp_path / name).mkdir()
    for name in ("settings.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "agentrl/__init__.py").write_text("from .policy import *\n__version__ = '0.1.0'\n")
    (tmp_path / "agentrl/policy.py").write_text(
        "__all__ = ['mean']\n\n\ndef mean(x):\n    return sum(x) / len(x)\n"
    )
    (tmp_path / "references.bib").write_text("@article{kool2019buy,\n  title = {Buy},\n}\n")
    (tmp_path / "nbs/D_notation.qmd").write_text(NOTATION)
    preface = new_notebook(cells=[new_markdown_cell("# Preface {#sec-preface}\n\nRead it.")])
    (tmp_path / "nbs/index.ipynb").write_text(nbformat.writes(preface))
    write(tmp_path, cells())
    return tmp_path


def findings(root):
    return {name: find(root) for name, find in check.RULES.items()}


def test_a_clean_chapter_passes_every_rule(book):
    assert {name: found for name, found in findings(book).items() if found} == {}


# One fault for each thing that a rule looks at: (rule, cell, old text, new text, part of the finding).
FAULTS = [
    (
        "2 tolerances",
        "print",
        "print(",
        "#| tolerance: loose\nprint(",
        "`#| tolerance: loose` is none of",
    ),
    (
        "2 tolerances",
        "print",
        "print(",
        "#| tolerance: 30\nprint(",
        "`#| tolerance: 30` is none of",
    ),
    # a changed result, in running text, as a share, with a thousands comma, in a caption, in a formula
    ("3 numbers in prose", "text", "passes 0.46", "passes 0.47", "0.47 in"),
    ("3 numbers in prose", "text", "passes 0.46", "passes 0.458312", "0.458312 in"),
    ("3 numbers in prose", "text", "passes 0.46", "passes -0.46", "-0.46 in"),
    ("3 numbers in prose", "text", "46% to be", "47% to be", "47% in"),
    ("3 numbers in prose", "text", "1,200", "1,300", "1,300 in"),
    ("3 numbers in prose", "text", "2.5 s", "2.6 s", "2.6 in"),
    ("3 numbers in prose", "figure", "to 0.46 at", "to 0.45 at", "0.45 in"),
    ("3 numbers in prose", "text", "= 0.5$", "= 0.6$", "the left side is 0.5, the right 0.6"),
    ("3 numbers in prose", "text", "$(0.75 + 0.25)/2", "$(0.85 + 0.15)/2", "0.85 in"),
    ("3 numbers in prose", "text", " [@kool2019buy].", ", as 77 papers say.", "77 in"),
    ("3 numbers in prose", "more", "As @sec-policy-mean says, 0.46", "As we said, 0.46", "0.46 in"),
    ("3 numbers in prose", "exercise", "= 0.25$.", "= 0.25$, less than 0.3125.", "0.3125 in"),
    (
        "4 references and links",
        "after",
        "@fig-policy-mean",
        "@fig-policy-men",
        "no cell or heading has this label",
    ),
    (
        "4 references and links",
        "text",
        "@kool2019buy",
        "@kool2019by",
        "references.bib has no such key",
    ),
    ("4 references and links", "after", "index.ipynb#", "indx.ipynb#", "there is no such file"),
    (
        "4 references and links",
        "after",
        "#sec-preface",
        "#sec-prefix",
        "index.ipynb has no label 'sec-prefix'",
    ),
    ("4 references and links", "after", "section 3.1", "section 3.7", "there is no such section"),
    (
        "4 references and links",
        "after",
        "exercise 3.1",
        "exercise 3.9",
        "there is no such exercise",
    ),
    (
        "4 references and links",
        "more",
        "{#sec-policy-more}",
        "{#sec-policy-mean}",
        "the label is set 2 times",
    ),
    ("4 names in prose", "text", "`mean`", "`mean_of`", "a name 'mean_of'"),
    ("4 names in prose", "text", "`mean`", "`arl.median`", "no public name 'median'"),
    ("4 figures", "figure", "#| label: fig-policy-mean\n", "", "has no `#| label: fig-...`"),
    ("4 figures", "figure", '#| fig-cap: "The mean against attempts."\n', "", "has no `#| fig-cap"),
    ("4 figures", "figure", FIGURE.splitlines()[2] + "\n", "", "has no `#| fig-alt"),
    (
        "4 figures",
        "figure",
        "One line that rises from 0.1 at the first attempt to 0.46 at the last.",
        "A figure.",
        "must say what the figure shows",
    ),
    (
        "4 figures",
        "after",
        "It rises",
        "![](03_policy.ipynb) It rises",
        "the picture has no alt text",
    ),
    ("5 notation", "text", r"\sum_i R_i", r"\sum_i R_i \gamma^i", r"\gamma in"),
    ("5 notation", "text", r"\bar R", r"\hat R", r"\hat R in"),
    ("6 spelling", "text", "attempts", "atempts", "'atempts' in"),
    ("6 spelling", "text", "It passes", "The color passes", "'color' in"),
    ("6 spelling", "figure", "One line", "One lyne", "'lyne' in"),
    (
        "7 exercises",
        "exercise",
        'title="Solution 3.1"',
        'title="Solution 3.2"',
        "exercise 3.1: it has 0 solutions",
    ),
    (
        "7 exercises",
        "exercise",
        'title="Solution 3.1"',
        'title="Solution 3.2"',
        "solution 3.2: there is no such exercise",
    ),
    ("7 exercises", "exercise", "**3.1**", "**3.2**", "call it 3.1"),
    ("7 exercises", "exercise", "(easy, 10 minutes)", "(10 minutes)", "say how hard it is"),
    (
        "7 exercises",
        "solution",
        "#| code-fold: true\n",
        "#| eval: false\n",
        "its cell does not run",
    ),
    (
        "7 exercises",
        "solution",
        "assert arl.mean([0.125, 0.375]) == 0.25",
        "x = 1",
        "neither asserts nor shows",
    ),
    ("notebooks that open alone", "install", "0.1.0", "0.0.9", "`make export` writes it"),
]


@pytest.mark.parametrize(("rule", "key", "old", "new", "finding"), FAULTS)
def test_a_planted_fault_is_caught_with_its_place(book, rule, key, old, new, finding):
    path = book / "nbs/03_policy.ipynb"
    nb = json.loads(path.read_text())
    cell = next(cell for cell in nb["cells"] if cell["id"] == key)
    source = "".join(cell["source"])
    assert old in source
    cell["source"] = source.replace(old, new)
    path.write_text(json.dumps(nb))
    everything = check.RULES[rule](book)
    found = [line for line in everything if finding in line]
    assert found, everything
    assert (
        "nbs/03_policy.ipynb" in found[0] and found[0].count(": ") >= 2
    )  # where, what, and what to do


def test_a_solution_without_a_cell_is_caught(book):
    given = cells()
    del given["solution"]
    write(book, given)
    assert "no code cell follows it" in check.RULES["7 exercises"](book)[0]


def test_the_notation_page_is_checked_against_the_chapters(book):
    page = book / "nbs/D_notation.qmd"
    page.write_text(
        NOTATION.replace("| 3 |", "| 3, 9 |")
        + "| $\\gamma$ | discount | 3 |\n| rest | none | all |\n"
    )
    found = "\n".join(check.RULES["5 notation"](book))
    assert "there is no chapter '9'" in found and "chapter 3 uses none of these" in found
    assert "holds no symbol" in found
    page.write_text("# Notation")
    assert "has no table" in "\n".join(check.RULES["5 notation"](book))
    page.unlink()
    assert "there is no nbs/D_notation.qmd" in "\n".join(check.RULES["5 notation"](book))


def test_the_word_list_is_sorted_and_not_in_the_dictionary(monkeypatch):
    monkeypatch.setattr(spelling, "own_words", lambda: ("softmax", "agentic", "house"))
    found = list(spelling.list_faults())
    assert (
        len(found) == 2
        and "sort the list" in found[0]
        and "'house' is in the dictionary" in found[1]
    )


def test_an_entry_of_the_bibliography_that_nothing_cites_is_a_finding(book):
    with (book / "references.bib").open("a") as file:
        file.write("@book{nobody2001read,\n  title = {Unread},\n}\n")
    assert check.RULES["4 references and links"](book) == [
        "references.bib: no page cites 'nobody2001read': cite it, or delete the entry"
    ]


def test_few_outputs_of_the_book_are_not_compared():
    """`sample` is the only way out of a rule: for sampled text, and for at most 15 cells of the book."""
    cells_ = [cell for path in project.notebooks(ROOT) for cell in prose.cells(path)]
    assert sum(cell.options.get("tolerance") == "sample" for cell in cells_) <= 15


# Rules 1 and 2, by hand and by a run.


def stream(text):
    return [{"output_type": "stream", "name": "stdout", "text": text}]


@pytest.mark.parametrize(
    ("stored", "new", "allowed", "differs"),
    [
        ("loss 0.1234\n", "loss 0.1235\n", None, None),  # one unit of the last digit
        ("loss 0.1234\n", "loss 0.1236\n", None, "0.1234 is stored, the fresh run gives 0.1236"),
        ("loss 0.1234\n", "loss 0.2\n", 0.1, None),
        ("loss 0.1234\n", "loss 0.24\n", 0.1, "0.1234 is stored"),
        ("steps 1,000\n", "steps 1,001\n", None, "1,000 is stored"),
        ("steps 1000\n", "steps 1090\n", 0.1, None),  # a tenth of what is above 1
        ("steps 1000\n", "steps 1200\n", 0.1, "1000 is stored"),
        ("error 3e-08\n", "error 2e-07\n", None, None),  # rounding noise
        ("error 3e-08\n", "error 2e-04\n", None, "3e-08 is stored"),
        ("gain -0.5\n", "gain 0.5\n", None, "-0.5 is stored"),
        ("12 s, ratio 3.1\n", "19 s, ratio 2.2\n", "timing", None),
        ("12 s, ratio 3.1\n", "19 s, rate 2.2\n", "timing", "the stored line is"),
        ("1 failed in 0.01s\n", "1 failed in 0.02s\n", "timing", None),  # as pytest writes it
        ("1 failed in 0.01s\n", "1 failed in 0.01sec\n", "timing", "the stored line is"),
        ("a   1\n", "a 1\n", None, None),  # columns move with the width of numbers
        ("one\n", "two\n", 0.5, "the stored line is 'one'"),
        ("one\n", "one\ntwo\n", 0.5, "1 lines are stored"),
        (
            "0.50 [0.40, 0.60], n 5\n",
            "0.68 [0.31, 0.99], n 6\n",
            "intervals",
            None,
        ),  # within the wider one's width
        ("0.50 [0.40, 0.60]\n", "0.71 [0.61, 0.81]\n", "intervals", "0.50 is stored"),
        ("0.50 [0.40, 0.60], n 5\n", "0.50 [0.40, 0.60], n 9\n", "intervals", "5 is stored"),
        ("1.00 [1.00, 1.00]\n", "0.96 [0.95, 0.97]\n", "intervals", None),
        ("1.00 [1.00, 1.00]\n", "0.90 [0.89, 0.91]\n", "intervals", "1.00 is stored"),
        ("read edit\n", "edit submit\n", "sample", None),
        ("read edit\n", "", "sample", "one of the two is empty"),
    ],
)
def test_outputs_are_compared_within_the_declared_tolerance(stored, new, allowed, differs):
    found = fresh.cell_difference(stream(stored), stream(new), allowed)
    assert (found is None) if differs is None else differs in found


def test_figures_are_compared_by_number_and_size():
    figure = {"output_type": "display_data", "data": PIXEL}
    smaller = {**figure, "data": {**PIXEL, "text/plain": "<Figure size 600x320 with 1 Axes>"}}
    panels = {**figure, "data": {**PIXEL, "text/plain": "<Figure size 640x320 with 2 Axes>"}}
    text = {"output_type": "execute_result", "data": {"text/plain": "1"}}
    assert fresh.cell_difference([figure], [figure]) is None
    for other in ([smaller], [panels], [text], [], [figure, figure]):
        assert fresh.cell_difference([figure], other)


@pytest.mark.parametrize(
    ("edit", "code", "said"),
    [
        (None, 0, "0 cell(s) with other outputs"),
        (("print", "2.47", "2.57"), 1, "FINDING cell 6 "),
        (("values", "0.1", "1 / 0"), 1, "ZeroDivisionError"),
    ],
)
def test_a_chapter_is_run_and_compared(book, edit, code, said):
    given = cells()
    for key in ("figure", "after"):
        del given[key]
    if edit:
        given[edit[0]]["source"] = given[edit[0]]["source"].replace(*edit[1:])
    path = write(book, given)
    before = path.read_text()
    result = subprocess.run(
        [sys.executable, "-m", "booktools.fresh", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == code and said in result.stdout + result.stderr, (
        result.stdout + result.stderr
    )
    assert path.read_text() == before


# The parts.


def test_markdown_is_taken_apart():
    text = (
        "First $x = 1$, `code` and [a link](b.ipynb). Second @sec-a, [@key2020a, p. 3]; 5 $ and $6.\n\n"
        '```python\nx = 99\n```\n\n| a | 7 |\n| --- | --- |\n\n- item one\n- item two\n\n::: {.callout-note title="A title"}\nIn it.\n:::'
    )
    found = prose.sentences(text)
    assert [s.shown() for s in found][:2] == [
        "First $x = 1$, `code` and a link[a link](b.ipynb).",
        "Second @sec-a, [@key2020a, p. 3]; 5 $ and $6.",
    ]
    assert found[0].of("math", "code") == ["$x = 1$", "`code`"] and found[1].of("ref", "cite") == [
        "@sec-a",
        "@key2020a",
    ]
    plain = " ".join(s.plain() for s in found)
    assert "99" not in plain and "A title" in plain and "In it." in plain and "5 $ and $6" in plain
    assert "| a | 7 |" in [s.text for s in found] and "- item two" in [s.text for s in found]


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        (r"\frac12 + \frac{3}{4}", 1.25),
        (r"2 \cdot 0.5^2 \times 3", 1.5),
        (r"\sqrt{0.25}/\sqrt[3]{8}", 0.25),
        (r"-\log \frac12 \Big( 1 - 0.5 \Big)", 0.34657359),
        (r"\binom{4}{2} (1 - 0.25)^2", 3.375),
        (r"\max(1, 3) - \min(2, 5)", 1),
        (r"1{,}000 / 10", 100),
        (r"2 x", None),
        (r"1 / 0", None),
    ],
)
def test_arithmetic_in_formulas(formula, value):
    found = latex.value(formula)
    assert found is None if value is None else found == pytest.approx(value)


def test_equations_are_pairs_of_sides():
    assert [x[2:] for x in latex.equations(r"a = 1/4 = 0.25, \quad b \approx 2 \cdot 3 = 6")] == [
        (0.25, 0.25),
        (6, 6),
    ]
    assert [x[2:] for x in latex.equations(r"(1/2, -2 \cdot 3) = (0.5, -6)")] == [
        (0.5, 0.5),
        (-6, -6),
    ]
    assert list(latex.equations("x = 1, 2 = 2")) == []


def test_symbols_of_formulas():
    found = latex.symbols(
        r"\hat{A}_{i,t} = \frac{\pi_\theta(o)}{\pi_{\text{old}}} \operatorname{clip}(r) + \mathbb{E}[\log x'] \dots"
    )
    assert found == {
        r"\hat A",
        "i",
        "t",
        r"\pi",
        r"\theta",
        "o",
        r"\operatorname{clip}",
        "r",
        r"\mathbb{E}",
        "x",
    }
    assert latex.symbols(r"\hat A") == latex.symbols(r"\hat{A}")
    assert notation._chapters("6 to 8, B and headline") == {"6", "7", "8", "B", "headline"}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("about 1,600 of them", [(1600.0, True)]),
        (
            "chapter 13, sections 9.2 and 9.3, Python 3.11, seeds 20 to 24, 2026-11-30, in 2025, 32-bit",
            [],
        ),
        ("a 95% interval from 0.3 to 14", [(0.3, False), (14.0, False)]),
        ("GPT-4 and k3 and H200 and 32B", []),
        ("4.5 million tokens", [(4.5e6, False)]),
        ("it fell by 1e-3, to -0.5", [(0.001, False), (0.5, False)]),
    ],
)
def test_numbers_in_running_text(text, numbers):
    found = [
        (n.value, rough)
        for sentence in prose.sentences(text)
        for n, rough, _ in numerals.stated(sentence)
    ]
    assert found == numbers


def test_rounding_of_stated_numbers():
    shown = numerals.Evidence()
    for number in numerals.printed("0.4583 -1.5 1,587 12% 0.3"):
        shown.show(*number)

    def backs(text, rough=False):
        return shown.backs(latex.literal(text), rough)

    assert all(
        backs(x) for x in ("0.46", "0.458", "0.5", "-1.5", "1.5", "1587", "0.12", "0.3", "0.30")
    )
    assert not any(backs(x) for x in ("0.47", "0.4584", "-0.46", "1586", "0.31", "0.29"))
    assert backs("1600", rough=True) and not backs("1600") and not backs("1700", rough=True)


def test_spelling_is_british():
    assert all(
        map(
            spelling.known,
            ["behaviour", "Normalised", "isn't", "policies", "unlearnt", "GRPO's", "tokenizer"],
        )
    )
    assert not any(map(spelling.known, ["behavior", "normalizd", "recieve", "polices'x", "color"]))
    assert len(spelling.dictionary()) > 80_000


def test_labels_of_the_book_are_unique():
    assert {name for name, paths in refs.labels(ROOT).items() if len(paths) > 1} == set()


# Opening alone.


def test_the_installing_cell_is_stamped_once_and_follows_the_settings(book):
    path = book / "nbs/03_policy.ipynb"
    sources = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    assert sources[1] == alone.install_cell(book) and sources.count(sources[1]) == 1
    assert "agentrl[chapters]==0.1.0" in sources[1] and sources[2].startswith("#| default_exp")
    settings = book / "settings.ini"
    settings.write_text(settings.read_text().replace("version = 0.1.0", "version = 0.2.0"))
    assert "out of date" in check.RULES["notebooks that open alone"](book)[0]
    before = path.read_text()
    alone.stamp(book)
    assert (
        check.RULES["notebooks that open alone"](book) == []
        and path.read_text().replace("0.2.0", "0.1.0") == before
    )
    alone.stamp(book)
    assert path.read_text().count("0.2.0") == before.count("0.1.0")


@pytest.mark.parametrize(("version", "installs"), [("0.1.0", False), ("0.0.9", True), (None, True)])
def test_the_installing_cell_installs_what_is_missing(book, tmp_path, version, installs):
    library = tmp_path / "path/agentrl"
    library.mkdir(parents=True)
    body = (
        "raise ModuleNotFoundError('no', name='agentrl')"
        if version is None
        else f"__version__ = {version!r}"
    )
    (library / "__init__.py").write_text(body)
    code = (
        "import subprocess\ncalls = []\nsubprocess.run = lambda command, **options: calls.append(command[1:])\n"
        + alone.install_cell(book)
        + "\nimport sys\nprint(calls, 'agentrl' in sys.modules)"
    )

    def run_cell():
        environment = {**os.environ, "PYTHONPATH": str(library.parent)}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=library.parent,
            capture_output=True,
            text=True,
        )

    result = run_cell()
    wanted = [["-m", "pip", "install", "--quiet", "agentrl[chapters]==0.1.0"]] if installs else []
    assert result.stdout.split("\n")[-2] == f"{wanted} {not installs}"
    (library / "__init__.py").write_text(
        "import no_such_package"
    )  # there and broken: said, not replaced
    result = run_cell()
    assert result.returncode and "no_such_package" in result.stderr and not result.stdout


def test_each_work_has_one_row_on_the_page_of_sources(book):
    row, page = "| [@kool2019buy] | The estimator. |\n", book / "nbs/E_sources.qmd"
    head = "# Sources {#sec-sources}\n\n| source | what |\n| --- | --- |\n"
    for rows, found in ((0, ["0 rows"]), (1, []), (2, ["2 rows"])):
        page.write_text(head + rows * row)
        findings = check.RULES["4 references and links"](book)
        assert len(findings) == len(found) and all(f in line for f, line in zip(found, findings))
