"""`make test`: static checks, unit tests and every chapter, a few processes at a time."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .check import CHECKS, cleanliness
from .project import ROOT, BookError, find_notebook, notebooks, strip_colors


def test(chapter=None, jobs=None, root=ROOT):
    """Run everything, or one chapter; print the times; raise BookError if anything failed."""
    root, start = Path(root), time.time()
    paths = [find_notebook(chapter, root)] if chapter else notebooks(root)
    checks = {"notebook cleanliness": lambda root: cleanliness(root, paths)} if chapter else CHECKS
    failures = _static(root, checks)
    nbdev_test = str(Path(sys.executable).with_name("nbdev-test"))
    work = {p.stem: [nbdev_test, str(p)] for p in paths}
    units = [] if chapter else sorted((root / "tests").glob("test_*.py"))
    work |= {
        f"tests/{p.name}": [sys.executable, "-m", "pytest", "-q", "--color=no", str(p)]
        for p in units
    }
    seconds, failed = _parallel(work, jobs or min(4, os.cpu_count() or 1), root)
    failures += [f"{name}: {reason}" for name, reason in failed.items()]
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
        f"all passed: {len(paths)} notebook(s), {len(units)} file(s) of unit tests, "
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
    """Run the commands, longest first by the last times; `({name: seconds}, {name: reason})`."""
    record = root / ".venv/test-times.json"
    last = json.loads(record.read_text()) if record.exists() else {}
    order = sorted(
        work, key=lambda name: -last.get(name, 1e6 + Path(work[name][-1]).stat().st_size)
    )
    seconds, failures, running = {}, {}, set()

    def one(name):
        start = time.time()
        process = subprocess.Popen(
            work[name], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.add(process)
        output = process.communicate()[0]
        running.discard(process)
        return name, process.returncode, strip_colors(output), time.time() - start

    print(f"\nrunning {len(work)} of: {', '.join(order)}; {jobs} at a time", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            futures = [pool.submit(one, name) for name in order]
            for done, future in enumerate(as_completed(futures), 1):
                name, code, output, seconds[name] = future.result()
                print(
                    f"[{done:2d}/{len(work)}] {name:26}{'FAILED' if code else 'ok':>8}"
                    f"{seconds[name]:7.1f} s",
                    flush=True,
                )
                if code:
                    tail = output.splitlines()[-60:]
                    print("".join(f"    {line}\n" for line in tail), flush=True)
                    failures[name] = _reason(output)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise BookError("interrupted; nothing was changed") from None
    if record.parent.exists():
        record.write_text(json.dumps(last | seconds))
    return seconds, failures


def _reason(output):
    """The line of an output that says most: pytest's FAILED, or the exception and its code."""
    lines = [x.strip() for x in output.splitlines() if x.strip().strip("^=-")]
    for at in range(len(lines) - 1, 0, -1):
        if lines[at].startswith("FAILED "):
            return lines[at].removeprefix("FAILED ")
        if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", lines[at]) and " in /" not in lines[at]:
            return f"{lines[at]} at `{lines[at - 1]}`"
    return (lines or ["no output"])[-1]
