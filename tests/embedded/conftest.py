"""The embedded pair, loaded once per test process, in float32 on the CPU."""

from __future__ import annotations

import pytest

from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.models.pair import Pair, load_pair


@pytest.fixture(scope="session")
def smol() -> Pair:
    """Converted into the cache folder at the first use, as the program itself does it."""
    command = LoadPair(
        name="smol",
        target=ModelSource(location="smol", device="cpu", dtype="float32"),
        draft=ModelSource(location="smol-draft", device="cpu", dtype="float32"),
    )
    return load_pair(command, lambda stage, fraction: None)
