from __future__ import annotations

from pathlib import Path

import pytest

from fsd_chat.commands.config import show
from fsd_chat.config import Config, ConfigError, load
from fsd_chat.engine.messages import ModelSource, Sampling
from fsd_chat.places import cache_folder, config_path, data_folder

FULL = """\
pair = "mine"
theme = "paper"
system = "Be brief."

[knob]
rule = "fsd-paper"
divergence = "tv"
threshold = 0.25
lookahead = 6

[sampling]
temperature = 1
top_k = 40
seed = 7
stop = ["###"]
logit_bias = { 42 = -1.5, 7 = -inf }

[keys]
"threshold.zero" = "f12, alt+z"

[pairs.mine]
target = "~/big"
draft = "~/small"
draft_device = "cpu"
target_revision = "abc"
dtype = "bfloat16"
knob = { threshold = 0.4, form = "top-k" }
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def read(path: Path, text: str) -> Config:
    path.write_text(text, encoding="utf-8")
    return load(path)


def problem(path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_a_file_everything_has_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "none.toml"))
    config = load()
    assert config.path == tmp_path / "none.toml"
    assert config.pair == "smol"
    assert config.sampling == Sampling()
    assert not config.lines


def test_every_section_is_read(written: Path) -> None:
    config = read(written, FULL)
    assert (config.pair, config.theme, config.system) == ("mine", "paper", "Be brief.")
    assert config.sampling == Sampling(
        temperature=1.0, top_k=40, seed=7, stop=("###",), logit_bias={42: -1.5, 7: -float("inf")}
    )
    assert config.keys == {"threshold.zero": "f12, alt+z"}


def test_a_pair_of_ones_own_is_loaded_as_it_is_written(written: Path) -> None:
    pair = read(written, FULL).choose_pair("mine").load()
    assert pair.target == ModelSource(location="~/big", revision="abc", dtype="bfloat16")
    assert pair.draft == ModelSource(location="~/small", device="cpu", dtype="bfloat16")


def test_the_users_knob_goes_before_the_pairs_and_that_before_the_defaults(written: Path) -> None:
    config = read(written, FULL)
    knob = config.knob_for(config.choose_pair("mine"))
    assert (knob.threshold, knob.form, knob.form_k) == (0.25, "top-k", 50)
    assert knob.lookahead == "6"


def test_a_users_pair_takes_the_place_of_the_catalogues(written: Path) -> None:
    config = read(written, '[pairs.smol]\ntarget = "other/model"\n')
    assert config.choose_pair("smol").load().target.location == "other/model"
    assert config.choose_pair("smol").load().draft is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = \n", ("line 1", "invalid value")),
        ('pair = "smol"\n\n[knob\nrule = 1\n', ("line 3",)),
        ('theme = "dusk"\ntheme = "paper"\n', ("line 2", "overwrite")),
        ('system = """\nnever closed\n', ("line 2", "unterminated")),
        ("colour = 1\n", ("line 1", "colour is no setting", "theme")),
        ("pair = 3\n", ("line 1", "pair must be a string, not 3")),
        ('\npair = "nobody"\n', ("line 2", "pair names no pair", "smol", "qwen3-8b")),
        ("knob = 3\n", ("line 1", "knob must be a table")),
        ("[knob]\nrule = 'fast'\n", ("line 2", "knob.rule", "one of fsd, fsd-paper, exact")),
        ("[knob]\n\nthreshold = -0.1\n", ("line 3", "knob.threshold", "from 0 up, not -0.1")),
        ("[knob]\nthreshold = nan\n", ("line 2", "knob.threshold", "not nan")),
        ("[knob]\nthreshold = 'high'\n", ("line 2", "knob.threshold must be a number")),
        ("[knob]\nthreshold = true\n", ("line 2", "knob.threshold must be a number, not true")),
        ("[knob]\nlookahead = 'far'\n", ("line 2", "adaptive, paper, heuristic or a number")),
        ("[knob]\nlookahead = -1\n", ("line 2", "knob.lookahead")),
        ("[knob]\nlookahead = true\n", ("line 2", "knob.lookahead must be a string")),
        ("[knob]\nhardness = 1\n", ("line 2", "knob.hardness is no setting", "threshold")),
        ("knob.threshold = -1\n", ("line 1", "knob.threshold")),
        ("[sampling]\ntemperature = -1.0\n", ("line 2", "sampling.temperature", "0 or more")),
        ("[sampling]\ntemperature = '0.7'\n", ("line 2", "must be a number")),
        ("[sampling]\ntop_k = 2.5\n", ("line 2", "must be a whole number, not 2.5")),
        ("[sampling]\ntop_p = 1.5\n", ("line 2", "above 0 and at most 1")),
        ("[sampling]\ngreedy_draft = 1\n", ("line 2", "must be true or false")),
        ("[sampling]\nseed = 'x'\n", ("line 2", "sampling.seed must be a whole number")),
        ("[sampling]\nstop = 'x'\n", ("line 2", "a list of strings")),
        ("[sampling]\nlogit_bias = { a = 1 }\n", ("line 2", "token ids with numbers")),
        ("[keys]\n'chat.new' = 5\n", ("line 2", "keys.chat.new must be keys in a string")),
        ("[keys]\n'chat.new' = 'f2,,f3'\n", ("line 2", "keys.chat.new", "ctrl+t,f5")),
        ("[pairs]\nx = 3\n", ("line 2", "pairs.x must be a table")),
        ("\n[pairs.x]\ndraft = 'd'\n", ("line 2", "pairs.x needs a target")),
        ("[pairs.x]\ntarget = 't'\ndtype = 'int8'\n", ("line 3", "pairs.x.dtype", "bfloat16")),
        ("[pairs.x]\ntarget = 't'\ncolour = 'd'\n", ("line 3", "pairs.x.colour is no setting")),
        ("[pairs.x]\ntarget = 't'\nname = 'y'\n", ("line 3", "pairs.x.name is no setting")),
        ("[pairs.'a b']\ntarget = 't'\ndraft = 1\n", ("line 3", "pairs.a b.draft")),
        # What stands inside an inline table is found by the line of the table.
        ("[pairs.x]\ntarget = 't'\nknob = { rule = 'y' }\n", ("line 3", "pairs.x.knob.rule")),
    ],
)
def test_a_broken_file_is_told_with_line_key_and_what_is_allowed(
    written: Path, text: str, said: tuple[str, ...]
) -> None:
    message = problem(written, text)
    assert message.startswith(f"{written}, {said[0]}:")
    for fragment in said:
        assert fragment in message


