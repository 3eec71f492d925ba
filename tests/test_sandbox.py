"""The sandbox of appendix B: payloads, limits, clean-up, faults, refusals, and what each barrier is for."""

import ast
import functools
import importlib.util
import inspect
import itertools
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, OrderedDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
MODULE = HERE.parent / "agentrl/sandbox.py"
sys.path.insert(0, str(HERE / "exploits"))
import runner  # noqa: E402

sandbox = runner.load_sandbox(MODULE)
TESTS, HONEST = runner.TASKS["scale"], runner.HONEST
BWRAP, ROOT = shutil.which("bwrap"), hasattr(os, "geteuid") and os.geteuid() == 0
STRANGER = 50_000 + os.getpid() % 10_000  # a user id that nobody has

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox's barriers are those of Linux")


@functools.lru_cache(None)
def problem_of(tier):
    """Why a tier does not work on this machine, or ''."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sandbox.Sandbox(tier=tier, workers=1).close()
    except sandbox.SandboxError as error:
        return str(error)
    return ""


def need(tier, user="me"):
    """Skip with a reason what this machine cannot do; a failure where `.ci/run` has found that it can."""
    problem = problem_of(tier)
    if problem and tier in os.environ.get("AGENTRL_NEED_TIERS", "").split():
        pytest.fail(f"tier {tier} must work here; {problem}")
    if problem:
        pytest.skip(problem)
    if user == "user" and not ROOT:
        pytest.skip("only root can run this as another user; as you it runs in the test beside this one")


@pytest.fixture(scope="module", params=["bwrap", "landlock"])
def box(request):
    """A sandbox of each tier that works here, with short limits."""
    need(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = sandbox.Sandbox(sandbox.SandboxLimits(wall_s=5, cpu_s=2), request.param)
    with opened:
        yield opened


def short(tier, **limits):
    need(tier)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sandbox.Sandbox(sandbox.SandboxLimits(**limits), tier, workers=1)


def function(body, name="scale"):
    return {f"{name}.py": f"def {name}(n):\n    {body}\n"}


# Payloads.

# These use up the CPU or the memory, which the same limits stop in every tier: run in the strongest alone, for time's sake.
BURNERS = {
    *("d01_infinite_stdout.py", "d03_infinite_loop.py", "d15_memory_hog.py", "d17_native_recursion.py", "d19_regex_backtrack.py"),
    *("d21_ignores_signals.py", "d29_threads_that_spin.py", "d30_death_takes_long.py", "d31_catches_everything.py"),
    *("d32_error_stream.py", "d34_native_loop.py", "d35_memory_in_threads.py", "e09_hash_collisions.py", "e13_huge_str.py"),
    *("e22_deep_list.py", "e23_two_million_digits.py", "f26_a_byte_at_a_time.py"),
}


def plain_python(folder):
    """An interpreter that any user may run: this one, the system's, or a copy of this one."""
    base = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    if all(x.stat().st_mode & 0o001 for x in [base, *base.parents]):
        return str(base), {}
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        if os.path.exists(path) and subprocess.call(check) == 0:
            return path, {}
    library = Path(sandbox.interpreter_files()["library"])
    copy = folder / "python"
    shutil.copytree(library, copy / "lib" / library.name, ignore=shutil.ignore_patterns("*-packages", "test", "config-*"))
    (copy / "bin").mkdir()
    shutil.copy(base, copy / "bin/python")
    for path in base.parent.parent.glob("lib/libpython*"):
        shutil.copy(path, copy / "lib")
    return str(copy / "bin/python"), {"LD_LIBRARY_PATH": str(copy / "lib")}


