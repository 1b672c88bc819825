"""Settings and texts for nodes without statistics."""

import msgspec
import pytest

from nodewise_scorers.scoring_agent import MissingOptions, NoStatistics, StatisticStatus


def test_the_older_systems_way_is_the_default():
    options = MissingOptions()
    assert not options.rejects_missing
    assert (options.score_without_statistics(0), options.score_without_statistics(10)) == (0, 10)


def test_one_score_for_all_agents_and_0_is_one():
    assert MissingOptions(score_missing=0).score_without_statistics(10) == 0
    assert MissingOptions(score_missing=7).score_without_statistics(0) == 7


@pytest.mark.parametrize(("word", "rejects"), [("accept", False), ("pass", False), ("reject", True)])
def test_words(word, rejects):
    assert msgspec.convert({"when_missing": word}, MissingOptions).rejects_missing is rejects


@pytest.mark.parametrize(
    "settings", [{"score_missing": 11}, {"score_missing": -1}, {"when_missing": "ignore"}]
)
def test_settings_out_of_bounds_are_refused(settings):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, MissingOptions)


def test_every_state_has_words_but_the_one_where_nothing_is_missing():
    assert not StatisticStatus.PRESENT.words
    assert len({reason.words for reason in StatisticStatus}) == len(StatisticStatus)


def test_the_reason_names_the_agent_and_the_remedy():
    reason = NoStatistics("safe")
    assert reason.text() == "safe: no fresh statistics"
    assert "--when-missing accept" in reason.remedy()
    assert not reason.is_failure
