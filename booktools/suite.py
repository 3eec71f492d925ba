"""`make test` and `make check`: static checks, unit tests and every chapter, a few processes at a time."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .check import CHECKS, RULES, cleanliness
from .project import ROOT, BookError, find_notebook, notebooks, strip_colors

# Seconds of each part in one run of everything on two cores: the order and the time left of a first run.
TYPICAL = Path(__file__).with_name("seconds.json")


def test(chapter=None, jobs=None, root=ROOT, units=True, chapters=True):
    """Run everything, or what concerns one chapter; print the times; raise BookError if anything failed.

    Each chapter is executed once, for rules 1 and 2 of the checker together. `units=False` leaves
    out the unit tests, `chapters=False` the chapters.
    """
    root, start = Path(root), time.time()
    paths = [find_notebook(chapter, root)] if chapter else notebooks(root)
    checks = {**CHECKS, **RULES}
    if chapter:
        checks = {"notebook cleanliness": cleanliness, **RULES}
        checks = {name: lambda root, check=check: check(root, paths) for name, check in checks.items()}
    failures = _static(root, checks)
    tests = sorted((root / "tests").glob("test_*.py")) if units and not chapter else []
    work = {p.stem: [sys.executable, "-m", "booktools.fresh", str(p)] for p in paths if chapters}
    work |= {
        f"tests/{p.name}": [sys.executable, "-m", "pytest", "-q", "--color=no", str(p)]
        for p in tests
    }
    if work:
        seconds, failed = _parallel(work, jobs or min(4, os.cpu_count() or 1), root)
        failures += [f"{name}: {reason}" for name, reasons in failed.items() for reason in reasons]
        print(f"\n{'':40}seconds")
        for name in work:
            print(f"{name:32}{'FAILED' if name in failed else 'ok':>8}{seconds[name]:7.1f}")
    print(f"{'all, by the clock':40}{time.time() - start:7.1f}\n")
    if failures:
        print("\n".join(f"FAILED  {line}" for line in failures))
        raise BookError(
            f"{len(failures)} failure(s), each listed above; "
            "look at one chapter with `make test CHAPTER=09`, or in `make lab`"
        )
    print(
        f"all passed: {len(paths) if chapters else 0} notebook(s) run, {len(tests)} file(s) of unit tests, "
        f"{len(checks)} static check(s)"
    )


def _static(root, checks):
    failures = []
    for name, check in checks.items():
        found = check(root)
        print(f"{name:32}{'FAILED' if found else 'ok':>8}", flush=True)
        failures += [f"{name}: {line}" for line in found]
    return failures


def _parallel(work, jobs, root):
    """Run the commands, longest first; print each with the time left; `({name: seconds}, {name: reasons})`."""
    record = root / ".venv/test-times.json"
    last = json.loads(record.read_text()) if record.exists() else {}
    known = json.loads(TYPICAL.read_text()) | last
    expected = {name: known.get(name, 20) for name in work}
    order = sorted(work, key=lambda name: -expected[name])
    seconds, started, failures, running = {}, {}, {}, set()
    share = max(1, (os.cpu_count() or 1) // min(jobs, len(work)))
    env = os.environ | {"LOKY_MAX_CPU_COUNT": str(share)}  # the workers of `run_seeds` in each part

    def one(name):
        start = started[name] = time.time()
        process = subprocess.Popen(
            work[name],
            cwd=root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.add(process)
        output = process.communicate()[0]
        running.discard(process)
        return name, process.returncode, strip_colors(output), time.time() - start

    minutes = sum(expected.values()) / jobs / 60
    print(
        f"\nrunning {len(work)} of: {', '.join(order)}; {jobs} at a time, about {minutes:.0f} min",
        flush=True,
    )
    with ThreadPoolExecutor(jobs) as pool:
        try:
            futures = [pool.submit(one, name) for name in order]
            for done, future in enumerate(as_completed(futures), 1):
                name, code, output, seconds[name] = future.result()
                print(
                    f"[{done:2d}/{len(work)}] {name:26}{'FAILED' if code else 'ok':>8}"
                    f"{seconds[name]:7.1f} s; about {_left(expected, seconds, started, jobs) / 60:.0f} min left",
                    flush=True,
                )
                if code:
                    tail = output.splitlines()[-60:]
                    print("".join(f"    {line}\n" for line in tail), flush=True)
                    failures[name] = _reasons(output)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise BookError("interrupted; nothing was changed") from None
    if record.parent.exists():
        record.write_text(json.dumps(last | seconds))
    return seconds, failures


def _left(expected, seconds, started, jobs):
    """Seconds that the rest will take: its expected times, at the speed of what is done, `jobs` at a time."""
    speed = sum(seconds.values()) / sum(expected[name] for name in seconds)
    now = time.time()
    rest = {name: expected[name] * speed for name in expected if name not in seconds}
    return sum(max(rest[name] - (now - started.get(name, now)), 0) for name in rest) / jobs


def _reasons(output):
    """The lines of an output that say most: the checker's findings, pytest's FAILED, or the exception and its code."""
    findings = [x.removeprefix("FINDING ") for x in output.splitlines() if x.startswith("FINDING ")]
    return findings or [_reason(output)]


def _reason(output):
    lines = [x.strip() for x in output.splitlines() if x.strip().strip("^=-")]
    for at in range(len(lines) - 1, 0, -1):
        if lines[at].startswith("FAILED "):
            return lines[at].removeprefix("FAILED ")
        if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", lines[at]) and " in /" not in lines[at]:
            return f"{lines[at]} at `{lines[at - 1]}`"
    return (lines or ["no output"])[-1]