@pytest.fixture
def public_folder():
    """A folder with the sandbox's module and the payloads that every user may read.

    Not pytest's own: each session that starts, such as the one beside this in `make test`, closes those to others.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentrl-public-"))
    folder.chmod(0o755)
    shutil.copy(MODULE, folder / "sandbox.py")
    shutil.copytree(HERE / "exploits", folder / "exploits", ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def as_user(folder, user, code, *arguments):
    """Run a program of the standard library alone, as this user or as a stranger; its standard output."""
    python, extra = (sys.executable, {}) if user == "me" else plain_python(folder)
    environment = {"PATH": os.environ["PATH"], **extra}
    who = {} if user == "me" else {"user": STRANGER, "group": STRANGER, "extra_groups": []}
    command = [python, *code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=folder, env=environment, **who)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.parametrize("tier", ["bwrap", "landlock"])
@pytest.mark.parametrize("user", ["me", "user"])
def test_every_payload_gets_what_it_deserves(tier, user, public_folder):
    need(tier, user)
    folder = public_folder
    folders = [str(folder / "exploits" / name) for name in ("given", "more", "blind") if (folder / "exploits" / name).exists()]
    settings = {"folders": folders, "tier": tier, "limits": {"wall_s": 3, "cpu_s": 1}, "workers": 3}
    if tier == "landlock":
        settings["skip"] = sorted(BURNERS)
        settings["alone"] = ["d09_thread_bomb.py"]  # there the limit on threads counts all of a user: honest threads beside it may fail
    report = json.loads(as_user(folder, user, ["exploits/runner.py"], "sandbox.py", json.dumps(settings)))
    rows = report["rows"]
    assert report["user"] == (STRANGER if user == "user" else os.getuid()) and report["tier"] == tier
    assert len(rows) >= 65 + 25 + 10 + (0 if "skip" in settings else len(BURNERS)) and sum(row["kind"] == "honest" for row in rows) >= 28
    wrong = [row for row in rows if row["reward"] != row["wanted"] or row["error"]]
    assert not wrong, wrong
    assert not [row for row in rows if row["leaks"] or row.get("found")]
    assert not [row for row in rows if row["seconds"] > row["most"] + 1]
    assert sum("found" in row for row in rows) >= 25
    for question in ("harm", "left behind", "after closing"):
        assert not report[question], report[question]
    assert report["restarts"] == 0 and report["honest job afterwards"] == 1.0


def test_the_given_payloads_are_the_given_ones():
    listed = json.loads((HERE / "exploits/given/manifest.json").read_text())
    assert len(listed) == 65 and {x["file"] for x in listed} == {p.name for p in (HERE / "exploits/given").glob("*.py")}
    given = HERE.parent.parent / "shared/cases/exploits"
    if given.exists():
        for path in given.glob("*"):
            assert (HERE / "exploits/given" / path.name).read_bytes() == path.read_bytes()


def test_with_the_default_limits_nothing_runs_over_12_seconds():
    need("bwrap")
    with sandbox.Sandbox(tier="bwrap", workers=2) as box, ThreadPoolExecutor(2) as pool:
        assert box.limits == sandbox.SandboxLimits() and box.limits.wall_s == 10 and box.limits.cpu_s == 5
        bodies = ["import time; time.sleep(1000)", "while True: pass"]
        for verdict in pool.map(lambda body: box.grade(function(body), "scale", TESTS), bodies):
            assert verdict.reward == 0.0 and verdict.seconds < 12, verdict


# Clean-up.


@pytest.mark.parametrize("tier, jobs", [("bwrap", 1000), ("landlock", 50)])
def test_timeouts_leave_nothing_behind(tier, jobs):
    need(tier)
    bodies = ["import time; time.sleep(60)"] * 3 + ["while True: pass"] + [
        "import threading, time\n    [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(20)]; time.sleep(60)"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        box = sandbox.Sandbox(sandbox.SandboxLimits(wall_s=0.05), tier, workers=4)
    with box, ThreadPoolExecutor(4) as pool:
        open_files = len(os.listdir("/proc/self/fd"))
        before = runner.left_behind(box)
        verdicts = list(pool.map(lambda i: box.grade(function(bodies[i % 5]), "scale", TESTS), range(jobs)))
        assert Counter(v.reward for v in verdicts) == {0.0: jobs}
        assert all("time is over" in v.why for v in verdicts), Counter(v.why for v in verdicts)
        assert runner.left_behind(box) == before and len(os.listdir("/proc/self/fd")) == open_files
        assert "Z" not in runner.descendants(os.getpid()).values() and box._pool.restarts == 0
        servers = [server.process.pid for server in box._pool.servers]
    assert not set(servers) & set(runner.descendants(os.getpid()))
    assert box._pool.base is None or not box._pool.base.exists()


# Faults of the sandbox are errors, never a reward.


def test_a_server_that_dies_is_an_error_and_is_replaced(box):
    with short(box.tier) as other:
        server = other._pool.servers[0]
        victim = max(runner.descendants(server.process.pid) or {server.process.pid: ""})
        timer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        timer.start()
        with pytest.raises(sandbox.SandboxError, match="fork server|set up|Broken pipe|reset"):
            for _ in range(200):
                other.grade(function("import time; time.sleep(0.05); return 0"), "scale", TESTS[:1])
        timer.join()
        assert other.grade(HONEST, "scale", TESTS).reward == 1.0 and other._pool.restarts == 1
        assert len(runner.descendants(os.getpid())) > 0


def test_a_job_whose_doors_do_not_shut_is_an_error():
    need("bwrap")
    with sandbox.Sandbox(tier="bwrap", workers=1, _leave_out=("room",)) as box:
        with pytest.raises(sandbox.SandboxError, match="could not be set up"):
            box.grade(HONEST, "scale", TESTS)


def test_files_that_need_too_much_memory_are_the_models_fault(box):
    with short(box.tier, memory_mb=128, disk_mb=128, file_mb=128) as other:
        verdict = other.grade(HONEST | {"big.txt": "x" * 2**26}, "scale", TESTS)
        assert verdict.reward == 0.0 and "memory" in verdict.why
        assert other.grade(HONEST, "scale", TESTS).reward == 1.0


def test_two_sandboxes_run_as_two_users(box):
    with short(box.tier) as other:
        assert not ROOT or not other._pool.users & box._pool.users


def test_closed_and_foreign_sandboxes_refuse(box):
    other = short(box.tier)
    other.close()
    with pytest.raises(sandbox.SandboxError, match="closed"):
        other.grade(HONEST, "scale", TESTS)
    child = os.fork()
    if child == 0:
        try:
            box.grade(HONEST, "scale", TESTS)
        except sandbox.SandboxError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert box.grade(HONEST, "scale", TESTS).reward == 1.0


def test_an_interrupted_caller_leaves_no_job(box):
    before = runner.left_behind(box)
    threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        box.grade(function("import time; time.sleep(60)"), "scale", TESTS)
    assert runner.left_behind(box) == before and box._pool.restarts == 0
    assert box.grade(HONEST, "scale", TESTS).reward == 1.0


def test_a_parent_that_is_killed_takes_everything_with_it(tmp_path):
    need("landlock")
    code = (
        f"import sys; sys.path.insert(0, {str(HERE / 'exploits')!r}); import runner, threading, time\n"
        f"m = runner.load_sandbox({str(MODULE)!r}); b = m.Sandbox(tier={'bwrap' if BWRAP else 'landlock'!r}, workers=1)\n"
        "threading.Thread(target=b.grade, args=({'f.py': 'while True: pass'}, 'f', [((), 0)]), daemon=True).start()\n"
        "time.sleep(0.5); print(*runner.descendants(__import__('os').getpid()), flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
    pids = process.stdout.readline().split()
    process.kill()
    process.wait()
    assert len(pids) >= 2
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


# The self-test notices a missing barrier.


@pytest.mark.parametrize(
    "tier, left_out, found",
    [
        ("landlock", "landlock", {"read_file", "write_file"}),
        ("landlock", "seccomp", {"process", "kernel"}),
        ("landlock", "limits", {"memory", "large_file", "threads"}),
        ("bwrap", "seccomp", {"process", "kernel"}),
        ("bwrap", "limits", {"memory", "large_file", "threads"}),
    ],
)
def test_the_self_test_finds_what_was_left_out(tier, left_out, found):
    need(tier)
    limits = sandbox.SandboxLimits()
    pool = sandbox._Pool(tier, limits, 1, (left_out,))
    try:
        with pytest.raises(sandbox.SandboxError, match="got past") as error:
            sandbox._self_test(pool, limits)
    finally:
        pool.close()
    assert found <= set(re.split(r"got past |, ", str(error.value)))


def test_in_the_bwrap_tier_no_single_barrier_guards_the_files():
    need("bwrap")
    limits = sandbox.SandboxLimits()
    pool = sandbox._Pool("bwrap", limits, 1, ("landlock",))
    try:
        sandbox._self_test(pool, limits)  # the mount namespace hides them alone
    finally:
        pool.close()


# Degrades aloud, or refuses.


def test_auto_takes_the_strongest_and_says_so():
    need("bwrap")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sandbox.Sandbox(workers=1) as box:
            assert box.tier == "bwrap" and repr(box) == "Sandbox(tier='bwrap', workers=1)"


def test_without_bubblewrap_auto_degrades_with_a_warning(monkeypatch):
    need("landlock")
    monkeypatch.setattr(sandbox.shutil, "which", lambda name, path=None: None if name == "bwrap" else "/usr/bin/" + name)
    with pytest.warns(sandbox.SandboxWarning, match="does not bound the disk space.*bubblewrap.* is not installed"):
        box = sandbox.Sandbox(workers=1)
    with box:
        assert box.tier == "landlock" and box.grade(HONEST, "scale", TESTS).reward == 1.0
    with pytest.raises(sandbox.SandboxError, match="tier bwrap: .*not installed.*apt-get install bubblewrap"):
        sandbox.Sandbox(tier="bwrap", workers=1)


NO_NAMESPACES = """
import errno, os, struct, sys, warnings
sys.path.insert(0, "exploits")
import runner
sandbox = runner.load_sandbox("sandbox.py")
unshare, clone, clone3 = ((272, 56, 435) if os.uname().machine == "x86_64" else (97, 220, 435))
def op(code, k, yes=0, no=0): return struct.pack("<HBBI", code, yes, no, k)
refuse, allow = 0x50000, 0x7fff0000
program = [op(0x20, 0), op(0x15, unshare, no=1), op(0x06, refuse | errno.EPERM), op(0x15, clone3, no=1), op(0x06, refuse | errno.ENOSYS)]
if "no-landlock" in sys.argv:
    program += [op(0x15, 444, no=1), op(0x06, refuse | errno.ENOSYS)]
