"""The sandbox against the design it replaces: the same payloads, the same episodes, one run, ratios.

    python benchmarks/sandbox.py [--episodes 200] [--no-payloads]

The design it replaces, as the book's source material describes it, is rebuilt here: a fresh interpreter a call in a
fresh folder, `python -I -S -B`, an environment of three variables, resource limits, and a verdict read from a line of
output that begins with a secret marker. It runs as the same user, with the network, beside the hidden tests.

Writes `results/sandbox.json`. Only the payloads under tests/exploits/given go through the old design: they aim at
targets that this script makes for them. Those under tests/exploits/more would reach the machine itself.
"""

import argparse
import ctypes
import json
import os
import resource
import secrets
import select
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/exploits"))
import runner  # noqa: E402

sandbox = runner.load_sandbox(ROOT / "agentrl/sandbox.py")

CALL = """import json, {name}
arguments, expected = {test}
def same():
    if isinstance(expected, type):
        try: {name}.{name}(*arguments)
        except Exception as error: return type(error) is expected
        return False
    value = {name}.{name}(*arguments)
    return value == expected or (value != value and expected != expected)
print("\\n{marker} " + json.dumps({{"passed": int(same()), "total": 1}}))
"""


class OldDesign:
    """The design that the sandbox replaces, behind the same two methods."""

    workers = 1

    def grade(self, files, fn_name, tests, fresh_state=False):
        start, passed = time.monotonic(), 0
        for test in tests:
            marker = "RESULT-" + secrets.token_hex(16)
            text = repr(test).replace("<class 'ValueError'>", "ValueError").replace("nan", "float('nan')")
            call = CALL.format(name=fn_name, test=text, marker=marker)
            result = self.run({**files, "runner.py": call}, ["python", "runner.py"])
            lines = [x for x in result.stdout.splitlines() if x.startswith(marker)]
            try:
                passed += json.loads(lines[0][len(marker) :])["passed"] >= 1
            except (IndexError, ValueError, TypeError, KeyError):
                break
        reward = float(passed == len(tests))
        return sandbox.Verdict(reward, passed, len(tests), "" if reward else "failed", time.monotonic() - start)

    def run(self, files, argv, timeout=10):
        def limits():
            for what, value in (("CPU", 5), ("AS", 2**30), ("FSIZE", 2**20), ("NPROC", 0)):
                resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (value, value))

        with tempfile.TemporaryDirectory(prefix="old-") as folder:
            for path, text in files.items():
                Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, path).write_text(text)
            base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
            code = f"import sys; sys.path.insert(0, {folder!r}); sys.argv = {argv[1:]!r}; exec(open(sys.argv[0]).read())"
            process = subprocess.Popen(
                [base, "-I", "-S", "-B", "-c", code],
                cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=limits,
            )  # fmt: skip
            out, late = self.read(process, time.monotonic() + timeout)
            return sandbox.RunResult(out.decode("utf-8", "replace"), "", process.returncode, late, False)

    def read(self, process, deadline):
        """Output until the end or the deadline. Stops at 32 MiB, which the old design did not: this machine's memory."""
        out, late = b"", False
        with process.stdout as pipe:
            while len(out) < 2**25:
                if not select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
                    late = True
                    break
                part = os.read(pipe.fileno(), 2**16)
                if not part:
                    break
                out += part
            try:
                process.wait(max(0, deadline - time.monotonic()) if not late and len(out) < 2**25 else 0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return out, late


def handled(row, harm):
    """Whether a payload got its reward, in time, without an error, a leak or any harm."""
    fine = row["reward"] == row["wanted"] and not row["error"] and not row["leaks"] and not harm
    return fine and row["seconds"] <= row["most"]


def payloads(box, label):
    """`{file: handled}` for the given payloads, one after the other, so that harm is known by its culprit."""
    folder, found = ROOT / "tests/exploits/given", {}
    targets = runner.Targets()
    for case in json.loads((folder / "manifest.json").read_text()):
        row = runner.attack(box, case, folder, targets)
        harm = targets.harm()
        targets.signals.clear()
        targets.hidden.write_text(targets.before)
        for name in os.listdir(targets.out):
            (targets.out / name).unlink()  # the next payload answers for its own files only
        targets.looks = targets.look()
        found[case["file"]] = handled(row, harm)
        print(f"  {label:10}{case['file']:28}{'handled' if found[case['file']] else 'NOT HANDLED':14}{row['seconds']:5.1f} s", flush=True)
    library = ctypes.CDLL(None)
    library.shmctl(library.shmget(0x5B5B, 0, 0), 0, None)  # the mailbox of one payload
    time.sleep(14)  # what outlives its job writes a file by then
    if os.listdir(targets.out):
        found["d07_double_fork_daemon.py"] = False
    return found


def speed(old, new, episodes):
    """Seconds an episode of five hidden calls, by the clock, interleaved; one job at a time and all cores."""
    tests = runner.TASKS["scale"]

    def old_one(_):
        assert old.grade(runner.HONEST, "scale", tests).reward == 1.0

    def new_one(_, fresh_state=False):
        assert new.grade(runner.HONEST, "scale", tests, fresh_state=fresh_state).reward == 1.0

    ways = {"old": old_one, "new": new_one, "new, a fork a call": lambda i: new_one(i, True)}
    one, many = {k: [] for k in ways}, {k: [] for k in ways}
    for _ in range(5):
        for name, way in ways.items():
            count = max(4, episodes // (5 if name != "old" else 50))
            start = time.perf_counter()
            for i in range(count):
                way(i)
            one[name].append((time.perf_counter() - start) / count)
            with ThreadPoolExecutor(new.workers) as pool:
                start = time.perf_counter()
                list(pool.map(way, range(count)))
                many[name].append((time.perf_counter() - start) / count)
    return {k: min(v) for k, v in one.items()}, {k: statistics.median(v) for k, v in many.items()}


def cpu_of_episodes(box, count):
    """CPU milliseconds an episode of five calls: the parent's, the fork servers' and the jobs'."""

    def used():
        total = time.process_time()
        for server in box._pool.servers:
            for pid in [server.process.pid, *runner.descendants(server.process.pid)]:
                total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:15])) / os.sysconf("SC_CLK_TCK")
        return total

    before = used()
    for _ in range(count):
        box.grade(runner.HONEST, "scale", runner.TASKS["scale"])
    return (used() - before) / count * 1e3


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--episodes", type=int, default=200)
    options.add_argument("--no-payloads", action="store_true")
    chosen = options.parse_args()
    old, result = OldDesign(), {}
    with sandbox.Sandbox() as new:
        print(new)
        result["tier"] = new.tier
        result["cpu_ms_an_episode"] = round(min(cpu_of_episodes(new, chosen.episodes) for _ in range(3)), 2)
        alone, all_cores = speed(old, new, chosen.episodes)
        result["times_the_old_design"] = {
            "one job at a time": {k: round(alone["old"] / v, 1) for k, v in alone.items()},
            "all cores": {k: round(all_cores["old"] / v, 1) for k, v in all_cores.items()},
        }
        if not chosen.no_payloads:
            both = {"old": payloads(old, "old"), "new": payloads(new, "new")}
            result["handled_of_100"] = {k: round(100 * sum(v.values()) / len(v)) for k, v in both.items()}
            result["not_handled"] = {k: sorted(x for x, fine in v.items() if not fine) for k, v in both.items()}
    print(json.dumps(result, indent=1))
    (ROOT / "results/sandbox.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("default")
    main()
