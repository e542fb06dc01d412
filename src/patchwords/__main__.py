"""`python -m patchwords` is `patchwords`."""

import sys

from patchwords.cli import main

sys.exit(main())
