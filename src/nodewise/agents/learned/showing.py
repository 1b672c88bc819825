"""What is known as `GET /state/learned` shows it: by pod type, of each node that was tried.

?type=NAMESPACE/TYPE   one type only
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Final

import msgspec

from nodewise.agents.learned import worth
from nodewise.agents.learned.memory import Known
from nodewise.agents.learned.rewards import Rule
from nodewise.agents.learned.state import Slot

_NODES: Final = 256
"""Between two pauses."""
_encode = msgspec.json.encode


def state(agent_state: Slot, rule: Rule, query: Mapping[str, str]) -> Generator[None, None, bytes]:
    """JSON, made in parts: `{"types": {type: {node: {"reward", "tried"}}}}`, types in the order of their names."""
    wanted = query.get("type")
    names: Iterable[str] = (
        sorted(agent_state.types) if wanted is None else {wanted} & agent_state.types.keys()
    )
    parts = []
    for name in names:
        nodes = yield from _nodes(agent_state, agent_state.types[name], rule)
        parts.append(_encode(name) + b": {" + nodes + b"}")
    return b'{"types": {' + b",\n".join(parts) + b"}}\n"


def _nodes(agent_state: Slot, known: Known, rule: Rule) -> Generator[None, None, bytes]:
    found = worth.weigh(known, agent_state.now, rule)
    names = agent_state.nodes.names[found.nodes].tolist()
    told: list[bytes] = []
    for start in range(0, len(names), _NODES):
        part = slice(start, start + _NODES)
        rows = zip(names[part], found.rewards[part].tolist(), found.tried[part].tolist(), strict=True)
        told += [_encode(name) + b": " + _encode({"reward": r, "tried": n}) for name, r, n in rows]
        yield
    return b", ".join(told)
