"""The options of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from fsd_chat import __version__
from fsd_chat.chats.display import one_line
from fsd_chat.engine.messages import DIVERGENCES, FORMS, QUANTIZATIONS, RULES

BAD_USAGE = 2


class Parser(argparse.ArgumentParser):
    """Says in one line what was wrong."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"fsd-chat: {one_line(message, 1000)} (see {self.prog} --help)\n")


def parser() -> Parser:
    """Options that are not given leave no trace in the result, nor does `command`."""
    top = Parser(
        prog="fsd-chat",
        description="Chat with a local model through fuzzy speculative decoding, and turn the "
        "threshold while it writes.",
        epilog="Without a command, the chat itself starts. Exit status: 0; 1 for a failure, a "
        "value that cannot be used among them; 2 for bad usage; 130 when interrupted.",
        argument_default=argparse.SUPPRESS,
    )
    top.add_argument("--version", action="version", version=f"fsd-chat {__version__}")
    _add_options(top)
    top.add_argument("--theme", metavar="NAME", help="colours of the app")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    def command(name: str, summary: str) -> Parser:
        return commands.add_parser(name, help=summary, argument_default=argparse.SUPPRESS)

    run = command("run", "write one reply to standard output")
    run.add_argument("prompt", nargs="?", help="what to reply to; `-` or nothing: standard input")
    run.add_argument("--json", action="store_true", help="one JSON object instead of text")
    run.add_argument("--plain", action="store_true", help="no chat template (for base models)")
    _add_options(run)

    pairs = command("pairs", "list known pairs, and which fit this machine")
    pairs.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    _add_config(pairs)

    _add_distill(command("distill", "make a draft for a target, from the target alone"))

    bench = command("bench", "measure a pair: overlap, cost of a step, tokens per second")
    bench.add_argument("--pair", metavar="NAME", help="one that `fsd-chat pairs` lists")
    _add_models(bench)
    _add_config(bench)
    bench.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    bench.add_argument("--conversations", type=int, metavar="N", help="for overlap; else 200")
    bench.add_argument("--prompts", type=int, metavar="N", help="for speed; else 8")
    bench.add_argument("--lookahead", type=int, metavar="N", help="drafts a round; else the pair's")
    bench.add_argument(
        "-T", "--threshold", metavar="T[,T]", help="of FSD, one or several; else the pair's"
    )
    bench.add_argument(
        "--against",
        metavar="WAY[,WAY]",
        help="transformers' generate; the target alone in none, int8 or int4",
    )

    config = command("config", "where the configuration is, and what is in force")
    config.add_argument("what", choices=["path", "show"])
    _add_config(config)
    return top


def _add_distill(to: Parser) -> None:
    to.add_argument("--target", metavar="MODEL", required=True, help="as for the chat")
    to.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="of the draft")
    budget = to.add_mutually_exclusive_group()
    budget.add_argument(
        "--hours", type=float, metavar="H", help="of writing and training together; else 1"
    )
    budget.add_argument(
        "--tokens", type=int, metavar="N", help="to be written by the target, and trained on"
    )
    to.add_argument(
        "--layers",
        type=_layers,
        metavar="N|I,J",
        help="how many of the target's layers the draft begins as, or which ones; else 2",
    )
    to.add_argument(
        "--prompts", type=Path, metavar="FILE", help="your questions: text, JSON lines, or chats"
    )
    to.add_argument(
        "--no-features",
        action="store_true",
        help="a draft that any program can use, since it does not read the target's hidden states",
    )
    to.add_argument(
        "--start", metavar="DRAFT", help="an earlier draft of this target to begin as: a folder"
    )
    to.add_argument("--head", type=int, metavar="N", help="ids that its head knows; 0 for all")
    to.add_argument("--passes", type=int, metavar="N", help="over the tokens, with --tokens")
    to.add_argument("--batch", type=int, metavar="N", help="conversations written at once")
    to.add_argument("--seed", type=int, metavar="N")
    to.add_argument("--further", action="store_true", help="go on with a draft that is done")
    to.add_argument("--device", metavar="NAME", help="cuda, mps, cpu; else the first there is")
    to.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    to.add_argument(
        "--trust-remote-code", action="store_true", help="run code that the target brings along"
    )


def _layers(text: str) -> int | tuple[int, ...]:
    try:
        numbers = tuple(int(one) for one in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 4 nor 0,1,2,29") from None
    return numbers if "," in text else numbers[0]


def _add_config(to: Parser | argparse._ArgumentGroup) -> None:
    to.add_argument("--config", type=Path, metavar="FILE", help="another configuration file")


def _add_options(to: Parser) -> None:
    models = to.add_argument_group("models")
    models.add_argument("--pair", metavar="NAME", help="one that `fsd-chat pairs` lists")
    _add_models(models)
    _add_config(models)
    _add_knob(to.add_argument_group("the knob"))
    _add_sampling(to.add_argument_group("sampling"))


def _add_models(to: Parser | argparse._ArgumentGroup) -> None:
    to.add_argument("--target", metavar="MODEL", help="a folder, a GGUF file or a hub id")
    to.add_argument("--draft", metavar="MODEL", help="the same, `prompt-lookup`, or `none`")
    to.add_argument("--device", metavar="NAME", help="cuda, mps, cpu; else the first there is")
    to.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    to.add_argument("--quantize", choices=QUANTIZATIONS, help="weights of few bits, on a CPU")
    to.add_argument(
        "--trust-remote-code", action="store_true", help="run code that a model brings along"
    )


def _add_knob(to: argparse._ArgumentGroup) -> None:
    to.add_argument("-T", "--threshold", metavar="T", help="from 0 up; 0 is exactly the target")
    to.add_argument("--rule", choices=RULES)
    to.add_argument("--divergence", choices=DIVERGENCES)
    to.add_argument("--form", choices=FORMS, help="whole rows, or only the likeliest tokens")
    to.add_argument("--form-k", type=int, metavar="K", help="tokens of the top-k form")
    to.add_argument("--form-p", type=float, metavar="P", help="mass of the top-p form")
    to.add_argument(
        "--on-processed", action="store_true", help="divergence after temperature and filters"
    )
    to.add_argument(
        "--lookahead", metavar="N", help="adaptive, paper, heuristic, or tokens to draft per round"
    )


def _add_sampling(to: argparse._ArgumentGroup) -> None:
    to.add_argument("--temperature", type=float, metavar="X", help="0 is greedy")
    to.add_argument("--top-k", type=int, metavar="K")
    to.add_argument("--top-p", type=float, metavar="P")
    to.add_argument("--min-p", type=float, metavar="P")
    to.add_argument("--repetition-penalty", type=float, metavar="X")
    to.add_argument("--presence-penalty", type=float, metavar="X")
    to.add_argument("--frequency-penalty", type=float, metavar="X")
    to.add_argument("--logit-bias", type=_bias, action="append", metavar="ID=X")
    to.add_argument("--seed", type=int, metavar="N")
    to.add_argument("--max-tokens", type=int, metavar="N")
    to.add_argument("--stop", action="append", metavar="TEXT", help="may be given several times")
    to.add_argument("--exact-prefix", type=int, metavar="N", help="first N tokens exact")
    to.add_argument("--greedy-draft", action="store_true", help="draft the likeliest token")
    to.add_argument("--system", metavar="TEXT", help="system prompt")


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=NUMBER, such as 42=-1.5") from None
