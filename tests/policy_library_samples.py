"""The samples of the presets of the library, as their exporters write them at a time."""

from typing import Any

from nodewise.policy_tools.policy_library import Preset, PresetRule


def sample_lines(preset: Preset, rejecting: PresetRule | None = None, elapsed_s: float = 0.0) -> list[str]:
    """The sample as the exporter writes it at a time: of a node that a rule rejects, or that none does."""
    values: dict[str, Any] = {**preset.rates, **(rejecting.rejects if rejecting else {})}
    lines = []
    for line in preset.sample.splitlines():
        series, _, value = line.rpartition(" ")
        text = values.pop(series, value)
        if text.endswith("/s"):
            text = f"{float(value) + float(text.removesuffix('/s')) * elapsed_s:g}"
        lines.append(line if line.startswith("#") else f"{series} {text}")
    assert not values, f"series that the sample does not have: {', '.join(values)}"
    return lines
