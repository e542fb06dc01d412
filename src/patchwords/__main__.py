"""`python -m patchwords` is `patchwords`."""

from __future__ import annotations

from patchwords.cli import main
from patchwords.distributed import exit_process


def run_cli() -> None:
    """The command as a program: its exit code is that of the process."""
    exit_process(main())


if __name__ == "__main__":
    run_cli()
