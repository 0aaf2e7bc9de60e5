"""The command line. Exit status: 0; 1 for a failure; 2 for bad usage; 130 when interrupted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fsd_chat import __version__
from fsd_chat.config import (
    Config,
    ConfigError,
    PairChoice,
    check_knob,
    check_sampling,
    load,
    parse_threshold,
    show,
)
from fsd_chat.engine.messages import (
    DIVERGENCES,
    FORMS,
    RULES,
    Knob,
    LoadPair,
    ModelSource,
    Sampling,
)
from fsd_chat.places import config_path, theme_file
from fsd_chat.tui.first_frame import first_frame

S = TypeVar("S", Knob, Sampling)

FAILURE, USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.command(options))
    except ConfigError as error:
        print(f"fsd-chat: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fsd-chat",
        description="Chat with a local model through fuzzy speculative decoding, and turn the "
        "threshold while it writes.",
        epilog="Without a command, the chat itself starts.",
    )
    parser.add_argument("--version", action="version", version=f"fsd-chat {__version__}")
    _add_options(parser)
    parser.add_argument("--theme", help="colours of the app; Ctrl+P, theme, lists them")
    parser.set_defaults(command=_app)
    commands = parser.add_subparsers(title="commands", metavar="")

    run = commands.add_parser("run", help="write one reply to standard output")
    run.add_argument("prompt", nargs="?", help="what to reply to; without it, standard input")
    run.add_argument("--json", action="store_true", help="one JSON object instead of text")
    run.add_argument("--plain", action="store_true", help="no chat template (for base models)")
    _add_options(run)
    run.set_defaults(command=_run)

    pairs = commands.add_parser("pairs", help="list known pairs and what fits this machine")
    pairs.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    pairs.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    pairs.set_defaults(command=_pairs)

    config = commands.add_parser("config", help="where the configuration is, and what is in force")
    config.add_argument("what", choices=["path", "show"])
    config.add_argument("--config", type=Path, help="another configuration file")
    config.set_defaults(command=_config)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    # Left out, an option must leave no trace, or a command's default would undo the program's.
    def add(to: Any, *names: str, **settings: Any) -> None:
        to.add_argument(*names, default=argparse.SUPPRESS, **settings)

    models = parser.add_argument_group("models")
    add(models, "--pair", metavar="NAME", help="a pair of the catalogue or the configuration")
    add(models, "--target", metavar="PATH_OR_ID", help="folder, GGUF file or hub id")
    add(models, "--draft", metavar="PATH_OR_ID", help="the same, `prompt-lookup`, or `none`")
    add(models, "--device", help="cuda, mps, cpu, …; else the first of these there is")
    add(models, "--dtype", choices=["float32", "bfloat16", "float16"])
    add(models, "--trust-remote-code", action="store_true", help="run code that a model brings")
    add(models, "--config", type=Path, help="another configuration file")

    knob = parser.add_argument_group("the knob")
    add(knob, "-T", "--threshold", type=_threshold, metavar="T", help="0 is the target exactly")
    add(knob, "--rule", choices=RULES)
    add(knob, "--divergence", choices=DIVERGENCES)
    add(knob, "--form", choices=FORMS, help="whole rows, or the target's likeliest tokens")
    add(knob, "--form-k", type=int, metavar="K", help="tokens of the top-k form")
    add(knob, "--form-p", type=float, metavar="P", help="mass of the top-p form")
    add(knob, "--on-processed", action="store_true", help="divergence after temperature, filters")
    add(knob, "--lookahead", metavar="N", help="adaptive, paper, heuristic, or a number of drafts")

    sampling = parser.add_argument_group("sampling")
    add(sampling, "--temperature", type=float, metavar="X", help="0 is greedy")
    add(sampling, "--top-k", type=int, metavar="K")
    add(sampling, "--top-p", type=float, metavar="P")
    add(sampling, "--min-p", type=float, metavar="P")
    add(sampling, "--repetition-penalty", type=float, metavar="X")
    add(sampling, "--presence-penalty", type=float, metavar="X")
    add(sampling, "--frequency-penalty", type=float, metavar="X")
    add(sampling, "--logit-bias", type=_bias, action="append", metavar="ID=X")
    add(sampling, "--seed", type=int, metavar="N")
    add(sampling, "--max-tokens", type=int, metavar="N")
    add(sampling, "--stop", action="append", metavar="TEXT", help="may be given several times")
    add(sampling, "--exact-prefix", type=int, metavar="N", help="first tokens of a reply exact")
    add(sampling, "--greedy-draft", action="store_true", help="draft the likeliest token")
    add(sampling, "--system", metavar="TEXT", help="system prompt")


def _threshold(text: str) -> float:
    try:
        return parse_threshold(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=NUMBER, such as 42=-1.5") from None


class Request:
    """What the options and the configuration together ask for. Raises ConfigError."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.given = vars(options)
        self.config: Config = load(self.given.get("config"))
        self.choice: PairChoice | None = None
        self.pair = self._pair()
        self.knob = self._merged(self.config.knob_for(self.choice), check_knob)
        self.sampling = self._merged(self.config.sampling, check_sampling)
        self.system: str = self.given.get("system", self.config.system)

    def _pair(self) -> LoadPair:
        if "target" not in self.given:
            self.choice = self.config.choose_pair(self.given.get("pair", self.config.pair))
            chosen = self.choice.load()
            draft = chosen.draft
            if "draft" in self.given:
                draft = self._source(self.given["draft"])
            return LoadPair(
                name=chosen.name,
                target=self._adjusted(chosen.target),
                draft=self._adjusted(draft) if draft else None,
            )
        target = self.given["target"]
        draft = self._source(self.given.get("draft", "none"))
        return LoadPair(
            name=Path(target).name or target,
            target=self._adjusted(ModelSource(location=target)),
            draft=self._adjusted(draft) if draft else None,
        )

    @staticmethod
    def _source(location: str) -> ModelSource | None:
        return None if location == "none" else ModelSource(location=location)

    def _adjusted(self, source: ModelSource) -> ModelSource:
        names = ("device", "dtype", "trust_remote_code")
        given = {name: self.given[name] for name in names if name in self.given}
        return msgspec.structs.replace(source, **given)

    def _merged(self, base: S, check: Callable[[S], None]) -> S:
        given = {name: self.given[name] for name in base.__struct_fields__ if name in self.given}
        if "stop" in given:
            given["stop"] = tuple(given["stop"])
        if "logit_bias" in given:
            given["logit_bias"] = dict(given["logit_bias"])
        merged = msgspec.structs.replace(base, **given)
        try:
            check(merged)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return merged


def _app(options: argparse.Namespace) -> int:
    request = Request(options)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(
            "fsd-chat: the chat needs a terminal; `fsd-chat run` writes a reply to a file or pipe",
            file=sys.stderr,
        )
        return USAGE
    theme = options.theme or request.config.theme
    with first_frame(theme_file(theme), request.pair.name):
        from fsd_chat.tui.run import run_app

        return run_app(request.config, request.pair, request.knob, request.sampling, theme)


def _run(options: argparse.Namespace) -> int:
    request = Request(options)
    prompt = options.prompt
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            print("fsd-chat run: give a prompt, or text on standard input", file=sys.stderr)
            return USAGE
        prompt = sys.stdin.read()
    if not prompt.strip():
        print("fsd-chat run: the prompt is empty", file=sys.stderr)
        return USAGE
    from fsd_chat.commands.run import run

    return run(request, prompt, as_json=options.json, plain_prompt=options.plain)


def _pairs(options: argparse.Namespace) -> int:
    from fsd_chat.commands.pairs import pairs

    return pairs(load(options.config), as_json=options.json)


def _config(options: argparse.Namespace) -> int:
    if options.what == "path":
        print(options.config or config_path())
    else:
        print(show(load(options.config)), end="")
    return 0
