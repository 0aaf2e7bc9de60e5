"""What import contracts cannot see: what is really imported, library by library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fsd_chat

PACKAGE = Path(fsd_chat.__file__).parent
LONGEST = 400
HEAVY = ("torch", "transformers", "tokenizers", "huggingface_hub", "numpy", "gguf", "safetensors")


def imported_by(statement: str) -> set[str]:
    """Top-level names of the modules there are after `statement`, in a process of its own."""
    code = f"import sys; {statement}; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE.parent,
    )
    return {name.partition(".")[0] for name in ended.stdout.split()}


@pytest.mark.parametrize(
    "module",
    [
        "fsd_chat.cli",
        "fsd_chat.tui.app",
        "fsd_chat.tui.run",
        "fsd_chat.commands.run",
        "fsd_chat.commands.request",
        "fsd_chat.commands.config",
        "fsd_chat.chats.store",
        "fsd_chat.chats.export",
        "fsd_chat.engine.client",
    ],
)
def test_the_interfaces_process_imports_nothing_of_the_models(module: str) -> None:
    assert not imported_by(f"import {module}") & set(HEAVY)


def test_listing_pairs_imports_no_torch() -> None:
    statement = "from fsd_chat.commands.pairs import on_disk; import huggingface_hub.file_download"
    assert not imported_by(statement) & {"torch", "transformers"}


def test_before_the_first_frame_the_interface_is_not_imported() -> None:
    assert not imported_by("import fsd_chat.cli") & {"textual", "rich", "asyncio", "sqlite3"}


def test_an_engine_that_has_nothing_to_do_lives_without_torch() -> None:
    assert not imported_by("import fsd_chat.engine.worker") & {"torch", "textual"}


def test_the_engines_process_imports_no_screens() -> None:
    imported = imported_by("import fsd_chat.engine.session, fsd_chat.models.pair")
    assert "torch" in imported
    assert "textual" not in imported


def test_decoding_imports_torch_and_nothing_else_of_the_models() -> None:
    modules = [f"fsd_chat.decoding.{file.stem}" for file in (PACKAGE / "decoding").glob("*.py")]
    imported = imported_by(f"import {', '.join(modules)}")
    assert not imported & {"transformers", "tokenizers", "msgspec", "textual"}


@pytest.mark.parametrize(
    "file", sorted(PACKAGE.rglob("__init__.py")), ids=lambda file: file.parent.name
)
def test_a_packages_init_says_what_it_is_and_does_nothing(file: Path) -> None:
    first, *rest = ast.parse(file.read_text(encoding="utf-8")).body
    assert isinstance(first, ast.Expr)
    assert isinstance(first.value, ast.Constant)
    assert isinstance(first.value.value, str)
    if file.parent == PACKAGE:
        version = rest.pop(0)
        assert isinstance(version, ast.Assign)
    assert not rest


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    lengths = {
        str(file.relative_to(PACKAGE)): len(file.read_text(encoding="utf-8").splitlines())
        for file in PACKAGE.rglob("*.py")
    }
    assert not {name for name, lines in lengths.items() if lines > LONGEST}
