"""Settings. Each field is a flag, a variable NODEWISE_..., a key of the file of `--config` and a line of `--help`."""

import msgspec


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agent finds what a pod wants."""

    template_label: str = "template/limit"
    """The pod label that holds a number."""
