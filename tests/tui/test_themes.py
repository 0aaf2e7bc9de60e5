"""Reading theme files: what they may say, and what is said about those that cannot be used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.css.stylesheet import Stylesheet
from textual.theme import Theme
from textual.widgets import Static

from fsd_chat import places
from fsd_chat.config import DEFAULT_THEME
from fsd_chat.toml_file import ConfigError
from fsd_chat.tui.themes import GAUGE_COLOURS, TOKEN_COLOURS, load_themes, read_theme

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "themes"
GOOD = (SHIPPED / "dusk.toml").read_text(encoding="utf-8")


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def changed(key: str, value: str) -> str:
    """The good theme with another value for one of its keys."""
    text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", GOOD)
    assert count == 1
    return text


def line_of(key: str, text: str = GOOD) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(f"{key} ="))


def problem_with(folder: Path, text: str, name: str = "mine") -> str:
    """The one thing said about a file that cannot be used."""
    write(folder, name, text)
    loaded = load_themes([folder])
    assert loaded.themes == []
    [problem] = loaded.problems
    assert problem.path == folder / f"{name}.toml"
    assert str(problem.path) in problem.message
    assert "\n" not in problem.message
    return problem.message


def test_a_theme_is_called_as_its_file_and_has_the_files_colours(tmp_path: Path) -> None:
    theme = read_theme(write(tmp_path, "my-own_2", changed("accent", '"#ABCDEF"')))
    assert theme.name == "my-own_2"
    assert theme.accent == "#ABCDEF"
    assert theme.dark
    for name in (*TOKEN_COLOURS, *GAUGE_COLOURS):
        assert theme.variables[name].lower() == tomllib.loads(GOOD)[name]


@pytest.mark.parametrize("colour", ["tomato", "rgb(1, 2, 3)", "hsl(250, 30%, 12%)", "#abc"])
def test_colours_can_be_written_as_the_readme_says(tmp_path: Path, colour: str) -> None:
    assert read_theme(write(tmp_path, "mine", changed("gauge", f'"{colour}"'))).name == "mine"


def test_the_readmes_example_is_a_theme(tmp_path: Path) -> None:
    readme = (SHIPPED / "README.md").read_text(encoding="utf-8")
    example, variables = re.findall(r"```toml\n(.*?)```", readme, flags=re.DOTALL)
    theme = read_theme(write(tmp_path, "mine", example + variables))
    assert theme.variables["block-cursor-text-style"] == "bold"


def test_the_readme_lists_every_shipped_theme() -> None:
    readme = (SHIPPED / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z]+)` \|", readme, flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in SHIPPED.glob("*.toml"))


def test_a_broken_theme_is_reported_and_skipped(tmp_path: Path) -> None:
    write(tmp_path, "good", GOOD)
    broken = write(tmp_path, "broken", "dark = true\nbackground = #181527\n")
    loaded = load_themes([tmp_path])
    assert [theme.name for theme in loaded.themes] == ["good"]
    assert [problem.path for problem in loaded.problems] == [broken]
    assert f"{broken}, line 2" in str(loaded.problems[0])


def test_a_folder_that_is_not_there_holds_no_themes(tmp_path: Path) -> None:
    loaded = load_themes([tmp_path / "nowhere"])
    assert (loaded.themes, loaded.problems) == ([], [])


def test_a_users_theme_takes_the_place_of_a_shipped_one(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "dusk", GOOD)
    write(tmp_path / "users", "dusk", changed("primary", '"#123456"'))
    [theme] = load_themes([tmp_path / "shipped", tmp_path / "users"]).themes
    assert theme.primary == "#123456"


def test_a_broken_file_takes_nobodys_place(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "dusk", GOOD)
    write(tmp_path / "users", "dusk", changed("primary", '"lilac-ish"'))
    loaded = load_themes([tmp_path / "shipped", tmp_path / "users"])
    assert [theme.name for theme in loaded.themes] == ["dusk"]
    assert len(loaded.problems) == 1


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_known_one(tmp_path: Path) -> None:
    text = GOOD.replace("accent =", "acent =")
    message = problem_with(tmp_path, text)
    assert f"line {line_of('acent', text)}: acent is no setting" in message
    assert "did you mean accent?" in message


def test_every_missing_key_is_named(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^(surface|gauge-rest) = .*\n", "", GOOD)
    assert problem_with(tmp_path, text).endswith("lacks surface, gauge-rest")


@pytest.mark.parametrize("value", ['"#12345"', '"mauve-ish"', '""', "7", "[1, 2, 3]", '"$primary"'])
def test_what_is_no_colour_is_named_with_its_line(tmp_path: Path, value: str) -> None:
    message = problem_with(tmp_path, changed("origin-bonus", value))
    assert f"line {line_of('origin-bonus')}: origin-bonus must be a colour" in message


def test_dark_must_be_true_or_false(tmp_path: Path) -> None:
    message = problem_with(tmp_path, changed("dark", '"yes"'))
    assert f"line {line_of('dark')}: dark must be true or false" in message


@pytest.mark.parametrize("name", ["two words", "[b]bold", "7up", "ünder"])
def test_a_file_whose_name_cannot_be_a_themes_is_reported(tmp_path: Path, name: str) -> None:
    assert "letters, digits, - and _" in problem_with(tmp_path, GOOD, name)


def test_a_file_that_is_not_text_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "mine", "")
    path.write_bytes(b"dark = true\nprimary = '\xff'\n")
    [problem] = load_themes([tmp_path]).problems
    assert "line 2: is not UTF-8" in problem.message


def test_a_folder_named_like_a_theme_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").mkdir()
    [problem] = load_themes([tmp_path]).problems
    assert "cannot be read" in problem.message


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ('footr-background = "#123456"', "did you mean footer-background?"),
        ('no-such-thing-at-all = "#123456"', "is no variable of Textual's"),
        ('block-cursor-text-style = "bodl"', "must be a style"),
        ('scrollbar = "#12345"', "must be a colour"),
        ('scrollbar = "red; } * { display: none"', "must be a colour"),
        ("scrollbar = 3", "must be a colour"),
        ('background-darken-1 = "auto 50%"', "cannot be mixed"),
    ],
)
def test_a_variable_that_would_break_the_stylesheet_is_reported(
    tmp_path: Path, variable: str, said: str
) -> None:
    assert said in problem_with(tmp_path, f"{GOOD}\n[variables]\n{variable}\n")


@pytest.mark.parametrize("value", ["#123456", "#123456 30%", "auto 87%", "transparent"])
def test_a_variable_that_is_given_wins_over_what_would_be_derived(
    tmp_path: Path, value: str
) -> None:
    text = f'{GOOD}\n[variables]\nfooter-key-background = "{value}"\n'
    theme = read_theme(write(tmp_path, "mine", text))
    assert theme.to_color_system().generate()["footer-key-background"] == value


def test_variables_must_be_a_table(tmp_path: Path) -> None:
    assert "must be a table" in problem_with(tmp_path, f'variables = "none"\n{GOOD}')


def test_a_problem_reads_as_one_line_for_people(tmp_path: Path) -> None:
    path = write(tmp_path, "mine", changed("gauge", '"#12"'))
    [problem] = load_themes([tmp_path]).problems
    assert str(problem) == (
        f"theme {path}, line {line_of('gauge')}: gauge must be a colour such as "
        "\"#7a4a1f\", not '#12'"
    )


def test_reading_one_broken_theme_raises_the_same_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        read_theme(write(tmp_path, "mine", "dark ="))


# --- the shipped ones -------------------------------------------------------------------------


def shipped() -> list[Theme]:
    loaded = load_themes([SHIPPED])
    assert loaded.problems == []
    return loaded.themes


def test_there_are_dark_light_and_terminal_themes_and_the_default_is_one_of_them() -> None:
    themes = shipped()
    own = [theme for theme in themes if not theme.ansi]
    assert DEFAULT_THEME in {theme.name for theme in themes}
    assert len(own) >= 8
    assert sum(theme.dark for theme in own) >= 4
    assert sum(not theme.dark for theme in own) >= 3
    assert [theme.name for theme in themes if theme.ansi] == ["terminal"]


class Tokens(App[None]):
    """Shows one line in a theme's own colours."""

    def compose(self) -> ComposeResult:
        yield Static("[$origin-fuzzy on $panel]fuzzy[/] [$gauge]gauge[/]")