program += [op(0x15, clone, no=3), op(0x20, 16), op(0x45, 0x10000000, no=1), op(0x06, refuse | errno.EPERM), op(0x06, allow)]
sandbox._do("prctl", 38, 1, 0, 0, 0)
sandbox._filter_calls(b"".join(program))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    try:
        with sandbox.Sandbox(workers=1) as box:
            print(box.tier, box.grade(runner.HONEST, "scale", runner.TASKS["scale"]).reward)
    except sandbox.SandboxError as error:
        print("refused:", error)
print(*(str(x.message) for x in said))
"""


def test_without_user_namespaces_it_degrades_and_without_landlock_it_refuses(public_folder):
    need("bwrap")
    need("landlock")
    folder = public_folder
    user = "user" if ROOT else "me"
    text = as_user(folder, user, ["-c", NO_NAMESPACES])
    assert text.startswith("landlock 1.0") and "does not bound the disk space" in text and "tier bwrap:" in text
    text = as_user(folder, user, ["-c", NO_NAMESPACES], "no-landlock")
    assert text.startswith("refused: tier bwrap: ") and "tier landlock: this kernel has no Landlock" in text
    assert "allow user namespaces" in text and "tier='unsafe'" in text


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_refused_with_a_way_out(monkeypatch, system):
    monkeypatch.setattr(sandbox.sys, "platform", system)
    with pytest.raises(sandbox.SandboxError, match=f"this is {system}.*Linux virtual machine.*WSL 2"):
        sandbox.Sandbox()


def test_an_unknown_processor_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    with pytest.raises(sandbox.SandboxError, match="no list of system calls for riscv64"):
        sandbox.Sandbox()


def test_the_unsafe_tier_warns_at_each_start_and_still_grades():
    for _ in range(2):
        with pytest.warns(sandbox.SandboxWarning, match="no barriers: only for code that you wrote"):
            box = sandbox.Sandbox(sandbox.SandboxLimits(wall_s=2), tier="unsafe", workers=1)
        with box:
            assert box.grade(HONEST, "scale", TESTS).reward == 1.0
            assert box.grade(function("while True: pass"), "scale", TESTS).reward == 0.0
    code = f"import sys; sys.path.insert(0, {str(HERE / 'exploits')!r}); import runner; m = runner.load_sandbox({str(MODULE)!r})\n"
    code += "for _ in range(2): m.Sandbox(tier='unsafe', workers=1).close()"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert said.count("no barriers") == 2, said


# Grading.


@pytest.mark.parametrize("fresh_state", [False, True])
def test_verdicts(box, fresh_state):
    verdict = box.grade(HONEST, "scale", TESTS, fresh_state=fresh_state)
    assert (verdict.reward, verdict.passed, verdict.total, verdict.why) == (1.0, 5, 5, "")
    assert type(verdict.reward) is float and 0 < verdict.seconds < 5
    verdict = box.grade(function("return n * 3 + (n != 7)"), "scale", TESTS, fresh_state=fresh_state)
    assert (verdict.reward, verdict.passed, verdict.total) == (0.0, 4, 5) and "a wrong answer, an int" in verdict.why
    verdict = box.grade({"scale.py": "import nothing"}, "scale", TESTS, fresh_state=fresh_state)
    assert (verdict.reward, verdict.passed) == (0.0, 0) and "raised ModuleNotFoundError" in verdict.why
    verdict = box.grade({"scale.py": "x = 1"}, "scale", TESTS, fresh_state=fresh_state)
    assert verdict.reward == 0.0 and "AttributeError" in verdict.why


def test_fresh_state_means_a_process_a_call(box):
    counter = {"count.py": "n = 0\ndef count():\n    global n\n    n += 1\n    return n"}
    assert box.grade(counter, "count", [((), 1), ((), 2), ((), 3)]).reward == 1.0
    assert box.grade(counter, "count", [((), 1), ((), 1), ((), 1)], fresh_state=True).reward == 1.0


def test_the_wall_limit_is_one_for_all_calls():
    with short("bwrap", wall_s=1) as box:
        verdict = box.grade(function("import time; time.sleep(0.4); return n * 3 + 1"), "scale", TESTS, fresh_state=True)
        assert verdict.reward == 0.0 and 1 <= verdict.passed <= 2 and verdict.seconds < 4


def test_what_a_verdict_says_holds_no_hidden_value(box):
    tests = [(("hidden-input",), "hidden-output")]
    for body in ("return n", "raise ValueError(n)", "raise type(n, (Exception,), {})", "raise type(n, (Exception,), {'__module__': 'builtins'})", "return type(n, (), {})()", "print(n); return n * 2", "import os; os.write(2, n.encode()); os._exit(3)"):
        verdict = box.grade(function(body), "scale", tests)
        assert verdict.reward == 0.0 and "hidden" not in verdict.why
    assert "hidden" not in box.grade(function("return n"), "scale", tests).why


def test_threads_share_a_sandbox(box):
    def one(i):
        right = i % 2
        return box.grade(function(f"return n * 3 + {right}"), "scale", TESTS).reward == right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(60)))


@pytest.mark.parametrize(
    "files, name, tests, message",
    [
        ([], "scale", TESTS, "files is"),
        ({"scale.py": b""}, "scale", TESTS, "files is"),
        ({1: ""}, "scale", TESTS, "files is"),
        ({"other.py": ""}, "scale", TESTS, "files has no scale.py"),
        (HONEST, "not a name", TESTS, "fn_name is"),
        (HONEST, "class", TESTS, "fn_name is"),
        (HONEST, None, TESTS, "fn_name is"),
        (HONEST, "scale", [], "tests is"),
        (HONEST, "scale", None, "tests is"),
        (HONEST, "scale", [(1, 4)], r"tests\[0\]"),
        (HONEST, "scale", [((1,), 4), ((1,),)], r"tests\[1\]"),
        (HONEST, "scale", [((1,), object())], r"tests\[0\].*plain"),
        (HONEST, "scale", [((object(),), 1)], r"tests\[0\].*plain"),
        (HONEST, "scale", [((1,), int)], r"tests\[0\].*exception"),
        (HONEST, "scale", [((1,), "x" * 2**21)], r"tests\[0\].*bytes"),
    ],
)
def test_what_the_caller_gets_wrong_is_a_value_error(files, name, tests, message):
    with pytest.raises(ValueError, match=message):
        sandbox.check_calls(files, name, tests)


def test_settings_are_validated_before_any_work():
    for field, value in [
        ("wall_s", 0), ("wall_s", math.nan), ("cpu_s", 1.5), ("memory_mb", 1), ("file_mb", -1), ("disk_mb", True),
        ("inodes", "512"), ("output_kb", None), ("threads", 0), ("threads", 10**6),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=f"{field} is .*it must be a"):
            sandbox.SandboxLimits(**{field: value})
    for wrong in ({"tier": "docker"}, {"workers": 0}, {"workers": 1.0}, {"limits": {"wall_s": 1}}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
            sandbox.Sandbox(**wrong)


def test_the_contract():
    assert str(inspect.signature(sandbox.SandboxLimits)) == (
        "(wall_s: float = 10, cpu_s: int = 5, memory_mb: int = 1024, file_mb: int = 1, disk_mb: int = 16, "
        "inodes: int = 512, output_kb: int = 1024, threads: int = 64) -> None"
    )
    names = {f: list(inspect.signature(getattr(sandbox.Sandbox, f)).parameters) for f in ("grade", "run")}
    assert names == {"grade": ["self", "files", "fn_name", "tests", "fresh_state"], "run": ["self", "files", "argv", "timeout"]}
    assert list(sandbox.Verdict.__dataclass_fields__) == ["reward", "passed", "total", "why", "seconds"]
    assert list(sandbox.RunResult.__dataclass_fields__) == ["stdout", "stderr", "returncode", "timed_out", "truncated"]


# Exact comparison.

PLAIN = [
    None, True, False, 0, 1, -1, 255, 256, -128, 2**64, 0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 0j, 1j, "", "1", "\ud800",
    b"", b"1", (), [], {}, set(), frozenset(), (1,), [1], [True], [1.0], {1}, frozenset({1}), {1: 1}, {1: True}, {True: 1}, {1.0: 1}, ((),), ([],), [[]],
    [None], ["a", "b"], ["ab"], ["a", ["b"]], [["a"], "b"], {"a": 1, "b": 2}, {"a": 2, "b": 1}, (0, -1), (0, 255), -2**63, 10**30,
]  # fmt: skip


def test_two_plain_values_have_the_same_bytes_only_if_they_are_the_same():
    for (i, a), (j, b) in itertools.product(enumerate(PLAIN), repeat=2):
        assert (sandbox.canonical_bytes(a) == sandbox.canonical_bytes(b)) == (i == j), (a, b)
    same = [({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({3, 1, 2}, {1, 2, 3}), (math.nan, -math.nan), ([math.nan], [float("nan")])]
    for a, b in same:
        assert sandbox.canonical_bytes(a) == sandbox.canonical_bytes(b)


def test_what_is_not_plain_has_no_bytes():
    pair = namedtuple("pair", "x y")
    for value in (object(), Counter("a"), OrderedDict(), pair(1, 2), type("I", (int,), {})(1), bytearray(), range(3), ast, [object()]):
        with pytest.raises(TypeError, match="not plain data"):
            sandbox.canonical_bytes(value)


# Programs.


def test_programs_run_as_an_interpreter_would_run_them(box):
    cases = [
        ({"a.py": "import sys; print(sys.argv, __name__); print('e', file=sys.stderr)"}, ["python", "a.py", "x"], "['a.py', 'x'] __main__\n", "e\n", 0),
        ({"a.py": "raise SystemExit(3)"}, ["python3", "a.py"], "", "", 3),
        ({"a.py": "raise SystemExit('no')"}, ["python", "a.py"], "", "no\n", 1),
        ({"d/a.py": "import b", "d/b.py": "print('b')"}, ["python", "d/a.py"], "b\n", "", 0),
        ({}, ["python", "-c", "import sys; print(sys.argv)", "y"], "['-c', 'y']\n", "", 0),
        ({"m/__init__.py": "", "m/__main__.py": "print('m')"}, ["python", "-m", "m"], "m\n", "", 0),
        ({}, ["python", "-c", "import atexit, threading, time; atexit.register(print, 'end'); threading.Thread(target=lambda: (time.sleep(.05), print('t'))).start()"], "t\nend\n", "", 0),
        ({}, ["python", "-c", "print(input())"], "", "EOFError", 1),
        ({}, ["python", "none.py"], "", "can't open file 'none.py'", 2),
        ({}, ["python"], "", "this sandbox runs python FILE", 2),
        ({}, ["bash", "-c", "ls"], "", "bash: cannot run this", 127),
        ({"../a.py": ""}, ["python", "a.py"], "", "no plain relative path", 126),
        ({}, ["python", "-c", "print('\\ud800\\xe9')"], "\\ud800é\n", "", 0),
    ]  # fmt: skip
    for files, argv, out, err, code in cases:
        result = box.run(files, argv)
        assert (result.stdout, result.returncode) == (out, code) and err in result.stderr, (argv, result)
        assert not result.timed_out and not result.truncated and (err or not result.stderr), result
    result = box.run({"a.py": "def f():\n    1 / 0\nf()"}, ["python", "a.py"])
    assert result.returncode == 1 and "sandbox" not in result.stderr
    assert result.stderr.splitlines()[:3] == ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    f()"]


def test_pytest_runs_and_planted_plugins_do_not(box):
    tests = {"test_scale.py": "from scale import scale\ndef test_one(): assert scale(1) == 4\ndef test_two(): assert scale(2) == 8\n"}
    for argv in (["pytest", "-q"], ["python", "-m", "pytest", "-q"]):
        result = box.run(HONEST | tests, argv)
        assert result.returncode == 1 and "1 failed, 1 passed" in result.stdout and "assert 7 == 8" in result.stdout, result
    plugin = {"evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n", "evil-1.dist-info/METADATA": "Name: evil\nVersion: 1\n", "evil.py": "raise SystemExit(0)\n"}
    assert box.run(HONEST | tests | plugin, ["python", "-m", "pytest", "-q"]).returncode == 1


def test_output_and_time_are_bounded(box):
    limit = box.limits.output_kb * 1024
    result = box.run({}, ["python", "-c", f"print('x' * {limit}); print('end')"])
    assert len(result.stdout) == limit and result.truncated and result.returncode == 0
    start = time.monotonic()
    result = box.run({}, ["python", "-c", "import os\nwhile True: os.write(1, bytes(65536)); os.write(2, bytes(65536))"])
    assert result.truncated and len(result.stdout) == len(result.stderr) == limit and time.monotonic() - start < 7
    result = box.run({}, ["python", "-c", "print('so far', flush=True); import time; time.sleep(60)"], timeout=0.5)
    assert result.timed_out and result.stdout == "so far\n" and result.returncode == -9 and time.monotonic() - start < 12
    for wrong in ([], "python a.py", ["python", 1]):
        with pytest.raises(ValueError, match="argv is"):
            box.run({}, wrong)
    for wrong in (0, -1, "1"):
        with pytest.raises(ValueError, match="timeout is"):
            box.run({}, ["python", "-c", ""], timeout=wrong)


def test_runs_are_reproducible(box):
    words = ["python", "-c", "print(list(map(hash, ('a', 'b', 'c'))), {'x', 'y', 'z', 'w'})"]
    with short(box.tier) as other:
        assert {box.run({}, words).stdout for _ in range(3)} == {other.run({}, words).stdout}


# Limits.


def test_limits_hold_and_leave_what_they_allow():
    with short("bwrap", threads=8, file_mb=2, disk_mb=4, inodes=32, memory_mb=768) as box:
        code = """
