"""Coordination of servers through PostgreSQL: the tests of the reception that depend on the docket."""

import pytest

from retrieval.library.postgres.address import Address
from tests.unit.test_reception import (  # noqa: F401 - collected here too, with the fixture below
    a_town,
    test_a_meme_whose_trial_came_to_nothing_gets_one_more_at_whichever_server_and_no_others,
    test_a_request_that_runs_at_another_server_is_waited_for,
    test_a_server_takes_up_what_dead_ones_left_without_being_asked,
    test_a_server_that_goes_leaves_no_count_behind_and_need_not_be_waited_for,
    test_a_server_that_stops_writes_down_its_trials_and_tells_who_waits_and_another_takes_them_up,
    test_a_trial_that_can_not_be_taken_up_ends_in_its_record_and_the_request_gets_another,
    test_a_trial_that_failed_for_a_passing_reason_is_taken_up_when_it_is_asked_again,
    test_a_trial_that_nobody_was_left_to_begin_holds_up_no_other_server,
    test_a_trial_whose_end_could_not_be_kept_ends_in_its_record_once_the_docket_is_back,
    test_a_verdict_that_another_server_s_reviewer_overruled_is_given_again_for_no_longer_than_was_said,
    test_an_unknown_meme_asked_for_at_several_servers_at_once_under_many_ids_is_one_trial_time_and_again,
    test_an_unknown_meme_that_is_on_trial_at_another_server_is_waited_for,
    test_an_unknown_meme_whose_server_died_is_tried_once_by_the_others_whatever_its_requests_are_called,
    test_of_two_requests_under_one_id_at_once_one_is_refused_and_nothing_is_tried_for_it,
    test_the_count_of_a_dead_server_is_removed_some_time_later_and_that_of_a_living_one_is_not,
    test_the_same_request_gets_the_same_verdict_also_after_a_restart,
    test_two_servers_that_both_hold_a_trial_come_to_one_record,
    test_what_a_dead_server_left_is_taken_over_once_by_one_of_two_others,
    test_what_a_server_that_stops_had_not_begun_is_begun_by_another_at_once,
    test_what_another_server_has_taken_over_is_not_ended_by_who_could_not_end_it,
)


@pytest.fixture
def town(docket_database, tmp_path, monkeypatch):
    return a_town((Address(docket_database), tmp_path), monkeypatch)
