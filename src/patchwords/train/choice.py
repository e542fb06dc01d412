"""A setting as it will be used, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResolvedSetting:
    """One line of the table that is shown before the first step."""

    name: str
    value: object
    why: str
