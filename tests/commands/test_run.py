"""`fsd-chat run` with an engine that follows a script."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fsd_chat.cli import main
from fsd_chat.commands import run as run_module
from fsd_chat.engine.messages import (
    Command,
    Event,
    Failed,
    Finished,
    Generate,
    Knob,
    KnobSet,
    Loading,
    LoadPair,
    Prefill,
    Ready,
    Round,
    Started,
    Stop,
    TokenRecord,
)

READY = Ready(
    name="smol",
    target="smol",
    draft="smol-draft",
    device="cpu",
    dtype="float32",
    vocabulary=10,
    context=100,
)
NASTY = "[/INST] [bold]\x1b[2J\x1b]52;c;aGk=\x07 漢字 🙂 \u202e\n```"


def token(text: str, origin: Any = "accepted", divergence: float | None = 0.05) -> TokenRecord:
    return TokenRecord(id=1, text=text, origin=origin, divergence=divergence, exact=0.5)


def round_of(*tokens: TokenRecord, index: int = 0, drafted: int = 4) -> Round:
    text = "".join(one.text for one in tokens)
    return Round(request=1, index=index, tokens=tokens, text=text, drafted=drafted, total_s=0.5)


Script = tuple[Event | Callable[[], None], ...]


class ScriptedEngine:
    """Loads at once, and answers with `script`; an item that can be called is done, not said."""

    script: Script = ()
    loading: Script = (Loading(stage="reading [/smol]", fraction=0.1), READY)
    sent: list[Command]
    closed: bool

    def __init__(self) -> None:
        type(self).sent = []
        type(self).closed = False
        self.log_path = Path("engine.log")

    async def start(self) -> None:
        pass

    def send(self, command: Command) -> None:
        self.sent.append(command)

    async def events(self) -> AsyncIterator[Event]:
        async for event in self._say(self.loading):
            yield event
        if any(isinstance(one, Generate) for one in self.sent):
            async for event in self._say(self.script):
                yield event

    @staticmethod
    async def _say(script: Script) -> AsyncIterator[Event]:
        for item in script:
            if callable(item):
                item()
                # Long enough for a signal to be heard.
                await asyncio.sleep(0.1)
            else:
                yield item

    async def close(self) -> None:
        type(self).closed = True


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[ScriptedEngine]:
    class Engine(ScriptedEngine):
        pass

    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(run_module, "EngineClient", Engine)
    return Engine


def a_reply(*rounds: Round) -> tuple[Event, ...]:
    return (
        Started(request=1, prompt_tokens=5, cached_tokens=0, seed=11),
        KnobSet(request=1, index=0, knob=Knob()),
        Prefill(request=1, done=5, total=5),
        *rounds,
        Finished(request=1, reason="end"),
    )


def test_the_reply_goes_to_standard_output_and_statistics_to_standard_error(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.script = a_reply(round_of(token("Hello"), token(" there", "fuzzy")))
    assert main(["run", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello there\n"
    last = err.splitlines()[-1]
    assert last.startswith("2 tokens · 4.0 tokens/s · accepted 100% (exact decoding ")
    assert "· fuzzy 50%" in last
    assert engine.closed


def test_the_engine_is_asked_for_what_the_options_say(engine: type[ScriptedEngine]) -> None:
    engine.script = a_reply(round_of(token("x")))
    main(["run", "hi", "--system", "Rhyme.", "-T", "0.4", "--seed", "3", "--plain"])
    load, generate = engine.sent
    assert isinstance(load, LoadPair)
    assert load.name == "smol"
    assert isinstance(generate, Generate)
    assert [(one.role, one.content) for one in generate.messages] == [
        ("system", "Rhyme."),
        ("user", "hi"),
    ]
    assert generate.knob.threshold == 0.4
    assert generate.sampling.seed == 3
    assert generate.plain


def test_the_prompt_can_come_from_standard_input_whatever_its_bytes(
    engine: type[ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO("größe\n".encode() + b"\xff"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    engine.script = a_reply(round_of(token("x")))
    assert main(["run"]) == 0
    generate = engine.sent[1]
    assert isinstance(generate, Generate)
    assert generate.messages[0].content == "größe\n\N{REPLACEMENT CHARACTER}"


def test_a_file_or_pipe_gets_the_text_as_the_model_wrote_it(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.script = a_reply(round_of(token(NASTY)))
    main(["run", "hi"])
    assert capsys.readouterr().out == NASTY + "\n"


def test_nothing_in_the_text_acts_on_a_terminal(
    engine: type[ScriptedEngine],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    engine.script = a_reply(round_of(token(NASTY)))
    main(["run", "hi"])
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert "[/INST] [bold]" in out
    assert "漢字 🙂" in out


def test_json_is_one_object_with_everything(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    first = round_of(token("a"), token("b", "fuzzy", 0.08), token("c", "recovered", math.inf))
    bonus = round_of(token("d", "bonus", None), index=3, drafted=0)
    engine.script = a_reply(first, bonus)
    assert main(["run", "hi", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == "abcd"
    assert found["finish"] == "end"
    assert found["settings"]["pair"] == "smol"
    assert found["settings"]["seed"] == 11
    assert found["settings"]["knob"]["threshold"] == 0.2
    statistics = found["statistics"]
    assert statistics["draft_n"] == 4
    assert statistics["verified_n"] == 3
    assert statistics["draft_n_accepted"] == 2
    assert statistics["fuzzy_n"] == 1
    assert statistics["rounds"] == 2
    assert statistics["tokens_per_second"] == 4.0
    assert statistics["time_to_first_token_s"] >= 0
    assert [(one["origin"], one["divergence"]) for one in found["tokens"]] == [
        ("accepted", 0.05),
        ("fuzzy", 0.08),
        ("recovered", "inf"),
        ("bonus", None),
    ]


def test_reasoning_is_not_the_answer(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    thought = Round(request=1, index=0, tokens=(token("hm"),), text="", reasoning="hm")
    engine.script = a_reply(thought, round_of(token("Yes."), index=1))
    main(["run", "hi"])
    assert capsys.readouterr().out == "Yes.\n"


def test_what_was_held_back_comes_at_the_end(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    *started, _ = a_reply(round_of(token("a")))
    engine.script = (*started, Finished(request=1, reason="length", text="b\n"))
    main(["run", "hi"])
    assert capsys.readouterr().out == "ab\n"


def test_why_there_is_no_drafting_is_told(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.loading = (Ready(**{**fields(READY), "notices": ("no draft: [/x] \x1b[2J",)}),)
    engine.script = a_reply(round_of(token("a")))
    main(["run", "hi"])
    err = capsys.readouterr().err
    assert "fsd-chat: no draft: [/x]" in err
    assert "\x1b[2J" not in err


def fields(ready: Ready) -> dict[str, Any]:
    return {name: getattr(ready, name) for name in ready.__struct_fields__}


# --- when it goes wrong -------------------------------------------------------------------------


def test_a_pair_that_cannot_be_loaded_is_one_line_and_status_1(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.loading = (Failed(kind="not-found", message="there is no model at [/tmp]"),)
    assert main(["run", "hi"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines()[-1] == "fsd-chat: there is no model at [/tmp]"


def test_an_engine_that_dies_is_told_with_its_log_and_what_was_said_stays(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    *started, _ = a_reply(round_of(token("Half a")))
    engine.script = tuple(started)
    assert main(["run", "hi"]) == 1
    out, err = capsys.readouterr()
    assert out == "Half a\n"
    assert err.splitlines()[-1] == "fsd-chat: the engine ended unexpectedly; its log: engine.log"


def test_a_reply_that_fails_is_still_one_json_object(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    *started, _ = a_reply(round_of(token("Half a")))
    engine.script = (*started, Failed(kind="non-finite", message="the target broke", request=1))
    assert main(["run", "hi", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["text"] == "Half a"
    assert json.loads(out)["finish"] is None
    assert "fsd-chat: the target broke" in err


def test_an_engine_that_cannot_be_started_is_one_line(
    engine: type[ScriptedEngine],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(self: ScriptedEngine) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(engine, "start", start)
    assert main(["run", "hi"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "fsd-chat: no more processes"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_stops_the_reply_and_keeps_what_was_said(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    *started, _ = a_reply(round_of(token("Half a")))
    stopped = Finished(request=1, reason="stopped", text=" word")
    engine.script = (*started, press_ctrl_c, stopped)
    assert main(["run", "hi"]) == 130
    out, err = capsys.readouterr()
    assert out == "Half a word\n"
    assert "ended by stopped" in err
    assert Stop(request=1) in engine.sent
    assert engine.closed


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_second_ctrl_c_does_not_wait_for_the_engine(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    *started, _ = a_reply(round_of(token("Half a")))
    engine.script = (*started, press_ctrl_c, press_ctrl_c, *a_reply(round_of(token("late"))))
    assert main(["run", "hi"]) == 130
    out, err = capsys.readouterr()
    assert out == "Half a\n"
    assert "interrupted" in err
    assert engine.closed


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_while_loading_ends_at_once(
    engine: type[ScriptedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.loading = (press_ctrl_c, READY)
    assert main(["run", "hi"]) == 130
    assert not capsys.readouterr().out
    assert not any(isinstance(one, Generate) for one in engine.sent)
    assert engine.closed


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
