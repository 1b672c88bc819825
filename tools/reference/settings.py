"""The page of settings."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from nodewise import agents
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.older_program_flags import GAS, SAFE, TAS, FlagTranslation
from nodewise.cli.setting_declarations import Setting, list_settings
from tools.reference.markdown_formatting import MADE, code, entry, table

_KINDS: Final = {int: "INTEGER", float: "FLOAT"}


def settings_page() -> str:
    """Every setting of `nodewise extender`."""
    kinds = agents.built_in_agent_kinds()
    groups = [*setting_groups(), *(kind.options for kind in kinds)]
    parts = [
        MADE,
        "# Settings of `nodewise extender`\n\n",
        "The order of precedence is: flag, environment variable, file of `--config`, default. In the file,\n",
        "the key of a setting is its flag without the leading dashes and with `_` instead of `-`; the variable\n",
        "is `NODEWISE_` and this key in capitals, such as `NODEWISE_SYNC_PERIOD` for `--sync-period`. Examples\n",
        "of durations are `500ms`, `5s` and `1m30s`; an example of a size is `64Mi`. Settings below the\n",
        "name of an agent, such as `telemetry: {max_age: 2m}`, apply to that agent only and override the\n",
        "rest of the file. If an agent of another package cannot be used, its settings in the file\n",
        "are ignored with a warning.\n",
        "\n```yaml\nagents: telemetry,safe\nsync_period: 2s\nclient_name: [nodewise-scheduler-client]\n",
        "telemetry:\n  max_age: 2m\nsafe:\n  safe_percentile: 20\n```\n",
        *_groups(_with_bases(groups)),
        "\n## Flags of Telemetry Aware Scheduling\n\n",
        _old_flags(TAS),
        "\n## Further flags of GPU Aware Scheduling\n\n",
        _old_flags(GAS),
        "\n## Environment variables of kube-safe-scheduler\n\n",
        "nodewise uses these variables if neither the flag nor the `NODEWISE_` variable is set. If a value\n",
        "is invalid, nodewise logs `variable_ignored` and uses the default.\n\n",
        table(
            ("old variable", "flag", "values"),
            (
                (f"`{variable.name}`", f"`--{field.replace('_', '-')}`", variable.expected)
                for field, variable in SAFE.items()
            ),
        ),
    ]
    return "".join(parts)


def _old_flags(flags: Mapping[str, FlagTranslation]) -> str:
    old_by_new: dict[str, list[str]] = {}
    for old, flag in flags.items():
        old_by_new.setdefault(code(flag.name) or "accepted, no effect", []).append(code(f"-{old}"))
    return table(("old flag", "becomes"), ((", ".join(old), new) for new, old in old_by_new.items()))


def _with_bases(groups: Iterable[type[msgspec.Struct]]) -> list[type[msgspec.Struct]]:
    """The groups, each after its base classes, without duplicates."""
    every = (base for group in groups for base in (*group.__mro__[1:], group))
    return list(
        dict.fromkeys(
            struct for struct in every if issubclass(struct, msgspec.Struct) and struct is not msgspec.Struct
        )
    )


def _groups(groups: Iterable[type[msgspec.Struct]]) -> Iterator[str]:
    """The sections of the groups. An entry that a former group has in the same words is only named."""
    seen: set[str] = set()
    for group in groups:
        own = [s for s in list_settings(group) if s.field in inspect.get_annotations(group)]
        entries = {s.flag_with_opposite: _entry(s) for s in own}
        new = [text for text in entries.values() if text not in seen]
        if repeated := [code(flag) for flag, text in entries.items() if text in seen]:
            new.append(f"Also, as above: {', '.join(repeated)}.\n")
        seen.update(entries.values())
        summary = (group.__doc__ or "").strip().splitlines()[0].rstrip(".")
        yield f"\n## {summary}\n\n" + "\n".join(new)


def _entry(setting: Setting) -> str:
    default = setting.default_as_text()
    form = setting.option.metavar or "|".join(setting.words) or _KINDS.get(setting.inner, "")
    if setting.field.endswith(("_s", "_bytes")):
        form = "DURATION" if setting.field.endswith("_s") else "SIZE"
    typed = [f"{flag} {form}".rstrip() for flag in setting.flag_with_opposite.split("/")]
    return entry(typed, default and f"default `{default}`", "", setting.help)
