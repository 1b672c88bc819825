import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from nodewise.base.errors import Refused, Unavailable
from nodewise.kube import reflector, struct_type_merge
from nodewise.kube.api_server_interface import NONE, Expired, Params
from nodewise.kube.reflector import ObjectDecoder, ReflectorTarget, WatchEvent
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.kube.struct_type_merge import ReadKeys, merge
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi


class ThingSpec(msgspec.Struct, frozen=True):
    size: int = 0


class Sized(msgspec.Struct, frozen=True):
    spec: ThingSpec = ThingSpec()


Thing = struct_type_merge.merge("Thing", Sized)


def raw(name: str, size: object) -> msgspec.Raw:
    item = {"metadata": {"name": name, "namespace": "n"}, "spec": {"size": size}}
    return msgspec.Raw(msgspec.json.encode(item))


@pytest.fixture
def metrics_registry() -> MetricsRegistry:
    return MetricsRegistry()


@pytest.fixture
def decoder(metrics_registry: MetricsRegistry) -> ObjectDecoder[Any]:
    return ObjectDecoder("Thing", Thing, metrics_registry)


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "nodewise.observe.logs.emit", lambda event, **fields: lines.append({"event": event} | fields)
    )
    return lines


def names(decoder: ObjectDecoder[Any]) -> list[str]:
    return [item.metadata.name for item in decoder.store.values()]


def test_one_object_that_cannot_be_read_does_not_stop_the_rest(
    decoder: ObjectDecoder[Any], metrics_registry: MetricsRegistry, log_lines: list[dict[str, Any]]
) -> None:
    for name, size in (("a", 1), ("bad", "large"), ("b", 2)):
        decoder.add(raw(name, size))
    decoder.finish()
    assert names(decoder) == ["a", "b"]
    assert b'kube_unreadable_total{kind="Thing"} 1.0' in metrics_registry.exposition()
    assert b'kube_objects{kind="Thing"} 2.0' in metrics_registry.exposition()
    (line,) = log_lines
    assert line["event"] == "object_unreadable"
    assert (line["namespace"], line["name"]) == ("n", "bad")
    assert line["error"] == "Expected `int`, got `str` - at `$.spec.size`"


def test_an_object_that_becomes_unreadable_goes_and_comes_back_when_mended(
    decoder: ObjectDecoder[Any],
) -> None:
    for size, wanted in ((1, ["a"]), ("large", []), (2, ["a"])):
        decoder.apply(WatchEvent("put", ("n", "a"), raw("a", size)))
        assert names(decoder) == wanted


def test_an_unreadable_object_can_be_deleted(decoder: ObjectDecoder[Any]) -> None:
    decoder.apply(WatchEvent("put", ("n", "a"), raw("a", 1)))
    decoder.apply(WatchEvent("gone", ("n", "a"), raw("a", "large")))
    assert names(decoder) == []


def test_a_bad_object_is_named_once_and_a_thousand_do_not_fill_the_log(
    decoder: ObjectDecoder[Any], log_lines: list[dict[str, Any]]
) -> None:
    for _ in range(3):
        decoder.add(raw("bad", "large"))
    assert len(log_lines) == 1
    for number in range(1000):
        decoder.add(raw(f"bad-{number}", "large"))
    assert len(log_lines) == 100


def test_object_without_a_name_is_left_out(decoder: ObjectDecoder[Any]) -> None:
    for item in (b"{}", b"null", b'{"metadata": 3}', b'{"metadata": {}}'):
        decoder.add(msgspec.Raw(item))
    decoder.finish()
    assert names(decoder) == []


def test_a_bookmark_changes_nothing(decoder: ObjectDecoder[Any]) -> None:
    decoder.apply(WatchEvent("bookmark", ("", ""), msgspec.Raw(b"{}")))
    assert len(decoder.store) == 0


def test_a_bookmark_says_how_far_the_watch_has_come(decoder: ObjectDecoder[Any]) -> None:
    decoder.finish("5")
    decoder.apply(WatchEvent("bookmark", ("", ""), msgspec.Raw(b"{}"), "9"))
    assert decoder.store.resource_version == "9"


