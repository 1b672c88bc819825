"""Lists all objects of a kind once, for commands that do not watch. Requires only the permission to list."""

from collections.abc import Callable
from typing import TypeVar

from nodewise.base import cooperative_scheduling
from nodewise.kube import list_watch
from nodewise.kube.api_server_interface import Api, Expired
from nodewise.kube.list_watch import ListState, ListWatchState
from nodewise.kube.object_decoder import ObjectDecoder
from nodewise.kube.reflector import PAGE_S, ReflectorTarget
from nodewise.kube.store import KubernetesObject, Store
from nodewise.observe.metrics_registry import MetricsRegistry

T = TypeVar("T", bound=KubernetesObject)

_MAX_ATTEMPTS = 3
"""Number of attempts for a list whose pages expire."""


async def list_objects(
    api: Api,
    target: ReflectorTarget[T],
    metrics_registry: MetricsRegistry,
    report_count: Callable[[int], None],
) -> Store[T]:
    """The objects in a store, as a reflector would store them: an object that cannot be decoded counts as absent, and
    is logged.

    `report_count` is called after each page with the number of objects so far. Errors are those of `Api.get`.
    """
    decoder = ObjectDecoder(target.resource.kind, target.type, metrics_registry, target.keep)
    path = target.resource.path(target.namespace)
    state: ListWatchState = ListState()
    limit, count, expired = list_watch.FIRST_LIMIT, 0, 0
    while isinstance(state, ListState):
        params = {**target.selectors, **list_watch.list_or_watch_parameters(state, limit, float)}
        try:
            body = await api.get(path, params, timeout_s=PAGE_S)
        except Expired as error:
            expired += 1
            if expired == _MAX_ATTEMPTS:
                raise
            state = list_watch.state_after_error(state, error)
            continue
        state, page = list_watch.parse_page(state, body)
        limit = list_watch.next_limit(limit, len(page.items), len(body))
        if page.is_first:
            decoder.restart()
            count = 0
        async for item in cooperative_scheduling.iterate_with_pauses(page.items):
            decoder.add(item)
        count += len(page.items)
        report_count(count)
    decoder.finish(state.version)
    return decoder.store
