"""Default settings of the probes; light to import, so that a command's help can name them."""

from __future__ import annotations

# Few-shot linear classification.
DEFAULT_SHOTS = (1, 5, 10, 25)  # training images per class
DEFAULT_DRAWS = 3  # seeds of each number of shots
DEFAULT_L2 = 2.0**10

# Linear probe.
DEFAULT_L2S = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
DEFAULT_DEV_SHARE = 0.1  # share of each class held out to choose the penalty

# Nearest neighbours.
DEFAULT_KS = (10, 20, 100)
DEFAULT_TEMPERATURE = 0.07

DEFAULT_CACHE_GIB = 16.0  # disk budget of the feature cache