def test_undeclared_fields_are_not_stored(metrics_registry: MetricsRegistry) -> None:
    def large(thing: Any) -> Any | None:
        return thing if thing.spec.size > 1 else None

    decoder: ObjectDecoder[Any] = ObjectDecoder("Thing", Thing, metrics_registry, keep=large)
    for name, size in (("a", 1), ("b", 2), ("c", 3)):
        decoder.add(raw(name, size))
    decoder.finish("5")
    assert names(decoder) == ["b", "c"]
    decoder.apply(WatchEvent("put", ("n", "b"), raw("b", 0), "6"))
    decoder.apply(WatchEvent("put", ("n", "d"), raw("d", 0), "7"))
    decoder.apply(WatchEvent("put", ("n", "a"), raw("a", 9), "8"))
    assert names(decoder) == ["c", "a"]
    assert decoder.store.resource_version == "8"


def test_an_answer_to_a_write_is_learnt_at_its_version(decoder: ObjectDecoder[Any]) -> None:
    def answer(version: str, size: object) -> bytes:
        metadata = {"name": "a", "namespace": "n", "resourceVersion": version}
        return msgspec.json.encode({"metadata": metadata, "spec": {"size": size}})

    decoder.finish("5")
    assert decoder.apply_response(answer("9", 3)) == decoder.store.get("n", "a")
    decoder.apply(WatchEvent("put", ("n", "a"), raw("a", 1), "8"))
    learnt = decoder.apply_response(answer("7", 2))
    assert learnt is not None
    assert learnt.spec.size == 3
    assert decoder.apply_response(b"no object") is None


def test_less_of_an_object_may_be_held(metrics_registry: MetricsRegistry) -> None:
    def smaller(thing: Any) -> Any:
        return msgspec.structs.replace(thing, spec=msgspec.structs.replace(thing.spec, size=0))

    decoder: ObjectDecoder[Any] = ObjectDecoder("Thing", Thing, metrics_registry, keep=smaller)
    decoder.add(raw("a", 7))
    decoder.finish("5")
    decoder.apply(WatchEvent("put", ("n", "b"), raw("b", 8), "6"))
    assert [thing.spec.size for thing in decoder.store.values()] == [0, 0]


class ReadMetadata(msgspec.Struct, frozen=True):
    labels: Annotated[dict[str, str] | None, ReadKeys(("app", "tier"))] = None
    annotations: Annotated[dict[str, str], ReadKeys(("note",), "annotation_bytes", ("of/",))] = {}
    annotation_bytes: int = 0


class ReadObject(msgspec.Struct, frozen=True):
    metadata: ReadMetadata = ReadMetadata()


@pytest.mark.parametrize(
    ("labels", "annotations", "kept_labels", "kept_annotations", "size"),
    [
        ({"app": "a", "more": "b"}, {"note": "c", "ü": "x" * 10}, {"app": "a"}, {"note": "c"}, 17),
        ({"app": "a", "tier": "b"}, {"note": "c"}, {"app": "a", "tier": "b"}, {"note": "c"}, 0),
        ({"more": "b"}, {"more": "b"}, {}, {}, 5),
        (None, {}, None, {}, 0),
        (None, {"of/a": "1", "of/b": "2", "off": "3"}, None, {"of/a": "1", "of/b": "2"}, 14),
    ],
)
def test_only_entries_that_are_read_are_stored(
    metrics_registry: MetricsRegistry,
    labels: Any,
    annotations: Any,
    kept_labels: Any,
    kept_annotations: Any,
    size: int,
) -> None:
    type_ = struct_type_merge.merge("Thing", ReadObject)
    decoder: ObjectDecoder[Any] = ObjectDecoder("Thing", type_, metrics_registry)
    metadata = {"name": "a", "labels": labels, "annotations": annotations}
    decoder.add(msgspec.Raw(msgspec.json.encode({"metadata": metadata})))
    decoder.finish()
    (stored,) = decoder.store.values()
    assert stored.metadata.labels == kept_labels
    assert stored.metadata.annotations == kept_annotations
    assert stored.metadata.annotation_bytes == size


