"""The annotator as a task of the extender's leader."""

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from nodewise.agent import Watched
from nodewise.agent.controller_interface import Controller, Handle, LeaderTask
from nodewise.base.option import SettingsByGroup
from nodewise.kube.http_client import HttpApi
from nodewise.metrics.metrics_source import MetricsSource
from nodewise_scorers.annotator.options import AnnotatorOptions
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions


class AnnotatorTask(LeaderTask):
    """Writes statistics of nodes as annotations if `--annotate` says which."""

    flag = "--annotate"
    options = (AnnotatorOptions, WindowOptions)

    def is_enabled(self, settings: SettingsByGroup) -> bool:
        return settings[AnnotatorOptions].annotate != "off"

    def node_fields(self) -> type[msgspec.Struct]:
        from nodewise_scorers.annotator import controller

        return controller.NODE_FIELDS

    def watched(self, settings: SettingsByGroup) -> Sequence[Watched]:
        from nodewise_scorers.annotator import controller

        return controller.watched(settings[AnnotatorOptions])

    def controller(
        self, settings: SettingsByGroup, sources: Sequence[MetricsSource], handle: Handle
    ) -> Controller:
        """A separate rate limit keeps its patches from delaying labels."""
        from nodewise_scorers.annotator import controller, patch_writer

        api = cast("HttpApi", handle.api).with_rate_limit(patch_writer.QPS, patch_writer.BURST)
        window = settings[WindowOptions]
        return controller.AnnotatorController(
            settings[AnnotatorOptions], window, sources, handle._replace(api=api)
        )


TASK: Final = AnnotatorTask()
