"""Last sections: settings to reproduce the run, and how to read its numbers."""

from __future__ import annotations

from typing import Any

from patchwords.report.format import format_percent, pluralise
from patchwords.report.html import Content, Markup, html_table, note, section, table_row, tag
from patchwords.report.run_data import RunData

FEW_IMAGES = 30  # with fewer, one image changes a class's recall by more than 3 points


def render_settings(run: RunData) -> Markup:
    """Render the command, the versions and every resolved setting."""
    environment = run.environment
    parts: list[Content] = []
    if environment.get("command"):
        parts.append(tag("h3", "Command"))
        parts.append(tag("pre", environment["command"], class_="command"))
        parts.append(note("Click to select.", look="small noprint"))
    facts = {
        **{f"{key} version": value for key, value in (environment.get("versions") or {}).items()},
        **{f"device {key}": value for key, value in (environment.get("device") or {}).items()},
        "started": environment.get("started"),
    }
    columns = [
        tag("div", tag("h3", name), render_pairs_table(values))
        for name, values in (("Settings", flatten_for_display(run.config)), ("Environment", facts))
        if any(value is not None for value in values.values())
    ]
    if not parts and not columns:
        parts.append(note("config.yaml and environment.json are missing."))
    return section("settings", "Reproduce this run", *parts, tag("div", *columns, class_="two"))


def flatten_for_display(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings: {"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= flatten_for_display(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = format_setting(value)
    return flat


def format_setting(value: Any) -> Any:
    """Format a value as config.yaml writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def render_pairs_table(values: dict[str, Any]) -> Markup:
    rows = [
        table_row(key, tag("td", tag("code", str(value))))
        for key, value in values.items()
        if value is not None
    ]
    return html_table((), rows, look="pairs")


def render_reading_guide(run: RunData) -> Markup:
    """Explain what the numbers mean and what they do not show."""
    results = run.evaluation
    points: list[Content] = []
    if results:
        n, accuracy = results["images"], results["accuracy"]
        points.append(
            f"The interval covers chance in the choice of the {pluralise(n, 'image')}: with other "
            f"images from the same source, accuracies from {format_percent(accuracy['low'])} to "
            f"{format_percent(accuracy['high'])} would not be surprising. A model that is better by "
            "less than this width may not be better. Chance in training is not included: another "
            "seed gives another model."
        )
        small = [row["class"] for row in results["per_class"] if 0 < row["support"] < FEW_IMAGES]
        if small:
            least = min(row["support"] for row in results["per_class"] if row["support"])
            named = ", ".join(small[:8]) + (f" and {len(small) - 8} more" if len(small) > 8 else "")
            points.append(
                f"Classes with fewer than {FEW_IMAGES} images: {named}. In the smallest, one image "
                f"changes the recall by {format_percent(1 / least, 0)}."
            )
    points += [
        "The images come from the same source as the training images. Photos by other people, "
        "cameras or seasons, and objects of no class, are not in these numbers; the model always "
        "answers with one of its classes.",
        "Near-duplicates of training images among the held-out images make every number here too "
        "high; patchwords doctor finds them.",
        "If you try many settings and keep the best on these images, its number is too high: "
        "measure the chosen model on new images.",
        "A confident mistake is often a wrong label: look at the pictures first.",
    ]
    return section("reading", "How to read this", tag("ul", *(tag("li", p) for p in points)))
