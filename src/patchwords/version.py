"""The one place that knows the version at run time."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("patchwords")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
