"""`python -m fa4gen`: the command line."""

import sys

from fa4gen.cli import main

sys.exit(main())
