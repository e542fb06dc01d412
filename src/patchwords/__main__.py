"""`python -m patchwords` is `patchwords`."""

from __future__ import annotations

from patchwords.cli import main
from patchwords.distributed import leave


def run() -> None:
    """The command as a program: its exit code is that of the process."""
    leave(main())


if __name__ == "__main__":
    run()
