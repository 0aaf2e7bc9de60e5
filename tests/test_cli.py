from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_chat import __version__
from fsd_chat.cli import main
from fsd_chat.commands.request import request
from fsd_chat.config import ConfigError
from fsd_chat.engine.messages import ModelSource


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DATA", "CACHE"):
        monkeypatch.setenv(f"FSD_CHAT_{name}", str(tmp_path / name))
    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path / "config.toml"


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """All that was said: one line on standard error."""
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("fsd-chat: ")
    assert err.count("\n") == 1
    return err


# --- bad usage: 2 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--colour"], "--colour"),
        (["chat"], "'chat'"),
        (["run", "a", "b"], "unrecognized arguments: b"),
        (["run", "hi", "--rule", "fast"], "'fsd-paper'"),
        (["run", "hi", "--max-tokens", "many"], "--max-tokens"),
        (["run", "hi", "--temperature", "warm"], "--temperature"),
        (["run", "hi", "--temp", "1"], "--temp"),
        (["run", "hi", "--logit-bias", "5"], "ID=NUMBER"),
        (["run", "hi", "-T"], "expected one argument"),
        (["run", "hi", "--dtype", "int8"], "bfloat16"),
        (["config"], "what"),
        (["config", "edit"], "'edit'"),
        (["run", "hi", "--pair", "smol", "--target", "x"], "--pair and --target"),
        (["run", "a \udcff b"], "not valid text"),
        (["run", "hi", "--\x1b[2J"], "unrecognized"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    line = one_line(capsys)
    assert said in line
    assert "\x1b" not in line


def test_an_empty_prompt_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "  \n"]) == 2
    assert "empty" in one_line(capsys)


@pytest.mark.parametrize("prompt", [[], ["-"]])
def test_standard_input_that_is_empty_is_bad_usage(
    prompt: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert main(["run", *prompt]) == 2
    assert "empty" in one_line(capsys)


def test_the_app_without_a_terminal_points_to_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main([]) == 2
    assert "fsd-chat run" in one_line(capsys)


# --- failures: 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["-0.1", "nan", "high", ""])
@pytest.mark.parametrize("command", [[], ["run", "hi"]])
def test_a_threshold_that_cannot_be_is_one_line_and_status_1(
    command: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "-T", value]) == 1
    assert "the threshold T must be a number from 0 up" in one_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temperature", "-1"], "temperature must be 0 or more"),
        (["--temperature", "nan"], "temperature"),
        (["--max-tokens", "0"], "max_tokens must be 1 or more"),
        (["--lookahead", "far"], "adaptive, paper, heuristic or a number"),
        (["--stop", ""], "stop must be strings"),
        (["--pair", "nobody"], "there is no pair called 'nobody'; there are gemma-2-9b,"),
        (["--config", "none.toml"], "no configuration file none.toml"),
    ],
)
def test_a_value_that_cannot_be_used_is_one_line_and_status_1(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "hi", *arguments]) == 1
    assert said in one_line(capsys)


@pytest.mark.parametrize("command", [[], ["run", "hi"], ["pairs"], ["config", "show"]])
def test_a_broken_configuration_is_one_line_and_status_1(
    command: list[str], config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_file.write_text("\n[knob]\nthreshold = -1\n")
    assert main(command) == 1
    assert f"{config_file}, line 3: knob.threshold" in one_line(capsys)


def test_where_the_configuration_is_can_be_asked_though_it_is_broken(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_file.write_text("[")
    assert main(["config", "path"]) == 0
    assert capsys.readouterr().out == f"{config_file}\n"


@pytest.mark.parametrize(
    "arguments", [["--config", "{}", "config", "show"], ["config", "show", "--config", "{}"]]
)
def test_another_configuration_can_be_named_before_and_after_the_command(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.toml"
    other.write_text('theme = "paper"\n')
    assert main([one.format(other) for one in arguments]) == 0
    assert 'theme = "paper"  # line 1' in capsys.readouterr().out


# --- what options ask for -----------------------------------------------------------------------


def test_options_go_before_the_configuration(config_file: Path) -> None:
    config_file.write_text('system = "Be brief."\n[knob]\nthreshold = 0.3\nrule = "fsd-paper"\n')
    asked = request({"threshold": "0.5", "seed": 3, "stop": ["a", "b"], "logit_bias": [(1, 2.0)]})
    assert (asked.knob.threshold, asked.knob.rule) == (0.5, "fsd-paper")
    assert asked.sampling.seed == 3
    assert asked.sampling.stop == ("a", "b")
    assert asked.sampling.logit_bias == {1: 2.0}
    assert asked.config.system == "Be brief."
    assert request({"system": "Rhyme."}).config.system == "Rhyme."


def test_the_pair_comes_from_the_catalogue_with_its_own_knob() -> None:
    asked = request({})
    assert asked.pair.name == "smol"
    assert asked.pair.draft == ModelSource(location="smol-draft", quantize="int4")
    assert asked.pair.target == ModelSource(location="smol", quantize="int4")
    assert (asked.knob.lookahead, asked.knob.threshold) == ("adaptive", 0.2)


def test_weights_are_quantised_as_the_option_says() -> None:
    pair = request({"quantize": "none"}).pair
    assert pair.draft is not None
    assert (pair.target.quantize, pair.draft.quantize) == ("none", "none")
    assert request({"target": "models/big", "quantize": "int8"}).pair.target.quantize == "int8"


def test_a_target_without_a_draft_is_alone_and_takes_no_pairs_knob() -> None:
    asked = request({"target": "models/big"})
    assert asked.pair.name == "big"
    assert asked.pair.draft is None
    assert asked.knob.lookahead == "adaptive"


def test_a_draft_can_be_changed_or_left_out() -> None:
    assert request({"draft": "none"}).pair.draft is None
    asked = request({"draft": "prompt-lookup"})
    assert asked.pair.target.location == "smol"
    assert asked.pair.draft == ModelSource(location="prompt-lookup")


def test_device_dtype_and_trust_are_for_both_models() -> None:
    asked = request({"device": "cpu", "dtype": "float32", "trust_remote_code": True})
    for source in (asked.pair.target, asked.pair.draft):
        assert source is not None
        assert (source.device, source.dtype, source.trust_remote_code) == ("cpu", "float32", True)


def test_remote_code_is_not_trusted_unless_asked() -> None:
    assert not request({}).pair.target.trust_remote_code


def test_a_bad_value_among_options_names_itself() -> None:
    with pytest.raises(ConfigError, match="top_p must be above 0"):
        request({"top_p": 0.0})


# --- as a program -------------------------------------------------------------------------------


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fsd-chat {__version__}\n"


@pytest.mark.parametrize("command", [[], ["run"], ["pairs"], ["config"]])
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "usage: fsd-chat" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="shell")
@pytest.mark.parametrize(
    ("redirected", "status", "said"),
    [("| true; exit ${PIPESTATUS[0]}", 1, ""), ("> /dev/full", 1, "No space left")],
)
def test_output_that_cannot_be_written_is_no_traceback(
    redirected: str, status: int, said: str
) -> None:
    if "/dev/full" in redirected and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    # Waits until the reader has gone.
    command = f"(sleep 0.3; {sys.executable} -m fsd_chat config show; exit $?) {redirected}"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=os.environ, check=False
    )
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr
    assert said in ended.stderr
    assert ended.stderr.count("\n") <= 1
