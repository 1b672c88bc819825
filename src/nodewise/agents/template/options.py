"""Settings. Each field is a flag, a variable NODEWISE_..., a key of the file of `--config` and a line of `--help`."""

import msgspec


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agent finds what it judges by."""

    template_annotation: str = "template/value"
    """The node annotation that holds a number."""

    template_label: str = "template/limit"
    """The pod label that holds a number."""
