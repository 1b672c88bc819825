"""Resource profiles: the resource names of a GPU vendor, and how a node describes its GPUs.

`intel`    `gpu.intel.com/`: `xe` or `i915` is the number of distinct GPUs of a container, and every other resource with
           the prefix is an amount that is divided among them. Labels of the node name its GPUs, or count them.
`nvidia`   `nvidia.com/`: as `generic`, and the labels of NVIDIA's GPU feature discovery give the model of the GPUs and
           their `gpumem` in MiB.
`amd`      `amd.com/`: `gpu` is the number of GPUs; the labels of AMD's node labeller give the model of the GPUs and
           their `gpumem` in MiB.
`generic`  `nvidia.com/`: `gpu` is the number of GPUs; `gpu-milli`, `gpumem` and `gpucores` share them. Other resources
           with the prefix (MIG slices) are ignored.
FILE       YAML with the fields of `FIELDS`; resource names omit the prefix:

    prefix: example.com/
    counts: [gpu]               # number of distinct GPUs; the first one that a container requests counts
    shares: [gpu-memory]        # amounts of GPUs; without this field every resource with the prefix
    monitoring: [gpu-monitor]   # of a node rather than of its GPUs, so a pod may request it alone
    tiles: gpu-tile             # an amount whose units have names: gt0, gt1, …
    cards: count                # or `labels`: <prefix>gpu-numbers, as Intel's node labels
    count_label: example.com/gpu.count

Where GPUs are counted and not named, a node has as many as its label `count_label` (without the field:
`<prefix><first of counts>.count`, as NVIDIA's GPU Feature Discovery writes it), and without that label as many as its
allocatable counting resources. They are called card0, card1, …. A device plugin that offers each GPU several times
needs the label, or a description that `gpu_node_labels.py` reads. The node annotation `nodewise.io/gpu-cards` overrides
both, for every profile.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, BadSettings, Problem, shown


class ResourceProfile(msgspec.Struct, frozen=True):
    """Resources by their full names, prefix included."""

    prefix: str
    """The prefix with its slash: `gpu.intel.com/`."""
    counts: tuple[str, ...]
    """Resources that count distinct GPUs; of several, the first one that a container requests applies."""
    shares: frozenset[str] | None = None
    """Resources that are amounts of GPUs; None: all with the prefix that do not count GPUs."""
    monitoring: frozenset[str] = frozenset()
    """Resources of a node, not of one of its GPUs."""
    subdevices: str = ""
    """The resource whose units have names; empty: none."""
    labelled: bool = False
    """Whether the node's labels name its GPUs; otherwise they are counted."""
    count_label: str = ""
    """The node label with the number of GPUs, if they are counted; empty: none."""
    labeller: Literal["", "intel", "nvidia", "amd"] = ""
    """The vendor's labeller, whose labels describe models and memory; empty: none."""
    memory: str = ""
    """The amount of memory of a GPU in MiB, if it comes from a label."""

    @property
    def name_labels(self) -> tuple[str, ...]:
        """The node labels with names of GPUs, the preferred one first."""
        return (f"{self.prefix}gpu-numbers", f"{self.prefix}cards") if self.labelled else ()

    @property
    def gpu_labels(self) -> tuple[str, ...]:
        """The node labels that name or count GPUs, without the older one."""
        return (*self.name_labels[:1], *filter(None, [self.count_label]))

    def has(self, resource: str) -> bool:
        """Whether a resource belongs to the GPUs of this profile."""
        if not resource.startswith(self.prefix):
            return False
        if self.shares is None or resource in self.shares or resource in self.counts:
            return True
        return resource == self.subdevices or resource in self.monitoring

    def short(self, resource: str) -> str:
        """The name of a resource without the prefix."""
        return resource.removeprefix(self.prefix)


INTEL: Final = ResourceProfile(
    prefix="gpu.intel.com/",
    counts=("gpu.intel.com/xe", "gpu.intel.com/i915"),
    monitoring=frozenset(("gpu.intel.com/xe_monitoring", "gpu.intel.com/i915_monitoring")),
    subdevices="gpu.intel.com/tiles",
    labelled=True,
    count_label="gpu.intel.com/device.count",
    labeller="intel",
)
NVIDIA: Final = ResourceProfile(
    prefix="nvidia.com/",
    counts=("nvidia.com/gpu",),
    shares=frozenset(("nvidia.com/gpu-milli", "nvidia.com/gpumem", "nvidia.com/gpucores")),
    count_label="nvidia.com/gpu.count",
    labeller="nvidia",
    memory="nvidia.com/gpumem",
)
AMD: Final = ResourceProfile(
    prefix="amd.com/",
    counts=("amd.com/gpu",),
    shares=frozenset(("amd.com/gpumem",)),
    labeller="amd",
    memory="amd.com/gpumem",
)
GENERIC: Final = msgspec.structs.replace(NVIDIA, labeller="", memory="")
PROFILES: Final = {"intel": INTEL, "nvidia": NVIDIA, "amd": AMD, "generic": GENERIC}

