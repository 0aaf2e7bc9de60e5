"""Small faults seeded into fsd_chat/decoding, each of which a test must notice.

    python .ci/mutations.py              all of them
    python .ci/mutations.py residual     those with this word in their name

The faults are in seeded_faults.toml. Each is put into a copy of the package, never into the
checkout, and the tests it names are run on that copy; it survives if they pass. A fault whose text
is no longer found is an error too: the list has to follow the code.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = Path(__file__).with_name("seeded_faults.toml")
PACKAGE = Path("fsd_chat", "decoding")
PROCESSES = 2
PATIENCE_S = 120
"""A mutant that takes longer hangs, and that is noticed as well."""

TESTS_PASSED, TESTS_FAILED = 0, 1


@dataclass(frozen=True)
class Fault:
    name: str
    module: str
    old: str
    new: str
    noticed_by: tuple[str, ...]

    def seed(self, package: Path) -> None:
        """Put it into the package at `package`. Raises ValueError if its place is not there."""
        file = package / f"{self.module}.py"
        source = file.read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            found = source.count(self.old)
            raise ValueError(f"its text is found {found} times in {file.name}: {self.old!r}")
        changed = source.replace(self.old, self.new)
        compile(changed, file.name, "exec")
        file.write_text(changed, encoding="utf-8")


@dataclass(frozen=True)
class Outcome:
    status: int
    """Of the tests: pytest's, or that of a process ended by a signal."""
    output: str
    seconds: float

    @property
    def noticed_in(self) -> str | None:
        """The test that failed; None if none did."""
        if self.status == -signal.SIGALRM:
            return f"nothing came of it in {PATIENCE_S} s"
        failed = re.search(r"^FAILED tests/(.+)$", self.output, re.MULTILINE)
        return failed[1] if self.status == TESTS_FAILED and failed else None


def read_faults(words: Sequence[str]) -> list[Fault]:
    modules = tomllib.loads(FAULTS.read_text(encoding="utf-8"))
    faults = [
        Fault(each["fault"], module, each["old"], each["new"], tuple(each["noticed_by"].split()))
        for module, entries in modules.items()
        for each in entries
    ]
    return [fault for fault in faults if all(word in fault.name for word in words)]


def import_what_is_slow() -> None:
    """Once, before the mutants part: each has its own copy of the package and shares the rest."""
    os.environ |= {
        "FSD_CHAT_HYPOTHESIS": "mutations",
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch
    from transformers.generation import logits_process  # noqa: F401

    torch.set_num_threads(1)
    if any(name.split(".")[0] == "fsd_chat" for name in sys.modules):
        raise RuntimeError("the package is loaded already, so no mutant would be")
    # Or every fork would walk through all of torch's objects when it collects its garbage.
    gc.collect()
    gc.freeze()


def run_tests(where: Path, tests: Sequence[str], log: Path) -> int:
    """The process id of a fork that runs `tests` on the package at `where`."""
    process = os.fork()
    if process:
        return process
    # From here on in the fork; nothing of it may return into the parent's code.
    status = 70
    try:
        signal.alarm(PATIENCE_S)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = _in_the_fork(where, tests)
    finally:
        sys.stdout.flush()
        os._exit(status)


def _in_the_fork(where: Path, tests: Sequence[str]) -> int:
    import pytest

    os.chdir(ROOT)
    sys.path.insert(0, str(where))
    import fsd_chat

    if not Path(str(fsd_chat.__file__)).is_relative_to(where):
        raise RuntimeError(f"the tests would run on {fsd_chat.__file__}")
    options = ["-x", "-q", "--tb=no", "-rf", "--assert=plain"]
    for plugin in ("cacheprovider", "unraisableexception", "warnings"):
        options += ["-p", f"no:{plugin}"]
    return int(pytest.main([*options, *[f"tests/{test}" for test in tests]]))


def copy_package(where: Path) -> Path:
    """The decoding package in a copy of the whole, importable from `where`."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / PACKAGE.parent, where / PACKAGE.parent, ignore=ignored)
    return where / PACKAGE


def run_all(jobs: dict[str, tuple[Path, Sequence[str]]]) -> Iterator[tuple[str, Outcome]]:
    """Every job's outcome as it ends, a few at a time. A job is a package and its tests."""
    waiting = list(jobs.items())
    running: dict[int, tuple[str, Path, float]] = {}
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            name, (where, tests) = waiting.pop(0)
            log = where / "log"
            running[run_tests(where, tests, log)] = name, log, time.monotonic()
        process, status = os.wait()
        name, log, started = running.pop(process)
        output = log.read_text(encoding="utf-8", errors="replace")
        seconds = time.monotonic() - started
        yield name, Outcome(os.waitstatus_to_exitcode(status), output, seconds)


def check_without_faults(scratch: Path, tests: Sequence[str]) -> list[str]:
    """The tests have to pass on the copy as it is, or their failures would mean nothing."""
    where = scratch / "without faults"
    copy_package(where)
    jobs = {}
    for i, test in enumerate(tests):
        apart = scratch / f"tests {i}"
        shutil.copytree(where, apart)
        jobs[test] = (apart, [test])
    return [
        f"{test} does not pass without any fault:\n{outcome.output}"
        for test, outcome in run_all(jobs)
        if outcome.status != TESTS_PASSED
    ]


def check_faults(scratch: Path, faults: Sequence[Fault]) -> list[str]:
    problems, jobs = [], {}
    for i, fault in enumerate(faults):
        where = scratch / str(i)
        try:
            fault.seed(copy_package(where))
        except (ValueError, SyntaxError) as error:
            problems.append(f"{fault.name}: {error}")
            continue
        jobs[fault.name] = (where, fault.noticed_by)
    for name, outcome in run_all(jobs):
        if outcome.noticed_in:
            print(f"{outcome.seconds:4.0f} s  {name}\n        {outcome.noticed_in}", flush=True)
        elif outcome.status == TESTS_PASSED:
            problems.append(f"{name}: survived")
        else:
            problems.append(f"{name}: its tests could not run\n{outcome.output}")
    return problems


def main(words: Sequence[str]) -> int:
    started = time.monotonic()
    faults = read_faults(words)
    if len({fault.name for fault in faults}) != len(faults) or not faults:
        print("no fault has such a name, or two have the same", file=sys.stderr)
        return 2
    import_what_is_slow()
    tests = sorted({test for fault in faults for test in fault.noticed_by})
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        problems = check_without_faults(scratch, tests) or check_faults(scratch, faults)
    for problem in problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    seconds = time.monotonic() - started
    print(f"{len(faults)} faults, {len(problems)} problems, {seconds:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
