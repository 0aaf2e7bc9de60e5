"""What leaves the program: complete, unharmed, and never over something else."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from chats.samples import FINISHED, ROUNDS, START
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fsd_chat.chats.conversation import Chat, Conversation, Reply, ReplyStart, StoredMessage
from fsd_chat.chats.export import (
    ExportError,
    ExportExists,
    default_name,
    footer,
    save,
    to_json,
    to_markdown,
)
from fsd_chat.chats.store import ChatStore
from fsd_chat.engine.messages import Finished, Knob, KnobSet, Round, Started, TokenRecord

T = TypeVar("T")

NASTY = (
    "[/INST] [bold] \x1b[2J \x1b]52;c;aGk=\x07 | a | b |\n|---|---|\n🏳️‍🌈 漢字 שלום " + "x" * 5000
)


def conversation(*contents: str, title: str = "A title") -> Conversation:
    roles = ("user", "assistant")
    messages = [
        StoredMessage(i, roles[i % 2], content, created=0.0)  # type: ignore[arg-type]
        for i, content in enumerate(contents)
    ]
    return Conversation(Chat(1, title, "smol", "", 86_400.0 * 365, 0.0), messages)


def test_json_holds_everything_the_store_holds(store: ChatStore, written: int) -> None:
    document = json.loads(to_json(store.open(written)))
    assert (document["format"], document["version"]) == ("fsd-chat", 1)
    assert document["system"] == "Be brief."
    question, answer = document["messages"]
    assert question["content"] == "Say hello\nplease"
    reply = answer["reply"]
    assert reply["text"] == "Hello world"
    assert reply["reasoning"] == "hm"
    assert reply["finish"] == "end"
    assert reply["settings"]["seed"] == 2**62
    assert reply["settings"]["target_revision"] == "abc"
    assert reply["settings"]["sampling"]["temperature"] == 0.7
    assert reply["settings"]["knob"]["rule"] == "fsd"
    assert [(one["from_token"], one["threshold"]) for one in reply["timeline"]] == [
        (0, 0.1),
        (2, 0.3),
    ]
    origins = [token["origin"] for token in reply["tokens"]]
    assert origins == ["accepted", "recovered", "fuzzy", "bonus"]
    assert reply["tokens"][1]["divergence"] == "inf"
    assert reply["tokens"][1]["rejected"] == 9
    assert reply["rounds"][0] == {
        "from_token": 0,
        "tokens": 2,
        "text": "Hello",
        "reasoning": "",
        "drafted": 4,
        "draft_s": 0.1,
        "verify_s": 0.2,
        "total_s": 0.4,
    }
    assert reply["statistics"]["draft_n"] == 5
    assert reply["statistics"]["draft_n_accepted"] == 2
    assert reply["statistics"]["time_to_first_token_s"] == pytest.approx(0.5)


def test_markdown_is_a_note_with_the_settings_on_top(store: ChatStore, written: int) -> None:
    text = to_markdown(store.open(written))
    lines = text.splitlines()
    assert lines[0] == "# Say hello"
    assert lines[2].startswith("- date: ")
    assert lines[3:9] == [
        "- pair: smol (smol, drafted by smol-draft)",
        "- rule: fsd, js, T = 0.1 → 0.3",
        "- temperature: 0.7",
        "- seed: 4611686018427387904",
        "- 4 tokens, 4.0 tokens/s, accepted 67% (exact decoding 43%), fuzzy 25%",
        "",
    ]
    assert "## You\n\nSay hello\nplease\n\n## smol\n\nHello world\n\n" in text
    footer = (
        "*4 tokens · 4.0 tokens/s · accepted 67% (exact decoding 43%) · fuzzy 25% · T 0.1 → 0.3*"
    )
    assert text.endswith(footer + "\n")


def struct_from(kind: type[T], fields: dict[str, Any]) -> T:
    return msgspec.convert(fields, kind, strict=False)


def reply_from_json(found: dict[str, Any]) -> Reply:
    """A reply made of nothing but its JSON; strings stand for the numbers that JSON lacks."""
    settings = found["settings"]
    tokens = [
        msgspec.convert(list(token.values()), TokenRecord, strict=False)
        for token in found["tokens"]
    ]
    rounds = []
    for one in found["rounds"]:
        first = one.pop("from_token")
        own = tokens[first : first + one.pop("tokens")]
        rounds.append(
            msgspec.structs.replace(
                struct_from(Round, {"request": 1, "index": first, "tokens": [], **one}),
                tokens=tuple(own),
            )
        )
    rest = found["rest"]
    return Reply(
        start=struct_from(ReplyStart, settings),
        seed=settings["seed"],
        prompt_tokens=found["prompt_tokens"],
        cached_tokens=found["cached_tokens"],
        dropped_turns=found["dropped_turns"],
        first_token_s=found["statistics"]["time_to_first_token_s"],
        rounds=rounds,
        timeline=[
            KnobSet(request=1, index=one.pop("from_token"), knob=struct_from(Knob, one))
            for one in found["timeline"]
        ],
        finish=found["finish"]
        and Finished(
            request=1,
            reason=found["finish"],
            text=rest["text"],
            reasoning=rest["reasoning"],
            stop_string=found["stop_string"],
        ),
        failure=found["failure"] or "",
    )


def test_a_whole_conversation_can_be_made_again_from_its_json(
    store: ChatStore, written: int
) -> None:
    cut_short = store.begin_reply(written, START)
    cut_short.started(Started(request=1, prompt_tokens=9, cached_tokens=9, seed=5, dropped_turns=2))
    strange = TokenRecord(3, "\x1b[2J", "target", math.nan, None, None, None, None, (-math.inf,))
    cut_short.round(Round(request=1, index=0, tokens=(strange,), text="\x1b[2J"))
    cut_short.interrupted("killed")
    kept = store.open(written)
    document = json.loads(to_json(kept))
    assert document["title"] == kept.chat.title
    assert document["pair"] == kept.chat.pair
    assert datetime.fromisoformat(document["created"]).timestamp() == pytest.approx(
        kept.chat.created
    )
    assert len(document["messages"]) == 3
    for message, found in zip(kept.messages, document["messages"], strict=True):
        assert (found["role"], found["content"]) == (message.role, message.content)
        assert datetime.fromisoformat(found["created"]).timestamp() == pytest.approx(
            message.created
        )
        if message.reply is not None:
            # repr, since NaN is not equal to itself.
            assert repr(reply_from_json(found["reply"])) == repr(message.reply)


@pytest.mark.parametrize("nasty", [NASTY, "```python\nprint(1)\n```", "~~~\n```\n~~~\nrest"])
def test_text_leaves_unharmed(nasty: str) -> None:
    whole = conversation("question", nasty)
    assert nasty in to_markdown(whole)
    assert json.loads(to_json(whole))["messages"][1]["content"] == nasty


@pytest.mark.parametrize(
    ("left_open", "closing"),
    [
        ("```python\nprint(1)", "\n```"),
        ("```python\nprint(1)\n", "```"),
        ("~~~~\ncode\n~~~", "\n~~~~"),
        ("```\na\n```\n\n````md\n```\nx\n```", "\n````"),
        ("```\n``` not a closing fence", "\n```"),
        ("- ```\n  a fence that ends with its list", ""),
        ("1. one\n   ```py\n   x", ""),
        ("> ```\n> a fence that ends with its quote", ""),
        ("    ```\n    indented code", ""),
        ("<!-- a remark", "\n-->"),
        ("<script>\nalert(1)", "\n</script>"),
        ("<PRE>\n```", "\n</pre>"),
        ("<?php", "\n?>"),
    ],
)
def test_a_block_left_open_does_not_swallow_the_next_turn(left_open: str, closing: str) -> None:
    text = to_markdown(conversation("question", left_open, "thanks"))
    assert f"## Assistant\n\n{left_open}{closing}\n\n## You\n\nthanks\n" in text


FRAGMENTS = ("```", "````", "~~~", "\n", "\n\n", " ", "    ", "- ", "1. ", "> ", "# ", "x", "`")
HTML = ("<!--", "-->", "<pre>", "</pre>", "<script>", "<?", "<![CDATA[", "<div>", "|a|b|\n|-|-|\n")


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS + HTML), max_size=25).map("".join))
def test_whatever_a_reply_holds_every_turn_has_its_heading(reply: str) -> None:
    whole = conversation("first question", reply, "second question", reply, "third question")
    text = to_markdown(whole)
    assert text.count(reply) >= 2
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    headings = [
        tokens[index + 1].content
        for index, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h2" and token.level == 0
    ]
    assert headings.count("You") == 3
    assert headings.count("Assistant") == 2


def test_a_knob_that_was_turned_often_is_told_briefly(store: ChatStore) -> None:
    chat = store.create_chat("smol")
    writer = store.begin_reply(chat.id, START)
    for index in range(40):
        writer.knob(KnobSet(request=1, index=index, knob=Knob(threshold=index / 100)))
    writer.round(ROUNDS[0])
    writer.finished(FINISHED)
    reply = writer.reply
    told = "T 0 → 0.01 → 0.02 → 0.03 → … → 0.36 → 0.37 → 0.38 → 0.39 (39 changes)"
    assert footer(reply).endswith(told)


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ([], "T 0.1"),
        ([Knob(rule="exact")], "exact"),
        ([Knob(), Knob(lookahead="3")], "T 0.1"),
        ([Knob(), Knob(rule="exact"), Knob()], "T 0.1 → exact → fsd, js, T = 0.1"),
        (
            [Knob(), Knob(divergence="tv"), Knob(divergence="tv", threshold=0.5)],
            "T 0.1 → fsd, tv, T = 0.1 → 0.5",
        ),
    ],
)
def test_of_the_settings_only_what_changed_is_said(knobs: list[Knob], told: str) -> None:
    reply = Reply(START, finish=FINISHED)
    reply.timeline = [KnobSet(request=1, index=i, knob=knob) for i, knob in enumerate(knobs)]
    assert footer(reply) == f"0 tokens · {told}"


def test_a_setting_that_governed_no_token_is_not_told() -> None:
    reply = Reply(START, finish=FINISHED)
    reply.timeline = [
        KnobSet(request=1, index=0, knob=Knob(threshold=one)) for one in (0.1, 0.2, 0.3)
    ]
    assert footer(reply) == "0 tokens · T 0.3"


def test_a_file_is_never_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "note.md"
    path.write_text("precious")
    with pytest.raises(ExportExists, match="exists already"):
        save(conversation("a", "b"), path)
    assert path.read_text() == "precious"
    assert save(conversation("a", "b"), path, overwrite=True) == path
    assert path.read_text().startswith("# A title")
    assert [file.name for file in tmp_path.iterdir()] == ["note.md"]


def test_an_existing_file_keeps_its_rights_and_a_new_one_gets_the_usual_ones(
    tmp_path: Path,
) -> None:
    path = tmp_path / "note.md"
    path.write_text("old")
    path.chmod(0o640)
    save(conversation("a"), path, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    usual = tmp_path / "usual"
    usual.touch()
    saved = save(conversation("a"), tmp_path / "new.md")
    assert saved.stat().st_mode == usual.stat().st_mode


def test_a_link_is_followed_to_the_file_it_names(tmp_path: Path) -> None:
    path, link = tmp_path / "note.md", tmp_path / "link.md"
    path.write_text("old")
    link.symlink_to(path)
    with pytest.raises(ExportExists):
        save(conversation("a"), link)
    save(conversation("a"), link, overwrite=True)
    assert link.is_symlink()
    assert path.read_text().startswith("# A title")


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    path = tmp_path / "note.md"
    fsync = os.fsync

    def somebody_else_is_quicker(descriptor: int) -> None:
        path.write_text("theirs")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", somebody_else_is_quicker)
    if not hard_links:
        monkeypatch.setattr("os.link", refusing(errno.EPERM))
    with pytest.raises(ExportExists):
        save(conversation("a"), path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["theirs"]


def test_a_file_system_without_hard_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.link", refusing(errno.EPERM))
    assert save(conversation("a"), tmp_path / "note.md").read_text().startswith("# A title")


def test_the_suffix_decides_the_format(tmp_path: Path) -> None:
    assert json.loads(save(conversation("a"), tmp_path / "x.json").read_text())["title"]
    assert save(conversation("a"), tmp_path / "y").name == "y.md"


def test_a_folder_gets_a_file_named_after_the_chat(tmp_path: Path) -> None:
    saved = save(conversation("a", title="../../Wie geht's?\x1b[2J"), tmp_path)
    assert saved == tmp_path / "1971-01-01-wie-geht-s-2j.md"


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("CON", "con"),
        ('a<b>:"c"|d?*\\e/f', "a-b-c-d-e-f"),
        ("漢字 שלום", "漢字-שלום"),
        ("e\u0301te\u0301", "été"),
        ("🏳️‍🌈 \u202e \ud800", "chat"),
        ("..", "chat"),
    ],
)
def test_a_name_holds_nothing_that_a_file_system_minds(title: str, name: str) -> None:
    assert default_name(conversation(title=title)) == f"1971-01-01-{name}.md"


def test_names_are_short_and_safe() -> None:
    assert default_name(conversation(title="")) == "1971-01-01-chat.md"
    assert len(default_name(conversation(title="long " * 50))) < 60


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("missing/note.md", "there is no folder .*missing"),
        ("file/note.md", "Not a directory"),
        ("x" * 300 + "/note.md", "File name too long"),
        ("no\0name/note.md", "embedded null byte"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, where: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=rf"note\.md cannot be written: {reason}"):
        save(conversation("a"), tmp_path / where)


def test_a_home_that_nobody_has_is_named() -> None:
    with pytest.raises(ExportError, match=r"~nobody-of-that-name/x\.md cannot be written"):
        save(conversation("a"), Path("~nobody-of-that-name/x.md"))


def refusing(number: int) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("where", ["os.fsync", "os.replace", "pathlib.Path.open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_cannot_be_written_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    path = tmp_path / "note.md"
    path.write_text("precious")
    monkeypatch.setattr(where, refusing(number))
    with pytest.raises(ExportError, match=os.strerror(number)) as error:
        save(conversation("a"), path, overwrite=True)
    assert "\n" not in str(error.value)
    monkeypatch.undo()
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["note.md"]


def test_a_disk_that_fills_while_saving_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "note.md"
    path.write_text("precious")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(ExportError, match="cannot be written: File too large"):
            save(conversation("a" * 2_000_000), path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["note.md"]


def test_half_surrogates_do_not_stop_an_export(tmp_path: Path) -> None:
    assert "a�" in save(conversation("a\ud800"), tmp_path / "x.md").read_text()
    assert save(conversation("a\ud800"), tmp_path / "x.json").exists()
