"""An agent that reads one annotation of nodes and one label of pods.

| file | what lives there |
|---|---|
| `options.py` | settings |
| `state.py` | the nodes read into one array, whenever they change |
| `agent.py` | answers a request from that array: put your own arithmetic there |
"""

from typing import Final

from nodewise.agent import AgentKind
from nodewise.agents.template.agent import PodFields, TemplateAgent
from nodewise.agents.template.options import TemplateOptions
from nodewise.agents.template.state import NodeFields, TemplateStateBuilder


class TemplateKind(AgentKind):
    """What nodewise sees of this package: its entry point in pyproject.toml names the `KIND` below."""

    name = "template"
    summary = "one line for `nodewise agents list`"
    options = TemplateOptions
    pod_fields = PodFields
    node_fields = NodeFields

    def state(self, options: TemplateOptions, sync_period_s: float) -> TemplateStateBuilder:
        return TemplateStateBuilder()

    def agent(self, options: TemplateOptions) -> TemplateAgent:
        return TemplateAgent(options)


KIND: Final = TemplateKind()
