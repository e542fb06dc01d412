"""The packages of the extra `export`, and the line for a person who lacks them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from patchwords.errors import ConfigError


def import_export_package(name: str) -> Any:
    """The package, imported only now; raises ConfigError where it is not there or does not load."""
    if name == "openvino":
        # Its import reports to its makers over the network, unless this package is missing.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigError(
            f"this needs {package}, which cannot be imported ({error}): "
            "pip install 'patchwords[export]'"
        ) from error
