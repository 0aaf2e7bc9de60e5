"""Draw the README's picture: the real app, the real engine, the embedded pair.

`python docs/picture.py` asks one question, turns the knob while the reply is written, and
saves what is on the screen when the reply is over.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from fsd_chat.chats.store import ChatStore
from fsd_chat.config import Config, load
from fsd_chat.engine.client import EngineClient
from fsd_chat.engine.messages import Sampling
from fsd_chat.places import theme_folders
from fsd_chat.tui.app import ChatApp
from fsd_chat.tui.themes import load_themes

QUESTION = "Write a python function that reverses a string."
PATIENCE_S = 300


async def draw(picture: Path, theme: str, size: tuple[int, int]) -> None:
    config: Config = load()
    choice = config.choose_pair("smol")
    app = ChatApp(
        config,
        ChatStore(None),
        EngineClient,
        choice.load(),
        config.knob_for(choice),
        Sampling(seed=1, max_tokens=120),
        load_themes(theme_folders()),
    )
    app.begin_with_theme(theme)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press(*QUESTION, "enter")
        deadline = time.monotonic() + PATIENCE_S
        while app.talk.statistics.output < 30 and time.monotonic() < deadline:
            await pilot.pause(0.2)
        await pilot.press("ctrl+up", "ctrl+up")
        while app.talk.busy and time.monotonic() < deadline:
            await pilot.pause(0.2)
        await pilot.pause(0.5)
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(app.export_screenshot(), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "svg", nargs="?", type=Path, default=Path(__file__).parent / "images" / "chat.svg"
    )
    parser.add_argument("--theme", default="dusk")
    parser.add_argument("--size", default="100x28", metavar="COLUMNSxROWS")
    options = parser.parse_args()
    width, height = (int(one) for one in options.size.split("x"))
    asyncio.run(draw(options.svg, options.theme, (width, height)))


if __name__ == "__main__":
    main()