def test_an_object_that_is_too_large_to_keep_is_logged_and_absent(
    metrics_registry: MetricsRegistry, log_lines: list[dict[str, Any]]
) -> None:
    def keep(item: Any) -> Any:
        if item.spec.size > 1:
            raise ValueError(f"found size {item.spec.size}, expected at most 1")
        return item

    decoder: ObjectDecoder[Any] = ObjectDecoder("Thing", Thing, metrics_registry, keep)
    decoder.add(raw("a", 1))
    decoder.add(raw("b", 2))
    decoder.finish()
    assert names(decoder) == ["a"]
    (line,) = log_lines
    assert (line["name"], line["error"]) == ("b", "found size 2, expected at most 1")


NODE: Any = merge("Node")
ALL = ReflectorTarget(NODES, NODE)


class SmallPagesApi(FakeApi):
    """An API server with pages of two objects, which calls a function of the test before each page."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self._before = before
        self.pages_read = 0

    async def get(self, path: str, params: Params = NONE, **more: Any) -> bytes:
        self.pages_read += 1
        self._before(self.pages_read)
        return await super().get(path, {**params, "limit": "2"} if "limit" in params else params, **more)


def fill(api: FakeApi, names: str = "a b c d e") -> FakeApi:
    for name in names.split():
        api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    return api


def read(api: FakeApi, target: ReflectorTarget[Any] = ALL) -> tuple[list[str], list[int]]:
    counts: list[int] = []
    store = asyncio.run(reflector.list_objects(api, target, MetricsRegistry(), counts.append))
    return [name for _, name in store.snapshot()], counts


def test_page_by_page() -> None:
    api = fill(SmallPagesApi())
    assert read(api) == (list("abcde"), [2, 4, 5])
    assert {verb for verb, _ in api.calls} == {"get"}


def test_nothing_there() -> None:
    assert read(SmallPagesApi()) == ([], [0])


def test_pages_that_went_stale_are_read_anew() -> None:
    def compact(pages: int) -> None:
        if pages == 2:
            api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "f"}})
            api.compact()

    api = SmallPagesApi(compact)
    fill(api)
    assert read(api) == (list("abcdef"), [2, 2, 4, 6])


def test_pages_that_go_stale_for_ever_are_an_error() -> None:
    def compact(pages: int) -> None:
        if pages % 2 == 0:
            api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{pages}"}})
            api.compact()

    api = SmallPagesApi(compact)
    fill(api)
    with pytest.raises(Expired):
        read(api)
    assert api.pages_read == 6


@pytest.mark.parametrize("error", [Refused("no right"), Unavailable("down")])
def test_errors_are_the_callers(error: Exception) -> None:
    api = fill(SmallPagesApi())
    api.fail(error)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        read(api)


class CountedSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class ThingFields(msgspec.Struct, frozen=True):
    spec: CountedSpec = CountedSpec()


def test_an_object_that_cannot_be_read_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(logs, "emit", lambda event, **_: events.append(event))
    api = fill(SmallPagesApi())
    odd = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}, "spec": {"unschedulable": "maybe"}}
    api.put(NODES, odd)
    assert read(api, ReflectorTarget(NODES, merge("Node", ThingFields)))[0] == list("abcde")
    assert events == ["object_unreadable"]


async def test_one_namespace() -> None:
    api = SmallPagesApi()
    for namespace in ("web", "db"):
        metadata = {"name": "p", "namespace": namespace}
        api.put(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    store = await reflector.list_objects(
        api, ReflectorTarget(PODS, NODE, "web"), MetricsRegistry(), lambda _: None
    )
    assert list(store.snapshot()) == [("web", "p")]


class RawSpec(msgspec.Struct, frozen=True):
    spec: msgspec.Raw = msgspec.Raw(b"null")


@pytest.mark.parametrize(("length", "is_shared"), [(10, True), (1000, False)])
def test_objects_share_equal_short_raw_fields(
    metrics_registry: MetricsRegistry, *, length: int, is_shared: bool
) -> None:
    decoder = ObjectDecoder("Thing", struct_type_merge.merge("Thing", RawSpec), metrics_registry)
    for name, size in (("a", "x"), ("b", "x"), ("c", "y")):
        decoder.add(raw(name, size * length))
    decoder.finish()
    first, second, third = (item.spec for item in decoder.store.values())
    assert (first is second) == is_shared
    assert msgspec.json.decode(second) == {"size": "x" * length}
    assert msgspec.json.decode(third) == {"size": "y" * length}