def test_a_file_that_is_no_text_is_told_with_its_line(written: Path) -> None:
    written.write_bytes(b'pair = "smol"\ntheme = "\xff"\n')
    with pytest.raises(ConfigError, match="line 2: is not UTF-8"):
        load(written)


def test_a_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*none\.toml"):
        load(tmp_path / "none.toml")


def test_a_byte_order_mark_is_no_mistake(written: Path) -> None:
    written.write_bytes(b'\xef\xbb\xbftheme = "paper"\n')
    assert load(written).theme == "paper"


def test_the_environment_moves_file_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"FSD_CHAT_{name}", str(tmp_path / name))
    assert config_path() == tmp_path / "CONFIG"
    assert data_folder() == tmp_path / "DATA"
    assert cache_folder() == tmp_path / "CACHE"


def test_without_the_environment_the_platform_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.delenv(f"FSD_CHAT_{name}", raising=False)
    assert config_path().name == "config.toml"
    assert "fsd-chat" in config_path().parts
    assert "fsd-chat" in data_folder().parts
    assert "fsd-chat" in cache_folder().parts


# --- what is in force ---------------------------------------------------------------------------


def test_what_is_shown_is_a_configuration_that_means_the_same(
    written: Path, tmp_path: Path
) -> None:
    tricky = FULL.replace("Be brief.", 'a \\"b\\" \\\\ \\n é 😀 \\u007f \\u0001 # no comment')
    config = read(written, tricky)
    again = read(tmp_path / "again.toml", show(config))
    assert (again.pair, again.theme, again.system) == (config.pair, config.theme, config.system)
    assert again.sampling == config.sampling
    assert again.keys == config.keys
    assert again.pairs == config.pairs
    pair = config.choose_pair("mine")
    assert again.knob_for(pair) == config.knob_for(pair)


def test_an_infinite_threshold_can_be_shown_and_read(written: Path, tmp_path: Path) -> None:
    config = read(written, "[knob]\nthreshold = inf\n")
    again = read(tmp_path / "again.toml", show(config))
    assert again.knob_for(None).threshold == float("inf")


def test_what_is_shown_says_where_each_value_comes_from(written: Path) -> None:
    shown = show(read(written, FULL))
    assert f"# configuration: {written}\n" in shown
    assert 'theme = "paper"  # line 2\n' in shown
    assert "threshold = 0.25  # line 8\n" in shown
    assert 'form = "top-k"  # of the pair mine\n' in shown
    assert "form_k = 50  # default\n" in shown
    assert '"threshold.zero" = "f12, alt+z"  # line 19\n' in shown


def test_that_there_is_no_file_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "none.toml"))
    assert f"{tmp_path / 'none.toml'} (there is none)" in show(load())