_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/")
_RESOURCE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL: Final = re.compile(rf"({_PREFIX.pattern})?{_RESOURCE.pattern}")
_MOST_NAMES: Final = 64
_NATIVE: Final = "kubernetes.io/"


def _is_resource_prefix(value: Any) -> bool:
    """Kubernetes' own resources belong to no device plugin, and pods with no others are not kept (`state`)."""
    return isinstance(value, str) and _PREFIX.fullmatch(value) is not None and not value.endswith(_NATIVE)


def _is_resource_name(value: Any) -> bool:
    return isinstance(value, str) and _RESOURCE.fullmatch(value) is not None


def _are_resource_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_NAMES and all(map(_is_resource_name, value))


class ProfileField(NamedTuple):
    """One field of a profile's file."""

    is_valid: Callable[[Any], bool]
    expected: str
    is_required: bool = False


FIELDS: Final[Mapping[str, ProfileField]] = {
    "prefix": ProfileField(
        _is_resource_prefix,
        "a domain and a slash, such as example.com/, not of kubernetes.io",
        is_required=True,
    ),
    "counts": ProfileField(
        lambda value: _are_resource_names(value) and bool(value),
        "a list of resource names without the prefix, one at least",
        is_required=True,
    ),
    "shares": ProfileField(_are_resource_names, "a list of resource names without the prefix"),
    "monitoring": ProfileField(_are_resource_names, "a list of resource names without the prefix"),
    "tiles": ProfileField(_is_resource_name, "a resource name without the prefix"),
    "cards": ProfileField(lambda value: value in ("labels", "count"), "labels or count"),
    "count_label": ProfileField(
        lambda value: isinstance(value, str) and _LABEL.fullmatch(value) is not None,
        "the key of a node label",
    ),
}


def load_profile(name: str) -> ResourceProfile:
    """Load a profile by its name, or that of a file. `BadSettings` names all its problems."""
    if name in PROFILES:
        return PROFILES[name]
    try:
        document = safe_yaml_loader.load(Path(name).read_bytes(), name)
    except (OSError, BadInput) as error:
        actual = f"{name}: {error}" if isinstance(error, OSError) else str(error)
        problem = Problem("--gpu-profile", actual, f"{', '.join(PROFILES)} or a readable YAML file")
        raise _invalid_profile_error(problem) from error
    return parse_profile(document, name)


def parse_profile(  # complexity: one expression for each field
    document: Any, path: str
) -> ResourceProfile:
    """Parse the document of a profile; `path` appears in errors."""
    if not isinstance(document, dict):
        raise _invalid_profile_error(Problem(path, shown(document), f"a mapping of {', '.join(FIELDS)}"))
    unknown = [
        Problem(f"{path}: {key}", "an unknown field", f"one of {', '.join(FIELDS)}")
        for key in document
        if key not in FIELDS
    ]
    wrong = [
        Problem(f"{path}: {key}", shown(document[key]) if key in document else "nothing", field.expected)
        for key, field in FIELDS.items()
        if (not field.is_valid(document[key]) if key in document else field.is_required)
    ]
    if unknown or wrong:
        raise _invalid_profile_error(*unknown, *wrong)
    prefix: str = document["prefix"]
    counts = tuple(prefix + name for name in dict.fromkeys(document["counts"]))
    shares = document.get("shares")
    return ResourceProfile(
        prefix=prefix,
        counts=counts,
        shares=None if shares is None else frozenset(prefix + name for name in shares),
        monitoring=frozenset(prefix + name for name in document.get("monitoring", ())),
        subdevices=prefix + document["tiles"] if "tiles" in document else "",
        labelled=document.get("cards") == "labels",
        count_label=document.get("count_label", f"{counts[0]}.count"),
    )


def _invalid_profile_error(*problems: Problem) -> BadSettings:
    return BadSettings("GPU profile", problems)
