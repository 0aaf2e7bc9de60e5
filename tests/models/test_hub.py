"""What is on this machine is used without asking; the rest is fetched from the hub, once."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from fsd_chat.engine.messages import ModelSource
from fsd_chat.models.errors import ModelError
from fsd_chat.models.hub import cached
from fsd_chat.models.loading import load_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SaveModel = Callable[..., Path]


class Hub(ThreadingHTTPServer):
    """As much of a model hub as its client asks for, on this machine."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.files: dict[str, bytes] = {}
        """Of the one repository that there is, `owner/tiny`."""
        self.gated = False
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def offer(self, folder: Path) -> None:
        for file in folder.rglob("*"):
            if file.is_file():
                self.files[file.relative_to(folder).as_posix()] = file.read_bytes()


class _Request(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        if path.startswith("/api/models/owner/tiny"):
            self._about()
        elif path.startswith("/owner/tiny/resolve/main/"):
            self._file(path.removeprefix("/owner/tiny/resolve/main/"))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _about(self) -> None:
        if "nowhere" in self.path:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [
            {"rfilename": name, "size": len(content)} for name, content in self.server.files.items()
        ]
        about = {"id": "owner/tiny", "sha": COMMIT, "siblings": siblings}
        self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str) -> None:
        content = self.server.files.get(name)
        if self.server.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif content is None:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        else:
            tag = hashlib.sha1(content).hexdigest()
            self._send(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as hub:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        thread = Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


def quiet(stage: str, fraction: float | None) -> None:
    pass


def tiny(location: str = "owner/tiny", **settings: Any) -> ModelSource:
    return ModelSource(location=location, device="cpu", dtype="float32", **settings)


def refused(source: ModelSource) -> ModelError:
    with pytest.raises(ModelError) as error:
        load_model(source, quiet)
    assert "\n" not in str(error.value)
    return error.value


def test_a_model_is_fetched_once_and_then_nobody_is_asked(
    hub: Hub, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.offer(save_model("tiny"))
    first = load_model(tiny(), quiet)
    assert (first.name, first.revision) == ("tiny", COMMIT)
    assert hub.asked

    hub.asked.clear()
    second = load_model(tiny(), quiet)
    assert hub.asked == []
    assert second.revision == COMMIT

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    third = load_model(tiny(), quiet)
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        assert torch.equal(first.model(ids).logits, third.model(ids).logits)


def test_progress_counts_the_bytes_of_all_files_together(hub: Hub, save_model: SaveModel) -> None:
    hub.offer(save_model("tiny"))
    told: list[tuple[str, float]] = []

    def listen(stage: str, fraction: float | None) -> None:
        if fraction is not None:
            told.append((stage, fraction))

    load_model(tiny(), listen)
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    downloading = [fraction for stage, fraction in told if stage.startswith("downloading")]
    assert downloading[-1] == pytest.approx(0.7)
    assert told[0][0] == "downloading owner/tiny (0.0 GB)"


def test_nothing_is_printed_while_a_model_is_fetched(
    hub: Hub, save_model: SaveModel, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.offer(save_model("tiny"))
    capfd.readouterr()
    load_model(tiny(), quiet)
    assert capfd.readouterr() == ("", "")


def test_of_several_sets_of_weights_one_is_fetched(hub: Hub, save_model: SaveModel) -> None:
    folder = save_model("tiny")
    hub.offer(folder)
    weights = hub.files["model.safetensors"]
    others = {"consolidated.safetensors", "original/model.safetensors", "model.bin", "x.gguf"}
    hub.files |= dict.fromkeys(others, weights)
    load_model(tiny(), quiet)
    fetched = {one.rpartition("/main/")[2] for one in hub.asked if one.startswith("GET /owner")}
    assert "model.safetensors" in fetched
    assert not fetched & others


def test_weights_in_several_files_are_fetched_whole(
    hub: Hub, save_model: SaveModel, tmp_path: Path
) -> None:
    folder = save_model("tiny")
    whole = load_model(tiny(str(folder)), quiet).model
    whole.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    for file in folder.glob("token*"):
        shutil.copy(file, tmp_path / "shards")
    hub.offer(tmp_path / "shards")
    assert len([name for name in hub.files if name.endswith(".safetensors")]) > 1

    fetched = load_model(tiny(), quiet).model
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, fetched.state_dict()[name])


def test_a_model_that_was_fetched_in_part_is_completed(hub: Hub, save_model: SaveModel) -> None:
    hub.offer(save_model("tiny"))
    load_model(tiny(), quiet)
    folder = cached("owner/tiny", None)
    assert folder is not None
    (folder / "model.safetensors").unlink()
    assert cached("owner/tiny", None) is None
    assert load_model(tiny(), quiet).revision == COMMIT


def test_one_gguf_file_of_a_repository_is_fetched_alone(hub: Hub, tiny_gguf: Path) -> None:
    hub.files = {"tiny.gguf": tiny_gguf.read_bytes(), "other.gguf": b"another"}
    loaded = load_model(tiny("owner/tiny:tiny.gguf"), quiet)
    assert (loaded.name, loaded.vocabulary) == ("tiny", 261)
    assert not [one for one in hub.asked if "other.gguf" in one]
    hub.asked.clear()
    load_model(tiny("owner/tiny:tiny.gguf"), quiet)
    assert hub.asked == []


def test_a_gguf_file_that_is_not_there_names_those_that_are(hub: Hub) -> None:
    hub.files = {"q4.gguf": b"", "q8.gguf": b"", "README.md": b""}
    error = refused(tiny("owner/tiny:q5.gguf"))
    assert error.kind == "not-found"
    assert "owner/tiny has no file q5.gguf; its GGUF files: q4.gguf, q8.gguf" in str(error)


def test_pickled_weights_are_not_even_fetched(hub: Hub) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    error = refused(tiny())
    assert error.kind == "unsupported"
    assert "has no safetensors weights" in str(error)
    assert not [one for one in hub.asked if "pytorch_model" in one]


def test_code_is_fetched_only_for_a_model_that_is_trusted(hub: Hub, save_model: SaveModel) -> None:
    hub.offer(save_model("tiny"))
    config = json.loads(hub.files["config.json"])
    config["auto_map"] = {"AutoModelForCausalLM": "theirs.Theirs"}
    hub.files["config.json"] = json.dumps(config).encode()
    hub.files["theirs.py"] = b"from transformers import LlamaForCausalLM\n\n"
    hub.files["theirs.py"] += b"class Theirs(LlamaForCausalLM):\n    pass\n"
    assert type(load_model(tiny(), quiet).model).__name__ == "LlamaForCausalLM"
    assert not [one for one in hub.asked if "theirs.py" in one]
    trusted = load_model(tiny(trust_remote_code=True), quiet)
    assert type(trusted.model).__name__ == "Theirs"


def test_a_gated_model_says_where_its_licence_is(hub: Hub, save_model: SaveModel) -> None:
    hub.offer(save_model("tiny"))
    hub.gated = True
    error = refused(tiny())
    assert error.kind == "not-found"
    assert "owner/tiny is gated on the hub: accept its licence there" in str(error)


def test_a_model_that_nobody_has_is_told(hub: Hub) -> None:
    assert "there is no model nobody/nothing, neither here nor on the hub" in str(
        refused(tiny("nobody/nothing"))
    )


def test_a_revision_that_is_not_there_is_told(hub: Hub, save_model: SaveModel) -> None:
    hub.offer(save_model("tiny"))
    assert "owner/tiny has no revision nowhere" in str(refused(tiny(revision="nowhere")))


@pytest.mark.parametrize("location", ["a b/c", "owner/..", "-", "owner/tiny/..:x.gguf"])
def test_what_is_no_hub_id_is_told(hub: Hub, location: str) -> None:
    error = refused(tiny(location))
    assert error.kind == "not-found"
    assert location.partition(":")[0] in str(error)
    assert hub.asked == []


def test_offline_a_model_that_is_not_here_is_told(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error = refused(tiny())
    assert error.kind == "not-found"
    assert "owner/tiny is not on this machine, and HF_HUB_OFFLINE forbids" in str(error)
    assert hub.asked == []


def test_without_a_network_one_line_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens there.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    error = refused(tiny())
    assert error.kind == "not-found"
    assert "owner/tiny is not on this machine and cannot be fetched: " in str(error)
