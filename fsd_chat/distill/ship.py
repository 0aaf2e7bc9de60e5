"""The embedded pair's draft, made from nothing and put into the package.

`python -m fsd_chat.distill.ship FOLDER [option …]` writes of the draft in FOLDER what is not its
target's. If FOLDER holds no finished one, or there are options, it is made first, by `fsd-chat
distill --target smol --out FOLDER` with these options.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fsd_chat.distill.recipe import Workplace
from fsd_chat.models.conversion import DRAFT
from fsd_chat.models.small_draft import PARTS

SHARED = ("model.embed_tokens.weight", "lm_head.weight")


def ship(draft: Path, place: Path) -> None:
    """Write the weights of the folder `draft` that are its own into `place`."""
    own = {
        name: values
        for name, values in load_file(draft / "model.safetensors").items()
        if name not in SHARED
    }
    with safe_open(draft / PARTS, framework="pt") as stored:
        about = stored.metadata()
    save_file({**own, **load_file(draft / PARTS)}, place, about)


def main() -> int:
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    if Workplace(folder).state.stage != "done" or options:
        command = [sys.executable, "-m", "fsd_chat", "distill", "--target", "smol"]
        status = subprocess.call([*command, "--out", str(folder), *options])
        if status:
            return status
    ship(folder, DRAFT)
    print(f"{DRAFT}: {DRAFT.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
