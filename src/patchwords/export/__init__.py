"""Export to ONNX and OpenVINO; the module itself is the public function `patchwords.export`."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module that calls `patchwords.api.models.export`."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Write a model as ONNX or OpenVINO; see `patchwords.api.models.export`."""
        return importlib.import_module("patchwords.api.models").export(*arguments, **settings)


sys.modules[__name__].__class__ = CallableModule
