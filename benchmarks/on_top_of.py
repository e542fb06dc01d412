"""Let this Python's environment see the packages of another one, after its own.

.venv-bench/bin/python benchmarks/on_top_of.py .venv
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """A .pth file, which Python reads at every start, adds the other's folder of packages."""
    own, base = Path(sysconfig.get_path("purelib")), str(Path(sys.argv[1]).absolute())
    other = sysconfig.get_path("purelib", "venv", {"base": base, "installed_base": base})
    (own / "on_top_of.pth").write_text(f"import site; site.addsitedir({str(other)!r})\n")


if __name__ == "__main__":
    main()
