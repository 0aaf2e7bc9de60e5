"""The app with a history of its own and an engine that a test speaks for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ui.driving import NARROW, Chat, MakeApp, Running
from ui.scripted import Engines

from fsd_chat.catalogue import catalogue
from fsd_chat.chats.store import ChatStore
from fsd_chat.config import Config
from fsd_chat.engine.messages import Knob, Sampling
from fsd_chat.places import theme_folders
from fsd_chat.tui.app import ChatApp
from fsd_chat.tui.themes import Loaded, load_themes


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "config" / "config.toml"))
    monkeypatch.setenv("FSD_CHAT_DATA", str(tmp_path / "data"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "data" / "chats.db")
    yield store
    store.close()


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


@pytest.fixture
def make_app(store: ChatStore, engines: Engines) -> MakeApp:
    def make(
        theme: str = "dusk",
        keys: Mapping[str, str] | None = None,
        knob: Knob | None = None,
        themes: Loaded | None = None,
        history: ChatStore | None = None,
    ) -> ChatApp:
        pairs = catalogue()
        config = Config(Path("config.toml"), pairs=pairs, keys=keys or {})
        app = ChatApp(
            config,
            history or store,
            engines,
            pairs["smol"].load(),
            knob or Knob(),
            Sampling(seed=1),
            themes or load_themes(theme_folders()),
        )
        app.begin_with_theme(theme)
        return app

    return make


@pytest.fixture
def running(make_app: MakeApp, engines: Engines) -> Running:
    """Runs an app; `loaded=False` leaves the engine without a word."""

    @asynccontextmanager
    async def run(
        *, loaded: bool = True, size: tuple[int, int] = NARROW, **options: object
    ) -> AsyncIterator[Chat]:
        app = make_app(**options)
        async with app.run_test(size=size, notifications=True) as pilot:
            chat = Chat(app, pilot, engines)
            await chat.until(lambda: engines.made and engines.now.sent)
            if loaded:
                await chat.ready()
            yield chat

    return run
