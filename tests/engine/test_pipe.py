from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_chat.engine.pipe import MAX_FRAME, FrameError, Frames, frame


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 30))
def test_frames_come_back_however_the_pipe_cuts_them(payloads: list[bytes], size: int) -> None:
    stream = b"".join(map(frame, payloads))
    frames = Frames()
    received = [
        payload
        for start in range(0, len(stream), size)
        for payload in frames.feed(stream[start : start + size])
    ]
    assert received == payloads
    assert not frames.partial


def test_a_frame_that_was_cut_off_is_known_as_partial() -> None:
    frames = Frames()
    assert list(frames.feed(frame(b"whole")[:-1])) == []
    assert frames.partial


def test_the_length_is_four_bytes_big_endian() -> None:
    assert frame(b"ab") == b"\x00\x00\x00\x02ab"


def test_a_length_beyond_the_maximum_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameError, match=str(MAX_FRAME + 1)):
        list(Frames().feed((MAX_FRAME + 1).to_bytes(4, "big")))


def test_frames_before_the_garbage_are_still_delivered() -> None:
    received = Frames().feed(frame(b"good") + b"\xff\xff\xff\xff")
    assert next(received) == b"good"
    with pytest.raises(FrameError):
        next(received)
