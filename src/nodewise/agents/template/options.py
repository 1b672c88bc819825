"""Settings. Each field is a flag, a variable NODEWISE_..., a key of the file of `--config` and a line of `--help`."""

import msgspec


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the agent."""

    template_label: str = "template/limit"
    """Pod label with the pod's limit, a number."""
