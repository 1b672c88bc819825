import msgspec
import pytest

from nodewise_scorers.congestion import CongestionOptions


@pytest.mark.parametrize("most", [0, -1, 2**63, 12.5, "many"])
def test_a_maximum_is_a_whole_number_above_0(most: object) -> None:
    with pytest.raises(msgspec.ValidationError, match="congestion_factor_max"):
        msgspec.convert({"congestion_factor_max": most}, CongestionOptions)


def test_any_other_is_taken() -> None:
    settings = {"congestion_factor_max": "7", "score_missing": "3"}
    options = msgspec.convert(settings, CongestionOptions, strict=False)
    assert (options.congestion_factor_max, options.score_without_statistics(10)) == (7, 3)
