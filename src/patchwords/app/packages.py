"""The packages of the extra `app`, and the line for a person who lacks them."""

from __future__ import annotations

import importlib

from patchwords.errors import ConfigError

APP_PACKAGES = ("fastapi", "uvicorn", "python_multipart")


def require_app_packages() -> None:
    """Raise ConfigError where one of the packages is not there or does not load."""
    for name in APP_PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            package = name.replace("_", "-")
            raise ConfigError(
                f"the app needs {package}, which cannot be imported ({error}): "
                "pip install 'patchwords[app]'"
            ) from error
