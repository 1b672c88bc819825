"""Combinations of settings."""

import pytest

from nodewise.agents.gpu.options import PLACEMENTS, GpuOptions, Placement
from nodewise.agents.gpu.vendor_resource_names import GENERIC, INTEL
from nodewise.base.errors import BadSettings
from nodewise.cli import options_from_settings as command_options
from nodewise.cli import setting_declarations


def test_first_fit_is_the_default_and_pods_lists_are_off() -> None:
    options = GpuOptions()
    expected = ("first-fit", False, False)
    assert (options.placement, options.enable_allowlist, options.enable_denylist) == expected


@pytest.mark.parametrize("placement", ["first-fit", "balanced"])
def test_a_balanced_resource_means_balanced(placement: Placement) -> None:
    options = GpuOptions(gpu_placement=placement, balanced_resource="tiles")
    assert options.placement == "balanced"
    assert options.balanced_by(INTEL) == ("gpu.intel.com/tiles",)


def test_balanced_without_a_resource_uses_counting_resources() -> None:
    assert GpuOptions(gpu_placement="balanced").balanced_by(GENERIC) == ("nvidia.com/gpu",)


@pytest.mark.parametrize("placement", ["pack", "spread", "fragmentation"])
def test_a_balanced_resource_and_another_placement_exclude_each_other(placement: Placement) -> None:
    with pytest.raises(BadSettings, match=f"--balanced-resource: 'tiles' beside --gpu-placement {placement}"):
        GpuOptions(gpu_placement=placement, balanced_resource="tiles")


def test_the_command_line_says_so_too() -> None:
    defaults = {setting.field: setting.default for setting in setting_declarations.list_settings(GpuOptions)}
    assert command_options.build_group(GpuOptions, defaults) == GpuOptions()
    with pytest.raises(BadSettings, match="--balanced-resource"):
        command_options.build_group(
            GpuOptions, defaults | {"gpu_placement": "pack", "balanced_resource": "tiles"}
        )


def test_every_setting_is_explained() -> None:
    help_by_flag = {setting.flag: setting.help for setting in setting_declarations.list_settings(GpuOptions)}
    assert all(len(text) > 40 for text in help_by_flag.values())
    assert set(PLACEMENTS) <= set(help_by_flag["--gpu-placement"].replace("`", " ").split())
