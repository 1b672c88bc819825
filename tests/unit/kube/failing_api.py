"""An API server in memory that fails some calls."""

from nodewise.base.errors import NodewiseError
from nodewise.kube.resource_kinds import Resource
from nodewise.scheduling_model.in_memory_api import FakeApi


class FailingApi(FakeApi):
    """Fails each call of a verb whose path has an ending in `errors`."""

    def __init__(self, *resources: Resource) -> None:
        super().__init__(*resources)
        self.errors: dict[tuple[str, str], NodewiseError] = {}

    async def _record_call(self, verb: str, path: str) -> None:
        await super()._record_call(verb, path)
        for (failing_verb, end), error in self.errors.items():
            if verb == failing_verb and path.endswith(end):
                raise error
