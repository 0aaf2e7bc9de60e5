"""What people get and read: the wheel and the README."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import fsd_chat
from fsd_chat.catalogue import catalogue
from fsd_chat.config import load
from fsd_chat.engine.messages import DIVERGENCES, RULES
from fsd_chat.options import parser
from fsd_chat.places import theme_folders
from fsd_chat.tui.commands import COMMANDS
from fsd_chat.tui.keys import ALL_KEYS

ROOT = Path(fsd_chat.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
THEMES = sorted((ROOT / "themes").glob("*.toml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_carries_themes_catalogue_types_and_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert names >= {f"fsd_chat/themes/{file.name}" for file in THEMES}
    assert names >= {"fsd_chat/catalogue.toml", "fsd_chat/py.typed", "fsd_chat/tui/styles.tcss"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_carries_every_module_and_nothing_beside_the_package(
    wheel: zipfile.ZipFile,
) -> None:
    names = set(wheel.namelist())
    modules = (ROOT / "fsd_chat").rglob("*.py")
    assert names >= {file.relative_to(ROOT).as_posix() for file in modules}
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"fsd_chat", f"fsd_chat-{fsd_chat.__version__}.dist-info"}


def test_the_wheel_starts_the_program(wheel: zipfile.ZipFile) -> None:
    info = f"fsd_chat-{fsd_chat.__version__}.dist-info"
    assert b"fsd-chat = fsd_chat.cli:main" in wheel.read(f"{info}/entry_points.txt")
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_every_library_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^\w.-]", one)[0].lower() for one in project["dependencies"]}
    distributions = metadata.packages_distributions()
    used = {name for file in (ROOT / "fsd_chat").rglob("*.py") for name in libraries(file)}
    for name in used:
        assert {one.lower() for one in distributions[name]} & declared, name


def libraries(file: Path) -> Iterator[str]:
    """What `file` imports that is neither Python's nor ours."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for top in (name.partition(".")[0] for name in names):
            if top not in sys.stdlib_module_names and top != "fsd_chat":
                yield top


def test_a_checkout_finds_its_themes() -> None:
    assert theme_folders()[0] == ROOT / "themes"
    assert len(THEMES) >= 6


def test_it_can_be_started_as_a_module() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "fsd_chat", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert told.stdout == f"fsd-chat {fsd_chat.__version__}\n"


# --- the README is true -------------------------------------------------------------------------


def test_the_readmes_keys_are_the_apps() -> None:
    told = set(re.findall(r"`([a-z]+\.[a-z-]+)`", README))
    known = {key.id for key in ALL_KEYS}
    assert told <= known
    assert all(key.startswith("prompt.") for key in known - told)
    for key in ALL_KEYS:
        row = next((line for line in README.splitlines() if line.count(f"`{key.id}`")), "")
        function_keys = [one for one in key.keys.split(",") if re.fullmatch(r"f\d+", one)]
        assert all(one.upper() in row for one in function_keys if row)


def test_the_readmes_configuration_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "config.toml"
    path.write_text(example, encoding="utf-8")
    config = load(path)
    assert config.pair == "mine"
    assert config.theme in {file.stem for file in THEMES}
    assert set(config.keys) <= {key.id for key in ALL_KEYS}


def test_the_readmes_commands_can_be_parsed() -> None:
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
        for line in block.splitlines()
    ]
    calls = [line.partition("fsd-chat")[2] for line in lines if "fsd-chat" in line]
    assert len(calls) >= 5
    for call in calls:
        words = re.findall(r'"[^"]*"|[^\s"]+', re.split(r"\s[#>|]", call)[0])
        parser().parse_args([word.strip('"') for word in words])


def test_the_readme_names_what_there_is() -> None:
    for name in (*RULES, *DIVERGENCES):
        assert f"`{name}`" in README
    listed = re.search(r"^Themes: ([^.]*)\.", README, re.MULTILINE)
    assert listed
    assert {file.stem for file in THEMES} <= set(re.findall(r"\w+", listed.group(1)))
    commands = {command.name for command in COMMANDS}
    assert set(re.findall(r"`/(\w+)[^`]*`", README)) <= commands
    assert set(re.findall(r"--pair (\S+)|`/pair ([^`]+)`", README)) <= {
        pair for name in catalogue() for pair in ((name, ""), ("", name))
    }


def test_what_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