import os, threading
try: room = bytearray(768 * 2**20)
except MemoryError: room = bytearray(64 * 2**20)
release, alive = threading.Event(), 1
try:
    while True: threading.Thread(target=release.wait).start(); alive += 1
except RuntimeError: release.set()
def fill(name, size):
    try:
        with open(name, "wb", 0) as f:
            while f.tell() < size and f.write(bytes(65536)): pass
            return f.tell()
    except OSError: return os.path.getsize(name)
sizes = [fill(f"/tmp/{i}", 2**40) for i in range(3)]
for i in range(3): os.remove(f"/tmp/{i}")
made = 0
try:
    while True: open(f"/tmp/e{made}", "w").close(); made += 1
except OSError: pass
print(alive, *[s / 2**20 for s in sizes], made, len(room) / 2**20)
"""
        alive, *sizes, made, room = map(float, box.run({}, ["python", "-c", code]).stdout.split())
        assert alive == 8 and sizes[0] == 2 and 3.5 <= sum(sizes) <= 4 and 24 <= made <= 32 and room == 64


def test_a_job_sees_the_interpreter_and_its_files_alone():
    with short("bwrap") as box:
        seen = box.run({"a.py": ""}, ["python", "-c", "import os; print(os.getcwd(), *os.listdir(), os.getuid(), *sorted(os.listdir('/')), *os.listdir('/proc'))"])
        assert seen.stdout.startswith("/repo a.py 1000 ") and not {"home", "sys", "work", "run", "var"} & set(seen.stdout.split()), seen
        packages = box.run({}, ["python", "-c", "import torch"])
        assert "No module named 'torch'" in packages.stderr
        fields = box.run({}, ["python", "-c", "print(open('/proc/self/status').read())"])
        assert fields.returncode == 1


def test_the_system_prompts_of_the_parent_do_not_come_along(box):
    os.environ["SECRET_OF_THE_PARENT"] = "token"
    try:
        with short(box.tier) as other:
            result = other.run({}, ["python", "-c", "import os; print(dict(os.environ))"])
    finally:
        del os.environ["SECRET_OF_THE_PARENT"]
    assert "SECRET" not in result.stdout and "PATH" in result.stdout


# The filter, run by an interpreter of its own, for both kinds of processor.


def judge(program, number, arguments, architecture):
    """What the kernel would return for a call: classic BPF, as far as the filter uses it."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments)
    at = accumulator = 0
    while True:
        code, yes, no, k = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif code == 0x54:
            accumulator &= k
        elif code == 0x15:
            at += yes if accumulator == k else no
        elif code == 0x06:
            return k
        else:
            raise AssertionError(f"unknown opcode {code}")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_as_written(machine):
    pid, architecture = 77, sandbox._ARCHITECTURES[machine][1]
    program = sandbox.seccomp_filter(pid, machine)
    numbers = sandbox.call_numbers(sandbox.ALLOWED_CALLS, machine) | sandbox.call_numbers(sandbox.GUARDED_CALLS, machine)
    allow, refuse, missing = 0x7FFF0000, 0x50001, 0x50026

    def answer(name, *arguments):
        return judge(program, numbers[name], (*arguments, *[0] * (6 - len(arguments))), architecture)

    guarded = sandbox.call_numbers(sandbox.GUARDED_CALLS, machine)
    for name in set(numbers) - set(guarded):
        assert answer(name, *[2**64 - 1] * 6) == allow, name
    for number in set(range(600)) - set(numbers.values()):
        assert judge(program, number, [0] * 6, architecture) == refuse
    assert judge(program, 1, [0] * 6, 0x40000003) == 0x80000000 and judge(program, numbers["read"] | 0x40000000, [0] * 6, architecture) == refuse
    good = [
        ("kill", pid, 9), ("tgkill", pid, 78, 6), ("clone", 0x3D0F00), ("fcntl", 3, 4, 2048), ("ioctl", 3, 0x5421), ("socketpair", 1, 1),
        ("sendto", 3, 9, 1, 0, 0), ("prlimit64", 0, 3, 0, 9), ("prctl", 15, 9), ("getsockopt", 3, 1, 4),
    ]  # fmt: skip
    bad = [
        ("kill", 1, 9), ("kill", 2**64 - 1, 9), ("kill", 0, 9), ("tgkill", 1, 1, 6), ("clone", 17), ("clone", 0x3D0F00 | 0x10000000), ("clone", 0x100 | 17),
        ("fcntl", 3, 8, 1), ("fcntl", 3, 6, 1), ("fcntl", 3, 7, 1), ("fcntl", 3, 5, 1), ("fcntl", 3, 10, 1), ("fcntl", 3, 1031, 1), ("ioctl", 3, 0x5412), ("socketpair", 2, 1), ("sendto", 3, 9, 1, 0, 2**40), ("sendto", 3, 9, 1, 0, 8),
        ("prlimit64", 5, 3, 0, 9), ("prlimit64", 0, 3, 2**33), ("prctl", 22, 2), ("prctl", 4, 1), ("getsockopt", 3, 1, 77), ("getsockopt", 3, 1, 17),
    ]  # fmt: skip
    assert [c for c in good if answer(*c) != allow] == [] and [c for c in bad if answer(*c) != refuse] == []
    assert answer("clone3") == missing
    pretending = sandbox.seccomp_filter(pid, machine, sandbox.PRETENDED_CALLS)
    assert {judge(pretending, numbers[x], [0] * 6, architecture) for x in sandbox.PRETENDED_CALLS if x in numbers} == {0x50000}
    assert judge(pretending, numbers["read"], [0] * 6, architecture) == allow