@pytest.mark.parametrize("theme", shipped(), ids=lambda theme: theme.name)
async def test_textual_can_draw_every_shipped_theme(theme: Theme) -> None:
    app = Tokens()
    app.register_theme(theme)
    async with app.run_test() as pilot:
        app.theme = theme.name
        await pilot.pause()
        # Textual's own rules name variables that a theme of the terminal's colours must bring.
        sheet = Stylesheet(variables=app.get_css_variables())
        for path in (REPOSITORY / "fsd_chat" / "tui").glob("*.tcss"):
            sheet.read(path)
        sheet.parse()
        assert app.native_ansi_color == theme.ansi


def test_a_checkout_finds_the_themes_beside_the_package() -> None:
    assert places.theme_folders()[0] == SHIPPED


def test_an_installed_package_finds_the_themes_inside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    mapped = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]["themes"]
    (tmp_path / mapped).mkdir(parents=True)
    monkeypatch.setattr(places, "__file__", str(tmp_path / "fsd_chat" / "places.py"))
    assert places.theme_folders()[0] == tmp_path / mapped


def test_users_themes_lie_beside_their_configuration_and_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "config.toml"))
    assert places.theme_folders()[-1] == tmp_path / "themes"
    write(tmp_path / "themes", "mine", GOOD)
    assert load_themes(places.theme_folders()).themes[-1].name == "mine"
