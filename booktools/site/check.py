"""`make site-check`: is the built site whole, valid, readable by all and on every screen?

`faults` needs nothing but Python. `tools` adds html-validate, axe-core in Chromium and epubcheck,
as far as they are there, and says what is missing and how to get it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from ..project import ROOT, BookError
from .build import NAME
from .html import ASSETS

OWN_KEYS = {"default_exp", "tolerance"}  # of nbdev and of `make check`; Quarto ignores both
FIRST_PAGE = 300_000  # bytes, with everything it loads but figures
_NPM = ["axe-core@4", "html-validate@9", "playwright-core@1"]
_VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "wbr",
}
_RULES = {
    "extends": ["html-validate:standard"],
    "rules": {
        "no-trailing-whitespace": "off", "no-raw-characters": "off", "long-title": "off",
        "attribute-boolean-style": "off", "void-style": "off", "no-implicit-button-type": "error",
    },
}  # fmt: skip


def site_check(root=ROOT):
    """Check `_book/`; prints what was checked, raises BookError with the faults found."""
    folder = Path(root) / "_book"
    if not (folder / "index.html").exists():
        raise BookError("there is no built site: `make site` builds it")
    found = faults(folder)
    print(f"{'links, ids, images, size':32}{'FAILED' if found else 'ok':>8}", flush=True)
    for name, check in tools(folder, Path(root)).items():
        result = check()
        if isinstance(result, str):
            print(f"{name:32} missing: {result}")
            continue
        print(f"{name:32}{'FAILED' if result else 'ok':>8}", flush=True)
        found += [f"{name}: {line}" for line in result]
    if found:
        raise BookError(f"{len(found)} fault(s) of the site:\n" + "\n".join(found[:200]))


class _Page(HTMLParser):
    """What a page holds: ids, links, what it loads, images, and tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.images, self.faults, self.open = (
            [],
            [],
            [],
            [],
            [],
            [],
        )
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag not in _VOID:
            self.open.append(tag)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
            if not found["href"]:
                self.faults.append("a link without an address")
        if tag == "img":
            self.images.append(found)
        if tag in ("link", "script", "img", "iframe", "source"):
            self.loads.append(found.get("href") or found.get("src") or "")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")


def faults(folder):
    """What is wrong with the pages in `folder`, one line each."""
    paths = sorted(Path(folder).rglob("*.html"))
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in paths}
    ids, found = {path: set(page.ids) for path, page in pages.items()}, []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        problems = list(page.faults)
        problems += [
            f"the id {x!r} stands twice"
            for x in sorted({x for x in page.ids if page.ids.count(x) > 1})
        ]
        problems += [f"loads {x} from elsewhere" for x in page.loads if re.match(r"(?:\w+:)?//", x)]
        problems += [
            f"{x} does not exist" for x in page.loads if x and not (path.parent / x).exists()
        ]
        problems += [f"{x.get('src')} has no alt text" for x in page.images if not x.get("alt")]
        problems += [
            f"{x['src']} has no size"
            for x in page.images
            if x["src"].endswith("svg") and "width" not in x
        ]
        for target in page.links:
            problems += _link_faults(path, target, ids)
        found += [f"{name}: {problem}" for problem in dict.fromkeys(problems)]
    size = _weight(Path(folder))
    if size > FIRST_PAGE:
        found.append(f"index.html and what it loads are {size} bytes; the limit is {FIRST_PAGE}")
    return found


def _link_faults(path, target, ids):
    if re.match(r"[a-z]+:|//", target):
        return []
    file, _, id = target.partition("#")
    there = (path.parent / unquote(file)).resolve() if file else path
    if not there.exists():
        return [f"the link {target} leads nowhere"]
    if id and there in ids and unquote(id) not in ids[there]:
        return [f"the link {target} leads to no id"]
    return []


def _weight(folder):
    """Bytes of the first page with its styles, scripts and every font of the text."""
    loads = [x for x in _Page((folder / "index.html").read_text(encoding="utf-8")).loads if x]
    fonts = list((folder / "assets/fonts").glob("*.woff2"))
    return sum(
        p.stat().st_size for p in [folder / "index.html", *(folder / x for x in loads), *fonts]
    )