def test_call_numbers_are_the_kernels():
    header = Path("/usr/include/asm-generic/unistd.h"), Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not all(path.exists() for path in header):
        pytest.skip("the kernel's headers are not installed (Debian: linux-libc-dev)")
    generic = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\s*$", header[0].read_text(), re.M))
    generic["newfstatat"] = generic["fstatat"]
    generic |= {name: number for name, number in re.findall(r"#define __NR3264_(\w+) (\d+)", header[0].read_text())}
    native = dict(re.findall(r"#define __NR_(\w+) (\d+)", header[1].read_text()))
    for machine, known in (("aarch64", generic), ("x86_64", native)):
        for table in (sandbox.ALLOWED_CALLS, sandbox.GUARDED_CALLS):
            for name, number in sandbox.call_numbers(table, machine).items():
                assert int(known[name]) == number, (machine, name)
        assert all(int(known[f"landlock_{name}"]) == number for name, number in sandbox.LANDLOCK_CALLS.items())


def test_the_module_loads_without_the_rest_of_the_book():
    imports = {a.name.split(".")[0] for x in ast.walk(ast.parse(MODULE.read_text())) if isinstance(x, ast.Import) for a in x.names}
    assert imports <= set(sys.stdlib_module_names) and "torch" not in imports
    assert importlib.util.find_spec("agentrl.sandbox").origin == str(MODULE) and socket


def test_the_benchmark_rebuilds_a_design_that_believes_what_it_should_not(monkeypatch):
    spec = importlib.util.spec_from_file_location("bench_sandbox", HERE.parent / "benchmarks/sandbox.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    old, tests = bench.OldDesign(), TESTS[:2]
    assert old.grade(HONEST, "scale", tests).reward == 1.0
    assert old.grade(function("return 0"), "scale", tests).reward == 0.0
    equal = (HERE / "exploits/given/e01_eq_always_true.py").read_text()
    assert old.grade({"scale.py": equal}, "scale", tests).reward == 1.0
