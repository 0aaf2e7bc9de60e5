"""What leaves the program: complete, unharmed, and never over something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsd_chat.chats.conversation import Chat, Conversation, StoredMessage
from fsd_chat.chats.export import (
    ExportError,
    ExportExists,
    default_name,
    save,
    to_json,
    to_markdown,
)
from fsd_chat.chats.store import ChatStore

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
    assert text.startswith("# Say hello please\n\n- date: ")
    assert "- pair: smol (smol, drafted by smol-draft)" in text
    assert "- rule: fsd, js, T = 0.1" in text
    assert "- temperature: 0.7, seed 4611686018427387904" in text
    assert "## You\n\nSay hello\nplease\n\n## smol\n\nHello world\n\n" in text
    footer = (
        "*4 tokens · 4.0 tokens/s · accepted 67% (exact decoding 43%) · fuzzy 25% · T 0.1 → 0.3*"
    )
    assert text.endswith(footer + "\n")


@pytest.mark.parametrize("nasty", [NASTY, "```python\nprint(1)\n```", "~~~\n```\n~~~\nrest"])
def test_text_leaves_unharmed(nasty: str) -> None:
    whole = conversation("question", nasty)
    assert nasty in to_markdown(whole)
    assert json.loads(to_json(whole))["messages"][1]["content"] == nasty


@pytest.mark.parametrize(
    ("left_open", "closing"),
    [
        ("```python\nprint(1)", "\n```"),
        ("~~~~\ncode\n~~~", "\n~~~~"),
        ("```\na\n```\n\n````md\n```\nx\n```", "\n````"),
        ("```\n``` not a closing fence", "\n```"),
    ],
)
def test_a_fence_left_open_does_not_swallow_the_next_turn(left_open: str, closing: str) -> None:
    text = to_markdown(conversation("question", left_open, "thanks"))
    assert f"{left_open}{closing}\n\n## You\n\nthanks\n" in text


def test_a_file_is_never_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "note.md"
    path.write_text("precious")
    with pytest.raises(ExportExists, match="exists already"):
        save(conversation("a", "b"), path)
    assert path.read_text() == "precious"
    assert save(conversation("a", "b"), path, overwrite=True) == path
    assert path.read_text().startswith("# A title")
    assert [file.name for file in tmp_path.iterdir()] == ["note.md"]


def test_the_suffix_decides_the_format(tmp_path: Path) -> None:
    assert json.loads(save(conversation("a"), tmp_path / "x.json").read_text())["title"]
    assert save(conversation("a"), tmp_path / "y").name == "y.md"


def test_a_folder_gets_a_file_named_after_the_chat(tmp_path: Path) -> None:
    saved = save(conversation("a", title="../../Wie geht's?\x1b[2J"), tmp_path)
    assert saved == tmp_path / "1971-01-01-wie-geht-s-2j.md"


def test_names_are_short_and_safe() -> None:
    assert default_name(conversation(title="")) == "1971-01-01-chat.md"
    assert len(default_name(conversation(title="long " * 50))) < 60


@pytest.mark.parametrize(
    ("where", "reason"),
    [("missing/note.md", "No such file or directory"), ("file/note.md", "Not a directory")],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, where: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=rf"note\.md cannot be written: {reason}"):
        save(conversation("a"), tmp_path / where)


def test_a_full_disk_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note.md"
    path.write_text("precious")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ExportError, match="No space left on device"):
        save(conversation("a"), path, overwrite=True)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["note.md"]


def test_half_surrogates_do_not_stop_an_export(tmp_path: Path) -> None:
    assert "a?" in save(conversation("a\ud800"), tmp_path / "x.md").read_text()
    assert save(conversation("a\ud800"), tmp_path / "x.json").exists()