def tools(folder, root):
    """`{name: check}`; a check returns its findings, or a string that says what is missing."""
    return {
        "Quarto's schema, panache": lambda: _schema(root),
        "html-validate": lambda: _html_validate(folder),
        "axe-core in Chromium": lambda: _browser(folder),
        "epubcheck": lambda: _epubcheck(folder / f"{NAME}.epub"),
    }


def _schema(root):
    """Front matter, `_quarto.yml` and cell options against the schema that Quarto publishes."""
    panache = shutil.which("panache", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not panache:
        return "pip install panache-cli"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(root / "_quarto.yml", folder)
        for path in [*root.glob("*.qmd"), *root.glob("nbs/*.qmd"), *root.glob("nbs/*.ipynb")]:
            (folder / f"{path.stem}.qmd").write_text(_as_qmd(path), encoding="utf-8")
        rules = "quarto-schema,quarto-schema-unknown-key"
        names = sorted(path.name for path in folder.iterdir())
        command = [panache, "lint", "--flavor", "quarto", "--select", rules, *names]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = re.findall(r"^(?:warning|error): (.*)\n *--> (.*)$", done.stdout + done.stderr, re.M)
    return [
        f"{Path(place).name}: {what}"
        for what, place in found
        if not any(key in what for key in OWN_KEYS)
    ]


def _as_qmd(path):
    if path.suffix == ".qmd":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    return "\n\n".join(
        f"```{{python}}\n{source}\n```" if cell["cell_type"] == "code" else source
        for cell, source in zip(cells, sources, strict=True)
    )


def _npm_folder():
    """The folder with the checkers from npm, filled on first use; None without npm."""
    place = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl-site-check"
    if not shutil.which("npm") or not shutil.which("node"):
        return None
    if not all((place / "node_modules" / x.partition("@")[0]).exists() for x in _NPM):
        place.mkdir(parents=True, exist_ok=True)
        command = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--silent",
            "--prefix",
            str(place),
            *_NPM,
        ]
        if subprocess.run(command, capture_output=True).returncode:
            return None
    return place


def _html_validate(folder):
    place = _npm_folder()
    if place is None:
        return "needs node and npm, and a network the first time"
    rules = place / "htmlvalidate.json"
    rules.write_text(json.dumps({"root": True, **_RULES}), encoding="utf-8")
    command = [str(place / "node_modules/.bin/html-validate"), "--config", str(rules), "--formatter", "json",
               str(folder / "**/*.html")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        files = json.loads(done.stdout)
    except ValueError:
        return [(done.stderr or done.stdout or "no answer").strip()[:500]]
    return [
        f"{Path(file['filePath']).name}:{x['line']}: {x['ruleId']}: {x['message']}"
        for file in files for x in file["messages"] if x["severity"] == 2
    ]  # fmt: skip


def _browser(folder):
    place, chromium = (
        _npm_folder(),
        next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None),
    )
    if place is None or chromium is None:
        return "needs node, npm and Chromium"
    script = ASSETS.with_name("browser.js")
    environment = {**os.environ, "NODE_PATH": str(place / "node_modules")}
    done = subprocess.run(
        ["node", str(script), str(folder), chromium],
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = [x for x in done.stdout.splitlines() if x.strip()]
    return lines + ([done.stderr.strip()[-500:]] if done.returncode else [])


def _epubcheck(path):
    jar = next(
        (x for x in ("/usr/bin/epubcheck", "/usr/share/java/epubcheck.jar") if Path(x).exists()),
        None,
    )
    if not path.exists():
        return "there is no EPUB: `make site` builds it"
    if jar is None or not shutil.which("java"):
        return "on Debian or Ubuntu: apt-get install epubcheck"
    done = subprocess.run(["java", "-jar", jar, str(path)], capture_output=True, text=True)
    return [
        x
        for x in (done.stdout + done.stderr).splitlines()
        if x.startswith(("ERROR", "FATAL", "WARNING"))
    ]
