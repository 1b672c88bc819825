"""Writes YAML that kubectl, PyYAML and parsers of YAML 1.2 read as the same values."""

import math
from collections.abc import Iterable
from typing import Any

import yaml

from nodewise.kube.object_files import KubernetesLoader


class _Dumper(yaml.SafeDumper):
    """Writes a text of several printable lines as a block, no anchors, and in quotes what PyYAML or Kubernetes reads as
    another type, such as the name `y`. Escapes characters that are not printable, such as changes of the writing
    direction.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's way
        start: [
            *yaml.SafeDumper.yaml_implicit_resolvers.get(start, []),
            *KubernetesLoader.yaml_implicit_resolvers.get(start, []),
        ]
        for start in yaml.SafeDumper.yaml_implicit_resolvers.keys()
        | KubernetesLoader.yaml_implicit_resolvers.keys()
    }

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's own
        return True

    def represent_text(self, text: str) -> yaml.Node:
        is_printable = text.replace("\n", "").isprintable()
        style = '"' if not is_printable else "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        self.allow_unicode = text.isprintable()
        super().write_double_quoted(text, split)
        self.allow_unicode = True


_Dumper.add_representer(str, _Dumper.represent_text)


def dump(value: Any) -> str:
    """One YAML document, without `---`."""
    return dump_all([value])


def dump_all(values: Iterable[Any]) -> str:
    """YAML documents, with `---` between them."""
    return yaml.dump_all(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


def scalar(text: str) -> str:
    """A text in one line, in quotes where it would be read as another value, also within braces."""
    in_brackets = yaml.dump(
        [text], Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=math.inf
    )
    return in_brackets.removeprefix("[").removesuffix("]\n")
