"""`python -m fsd_chat` is `fsd-chat`."""

import sys

from fsd_chat.cli import main

sys.exit(main())
