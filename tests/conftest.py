"""How hard hypothesis looks."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

settings.register_profile("exploring", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
# A mutant has only to be noticed, not explained by the smallest example.
settings.register_profile(
    "mutations", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("FSD_CHAT_HYPOTHESIS", "ci"))
