"""Install a wheel into an empty folder and use it there: `python .ci/check_wheel.py dist/x.whl`.

Dependencies are those of this Python; the package is the wheel's alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image


def main() -> int:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = folder / "installed"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*pip, target, wheel], check=True)

        def run(*words: str) -> str:
            environment = {**os.environ, "PYTHONPATH": str(target), "PATCHWORDS_CACHE": name}
            command = [sys.executable, *words]
            return subprocess.check_output(command, cwd=folder, env=environment, text=True)

        where = run("-c", "import patchwords; print(patchwords.__file__)").strip()
        assert Path(where).is_relative_to(target), where
        assert "patchwords finetune" in run("-m", "patchwords", "--help")
        Image.new("RGB", (40, 30), "red").save(folder / "red.png")
        words = ("predict", "patchwords:cifar10-small", "red.png", "--json")
        answer = json.loads(run("-m", "patchwords", *words))
        assert len(answer["predictions"]) > 1, answer
        version = run("-m", "patchwords", "--version").split()[-1]
        assert f"-{version}-" in wheel.name, version
    print(f"{wheel.name}: --help, --version and predict work from an empty folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
