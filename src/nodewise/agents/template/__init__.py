"""An agent that reads one annotation of nodes and one label of pods.

| module | content |
|---|---|
| `options.py` | settings |
| `state.py` | reads the nodes into one array when they change |
| `agent.py` | answers requests from that array; add your own calculation here |
"""

from typing import Final

from nodewise.agent import AgentKind
from nodewise.agents.template.agent import PodFields, TemplateAgent
from nodewise.agents.template.options import TemplateOptions
from nodewise.agents.template.state import NodeFields, TemplateStateBuilder


class TemplateKind(AgentKind):
    """The agent as nodewise sees it: the entry point in pyproject.toml names the `KIND` below."""

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
