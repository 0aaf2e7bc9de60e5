"""The command line. Exit status: 0; 1 for a failure; 2 for bad usage; 130 when interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fsd_chat.chats.display import one_line
from fsd_chat.config import ConfigError, load
from fsd_chat.options import BAD_USAGE, parser
from fsd_chat.places import config_path, theme_file
from fsd_chat.tui.first_frame import first_frame

FAILURE, INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status. Bad usage raises SystemExit."""
    options = parser()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not all(map(_is_text, arguments)):
        options.error("an argument is not valid text in this terminal's encoding")
    given = vars(options.parse_args(arguments))
    if "pair" in given and "target" in given:
        options.error("--pair and --target cannot both be given")
    try:
        status = _obey(given)
        sys.stdout.flush()
        return status
    except ConfigError as error:
        _say(str(error))
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read this has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        _say(str(error))
        return FAILURE


def _is_text(argument: str) -> bool:
    """Python smuggles bytes that are no text into arguments as half surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)


def _obey(given: Mapping[str, Any]) -> int:
    match given.get("command"):
        case "run":
            return _run(given)
        case "pairs":
            from fsd_chat.commands.pairs import pairs

            return pairs(load(given.get("config")), as_json="json" in given)
        case "bench":
            from fsd_chat.commands.bench import bench

            return bench(given)
        case "distill":
            from fsd_chat.commands.distill import distill

            return distill(given)
        case "config":
            return _config(given)
        case _:
            return _app(given)


def _app(given: Mapping[str, Any]) -> int:
    from fsd_chat.commands.request import request

    asked = request(given)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _say("the chat needs a terminal; `fsd-chat run` writes a reply to a file or pipe")
        return BAD_USAGE
    theme: str = given.get("theme", asked.config.theme)
    with first_frame(theme_file(theme), asked.pair.name):
        from fsd_chat.tui.run import run_app

        return run_app(asked.config, asked.pair, asked.knob, asked.sampling, theme)


def _run(given: Mapping[str, Any]) -> int:
    from fsd_chat.commands.request import request
    from fsd_chat.commands.run import run

    asked = request(given)
    prompt: str = given.get("prompt", "-")
    if prompt == "-":
        if sys.stdin.isatty():
            _say("run: give a prompt, or text on standard input")
            return BAD_USAGE
        # Bytes that are no text are the user's to see in the reply, not a reason to stop.
        prompt = sys.stdin.buffer.read().decode(sys.stdin.encoding, "replace")
    if not prompt.strip():
        _say("run: the prompt is empty")
        return BAD_USAGE
    return run(asked, prompt, as_json="json" in given, without_template="plain" in given)


def _config(given: Mapping[str, Any]) -> int:
    if given["what"] == "path":
        print(given.get("config", config_path()))
        return 0
    from fsd_chat.commands.config import show

    print(show(load(given.get("config"))), end="")
    return 0


def _say(message: str) -> None:
    print(f"fsd-chat: {one_line(message, 1000)}", file=sys.stderr)
