"""Coordination of servers through PostgreSQL: the tests of the reception that depend on the docket."""

import pytest

from retrieval.library.postgres.address import Address
from tests.support.reception import a_town
from tests.unit.serving.judging.test_reception import (  # noqa: F401 - collected here too, with the fixture below
    test_concurrent_requests_for_a_new_meme_at_several_servers_share_one_trial,
    test_conflicting_concurrent_requests_under_one_id_open_only_one_trial,
    test_failed_trial_is_followed_by_one_new_trial_and_an_overruled_one_by_its_finding_across_servers,
    test_finding_of_another_server_is_followed_within_two_seconds,
    test_heartbeats_of_dead_servers_are_removed_later_but_not_those_of_live_ones,
    test_meme_on_trial_at_another_server_is_awaited,
    test_new_meme_of_a_dead_server_is_tried_once_by_the_other_servers,
    test_overruled_content_is_answered_by_the_finding_without_another_trial,
    test_repeated_request_gets_the_same_verdict_even_after_a_restart,
    test_servers_resume_trials_of_dead_servers_on_their_own,
    test_stopping_server_records_its_trials_for_another_to_resume,
    test_stopping_server_removes_its_heartbeat_and_counts_as_dead_at_once,
    test_trial_abandoned_before_it_began_blocks_no_other_server,
    test_trial_of_a_dead_server_is_taken_over_exactly_once,
    test_trial_taken_over_by_another_server_is_not_ended_by_its_former_one,
    test_trial_that_cannot_be_resumed_fails_and_its_request_gets_another,
    test_trial_with_a_transient_failure_is_resumed_by_the_next_request,
    test_two_servers_running_the_same_trial_produce_one_record,
    test_unrecorded_end_of_a_trial_is_recorded_once_the_docket_is_back,
    test_unstarted_trial_of_a_stopping_server_is_started_by_another_at_once,
)


@pytest.fixture
def town(docket_database, tmp_path, monkeypatch):
    return a_town((Address(docket_database), tmp_path), monkeypatch)
