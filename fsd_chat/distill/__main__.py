"""`python -m fsd_chat.distill RECIPE`: the process behind `fsd-chat distill`.

RECIPE is JSON, with `further` beside the recipe's own fields. Exit status: 0; 1 for a failure; 130
when interrupted, with everything kept.
"""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path
from types import FrameType

import msgspec
from safetensors import SafetensorError
from transformers.utils import logging

from fsd_chat.distill.display import Display, display
from fsd_chat.distill.recipe import WORK, Order
from fsd_chat.distill.run import Distillation, Interrupted
from fsd_chat.engine.hardware import use_physical_cores
from fsd_chat.models.errors import ModelError

FAILURE, INTERRUPTED = 1, 130


def main() -> int:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    use_physical_cores()
    asked = _Asked()
    try:
        with display() as shown:
            _distill(order, shown, asked)
    except (Interrupted, KeyboardInterrupt):
        _say(f"interrupted; everything is kept in {order.recipe.out}, and the same command goes on")
        return INTERRUPTED
    except ModelError as error:
        _say(str(error))
        return FAILURE
    except (OSError, SafetensorError) as error:
        _say(_explained(error, order.recipe.out))
        return FAILURE
    return 0


def _distill(order: Order, shown: Display, asked: _Asked) -> None:
    work = Distillation(order.recipe, order.further, shown, asked.is_set)
    found = work.run()
    out = Path(order.recipe.out)
    shown.say(
        f"done: {out}, overlap {found.overlap[0]:.3f} on {found.conversations} held-out "
        f"conversations; its card is {out / 'README.md'}\n"
        f"use it:   fsd-chat --target {order.recipe.target} --draft {out}\n"
        f"go on:    add --further; {out / WORK} holds what that needs, and may be deleted"
    )


class _Asked:
    """Whether to stop; the first signal lets the present step end."""

    def __init__(self) -> None:
        self._set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._set:
            raise KeyboardInterrupt
        self._set = True

    def is_set(self) -> bool:
        return self._set


def _explained(error: Exception, out: str) -> str:
    number = getattr(error, "errno", None)
    if number == errno.ENOSPC or "No space left" in str(error) or "os error 28" in str(error):
        return (
            f"the disk of {out} is full; what was kept before is good: make room, and the same "
            "command goes on"
        )
    reason = getattr(error, "strerror", None) or str(error)
    return f"{out}: {reason}"


def _say(message: str) -> None:
    print(f"fsd-chat: {' '.join(message.split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
