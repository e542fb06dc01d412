"""When a training is looked at."""

from __future__ import annotations

STAGES = {"untrained": 0.0, "1 %": 0.01, "10 %": 0.1, "30 %": 0.3, "100 %": 1.0}  # of its steps
UNTRAINED, LAST = "untrained", "100 %"
