"""Print one of the two commands that the README promises, so that CI runs what people read.

Usage: python .ci/readme_command.py chat|tests
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def command(which: str) -> str:
    """The code block after the marker `<!-- command: which -->`. Raises LookupError."""
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"<!-- command: {which} -->\s*```\w*\n(.*?)\n```", text, re.DOTALL)
    if found is None:
        raise LookupError(f"{README.name} has no code block marked {which!r}")
    return found.group(1)


if __name__ == "__main__":
    print(command(sys.argv[1]))
