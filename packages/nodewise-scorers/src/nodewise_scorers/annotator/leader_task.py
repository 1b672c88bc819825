"""The annotator as a task of the extender's leader."""

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from nodewise.agent import Watched
from nodewise.agent.controller_interface import Controller, Handle, LeaderTask
from nodewise.base.option import SettingsByGroup
from nodewise.kube.http_client import HttpApi
from nodewise.metrics.metrics_source import MetricsSource
from nodewise_scorers.annotator import AnnotatorOptions
from nodewise_scorers.statistics.node_usage_reader import WindowOptions


class AnnotatorTask(LeaderTask):
    """Writes statistics of nodes as annotations if `--annotate` says which."""

    flag = "--annotate"
    options = (AnnotatorOptions, WindowOptions)

    def is_enabled(self, settings: SettingsByGroup) -> bool:
        return settings[AnnotatorOptions].annotate != "off"

    def node_fields(self) -> type[msgspec.Struct]:
        from nodewise_scorers.annotator import annotator

        return annotator.NODE_FIELDS

    def watched(self, settings: SettingsByGroup) -> Sequence[Watched]:
        from nodewise_scorers.annotator import annotator

        return annotator.watched(settings[AnnotatorOptions])

    def controller(
        self, settings: SettingsByGroup, sources: Sequence[MetricsSource], handle: Handle
    ) -> Controller:
        """A separate rate limit keeps its patches from delaying labels."""
        from nodewise_scorers.annotator import annotator, node_patches

        api = cast("HttpApi", handle.api).with_rate_limit(node_patches.QPS, node_patches.BURST)
        window = settings[WindowOptions]
        return annotator.AnnotatorController(
            settings[AnnotatorOptions], window, sources, handle._replace(api=api)
        )


TASK: Final = AnnotatorTask()
