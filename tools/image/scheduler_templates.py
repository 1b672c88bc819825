"""Templates of kube-scheduler's configuration, at the paths of the older configurator's image."""

from pathlib import Path
from typing import Final

from nodewise.cli import agent_selection
from nodewise.cli.agent_selection import agent_role_in_extender_entry
from nodewise.install import scheduler_configuration, scheduler_static_pod
from nodewise.install.scheduler_configuration import EntryFiles, SchedulerOptions
from nodewise.kube import yaml_writer
from tools.image import image_constants

_URL: Final = "https://nodewise.nodewise.svc:9001"
_GPU_WEIGHT: Final = 20
_API: Final = "kubescheduler.config.k8s.io/XVERSIONX"
"""`nodewise configure` inserts the version that kube-scheduler supports."""


def template(agents: str) -> str:
    """The output of `nodewise configure --agents` with a placeholder for the version, and without a CA of the host."""
    names = agents.split(",")
    roles = [
        agent_role_in_extender_entry(kind, kind.options())
        for kind in agent_selection.load_agents_by_name(names)
    ]
    several = len(names) > 1
    configuration = scheduler_configuration.build_scheduler_configuration(
        roles,
        SchedulerOptions(
            _URL,
            EntryFiles(
                "none",
                f"{scheduler_static_pod.CERTS_MOUNT}/client.crt",
                f"{scheduler_static_pod.CERTS_MOUNT}/client.key",
            ),
            one_entry_per_agent=several,
            weights={"gpu": _GPU_WEIGHT} if several else {},
            kubeconfig="/etc/kubernetes/scheduler.conf",
        ),
    )
    for entry in configuration["extenders"]:
        del entry["tlsConfig"]["caFile"]
    return yaml_writer.dump({**configuration, "apiVersion": _API})


def write(root: Path) -> None:
    """Write all templates."""
    for path, agents in image_constants.TEMPLATES.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(template(agents))
