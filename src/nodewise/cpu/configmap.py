"""A node's state as the texts of a ConfigMap: CMK's YAML under `config`, and the rest in an annotation."""

import json
from typing import Final, NamedTuple

import yaml

from nodewise import yaml_loader
from nodewise.cpu import state
from nodewise.cpu.state import IDENTITIES, State
from nodewise.errors import BadInput, Problem, shown

KEY: Final = "config"
"""The ConfigMap's key."""


class Texts(NamedTuple):
    """What is stored: the value of `KEY`, and that of the annotation `IDENTITIES`."""

    config: str
    identities: str = "{}"


def parse(texts: Texts) -> State:
    """BadInput if it is no YAML or JSON, or not the state of a node."""
    try:
        config = yaml_loader.load(texts.config, KEY)
    except BadInput as error:
        raise BadInput("cannot read the state of the node's pools", _within(error)) from error
    try:
        identities = json.loads(texts.identities)
    except (RecursionError, ValueError) as error:
        problem = Problem(IDENTITIES, shown(texts.identities), "JSON")
        raise BadInput("cannot read the state of the node's pools", [problem]) from error
    return state.parse(config, identities)


def _within(error: BadInput) -> list[Problem]:
    return [problem._replace(field=f"{KEY}: {problem.field}") for problem in error.problems]


def format_texts(found: State) -> Texts:
    """Byte for byte the same for the same state."""
    config = yaml.safe_dump(state.as_config(found), default_flow_style=False, width=2**20)
    return Texts(config, json.dumps(state.as_identities(found), sort_keys=True, separators=(",", ":")))
