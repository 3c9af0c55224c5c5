"""OPS-1: what is counted is exposed, over all workers, in Prometheus' format and with few labels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry import catalogue
from gateway.telemetry.aggregation import Totals, merge
from gateway.telemetry.exposition import CONTENT_TYPE, render
from gateway.telemetry.instruments import CHILDREN_MAX, Counter, Family, Histogram
from gateway.telemetry.metrics import Metrics, Snapshot

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series_of(snapshot: Snapshot) -> Series:
    """Parsed back from the text, as Prometheus would."""
    families = text_string_to_metric_families(render(snapshot).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def over_the_wire(snapshot: Snapshot) -> Snapshot:
    """Workers send their snapshots as JSON."""
    decoded: Snapshot = orjson.loads(orjson.dumps(snapshot))
    return decoded


def test_every_metric_is_exposed_under_its_name_and_type() -> None:
    metrics = Metrics("1.2.3")
    metrics.meter("confirm").done(200, 0.1)
    families = {
        family.name: family.type for family in text_string_to_metric_families(render(metrics.snapshot()).decode())
    }
    assert families == {spec.name: spec.kind for spec in catalogue.ALL}
    assert CONTENT_TYPE.startswith("text/plain")


def test_the_build_is_told() -> None:
    python = ".".join(map(str, sys.version_info[:3]))
    assert series_of(Metrics("1.2.3").snapshot())[key("twophp_build_info", version="1.2.3", python=python)] == 1


def test_requests_are_counted_by_mode_and_status_class() -> None:
    metrics = Metrics("1")
    confirm, register = metrics.meter("confirm"), metrics.meter("register")
    for status in (200, 201, 204, 409, 503, 0):
        confirm.done(status, 0.003)
    register.done(200, 0.003)
    series = series_of(metrics.snapshot())

    def requests(mode: str, status_class: str) -> float:
        return series[key("twophp_requests_total", mode=mode, status_class=status_class)]

    assert [requests("confirm", name) for name in ("none", "1xx", "2xx", "3xx", "4xx", "5xx")] == [1, 0, 3, 0, 1, 1]
    assert requests("register", "2xx") == 1
    assert series[key("twophp_request_seconds_count", mode="confirm")] == 6


@pytest.mark.parametrize("status", [-1, 600, 99999])
def test_a_nonsense_status_is_counted_and_breaks_nothing(status: int) -> None:
    metrics = Metrics("1")
    metrics.meter("poll").done(status, 0.0)
    assert series_of(metrics.snapshot())[key("twophp_requests_total", mode="poll", status_class="none")] == 1


def test_a_histogram_counts_a_value_on_a_bound_as_within_it() -> None:
    metrics = Metrics("1")
    for rows in (1, 2, 3, 256, 100_000):
        metrics.store_flush_rows.observe(rows)
    series = series_of(metrics.snapshot())

    def at_most(bound: str) -> float:
        return series[key("twophp_store_flush_rows_bucket", le=bound)]

    assert [at_most(bound) for bound in ("1.0", "2.0", "4.0", "256.0", "512.0", "+Inf")] == [1, 2, 3, 4, 4, 5]
    assert series[key("twophp_store_flush_rows_count")] == 5
    assert series[key("twophp_store_flush_rows_sum")] == 100_262


def test_a_gauge_can_follow_a_number_kept_elsewhere() -> None:
    metrics = Metrics("1")
    held = [10]
    metrics.buffered_bytes.follow(lambda: held[0])
    metrics.inflight.inc()
    metrics.inflight.inc()
    metrics.inflight.dec()
    assert series_of(metrics.snapshot())[key("twophp_buffered_bytes")] == 10
    held[0] = 7
    series = series_of(metrics.snapshot())
    assert (series[key("twophp_buffered_bytes")], series[key("twophp_inflight")]) == (7, 1)


def test_a_snapshot_is_of_its_moment() -> None:
    metrics = Metrics("1")
    before = metrics.snapshot()
    metrics.upstream_seconds.observe(0.1)
    metrics.bypassed.inc()
    assert series_of(before)[key("twophp_upstream_seconds_count")] == 0
    assert series_of(before)[key("twophp_bypassed_total")] == 0


def worker(*, statuses: Iterable[int] = (), inflight: int = 0, store_up: int | None = None) -> Metrics:
    metrics = Metrics("1")
    meter = metrics.meter("confirm")
    for status in statuses:
        meter.done(status, 0.004)
    metrics.inflight.set(inflight)
    if store_up is not None:
        metrics.store_up.set(store_up)
    return metrics


def test_workers_add_up() -> None:
    workers = [worker(statuses=[200, 500], inflight=2), worker(statuses=[200], inflight=3)]
    series = series_of(merge(over_the_wire(one.snapshot()) for one in workers))
    assert series[key("twophp_requests_total", mode="confirm", status_class="2xx")] == 2
    assert series[key("twophp_requests_total", mode="confirm", status_class="5xx")] == 1
    assert series[key("twophp_request_seconds_bucket", mode="confirm", le="0.005")] == 3
    assert series[key("twophp_request_seconds_bucket", mode="confirm", le="0.0025")] == 0
    assert series[key("twophp_request_seconds_sum", mode="confirm")] == pytest.approx(0.012)
    assert series[key("twophp_inflight")] == 5


@given(st.lists(st.lists(st.floats(0, 60), max_size=20), min_size=1, max_size=5))
def test_merging_gives_what_one_process_would_have_counted(observed: list[list[float]]) -> None:
    alone, workers = Metrics("1"), [Metrics("1") for _ in observed]
    for metrics, values in zip(workers, observed, strict=True):
        for value in values:
            metrics.upstream_seconds.observe(value)
            alone.upstream_seconds.observe(value)
    (_, (counts, total)) = merge(one.snapshot() for one in workers)["twophp_upstream_seconds"][0]
    assert counts == alone.upstream_seconds.counts
    assert total == pytest.approx(alone.upstream_seconds.sum)


def test_merging_changes_none_of_its_inputs() -> None:
    snapshots = [worker(statuses=[200]).snapshot(), worker(statuses=[200]).snapshot()]
    before = orjson.dumps(snapshots)
    merge(snapshots)
    assert orjson.dumps(snapshots) == before


def test_the_store_is_up_only_if_every_worker_that_uses_it_says_so() -> None:
    up, down, supervisor = worker(store_up=1), worker(store_up=0), worker()
    assert series_of(merge([up.snapshot(), supervisor.snapshot()]))[key("twophp_store_up")] == 1
    assert series_of(merge([up.snapshot(), down.snapshot()]))[key("twophp_store_up")] == 0
    assert key("twophp_store_up") not in series_of(supervisor.snapshot())


def test_of_figures_read_from_the_store_the_latest_counts() -> None:
    """Each worker may look; they see the same intents, which must not be added up."""
    workers = [Metrics("1") for _ in range(3)]
    workers[1].in_doubt.set(9)
    workers[0].in_doubt.set(4)
    for order in (workers, workers[::-1]):
        series = series_of(merge(over_the_wire(one.snapshot()) for one in order))
        assert series[key("twophp_in_doubt")] == 4


def test_the_counts_of_an_ended_worker_stay() -> None:
    """A total that falls would look like a restart, and count everything twice."""
    totals = Totals()
    totals.update("a", worker(statuses=[200] * 5, inflight=1).snapshot())
    totals.update("b", worker(statuses=[200] * 7, inflight=1).snapshot())
    totals.retire("a")
    totals.update("a2", worker(statuses=[200], inflight=1).snapshot())
    totals.retire("never seen")
    supervisor = Metrics("1")
    supervisor.worker_restarts.inc()
    series = series_of(totals.snapshot(supervisor.snapshot()))
    assert series[key("twophp_requests_total", mode="confirm", status_class="2xx")] == 13
    assert series[key("twophp_request_seconds_count", mode="confirm")] == 13
    assert series[key("twophp_inflight")] == 2
    assert series[key("twophp_worker_restarts_total")] == 1


def test_a_newer_snapshot_of_a_worker_replaces_its_older_one() -> None:
    totals = Totals()
    totals.update("a", worker(statuses=[200]).snapshot())
    totals.update("a", worker(statuses=[200] * 3).snapshot())
    assert series_of(totals.snapshot())[key("twophp_requests_total", mode="confirm", status_class="2xx")] == 3


def test_what_another_release_alone_knows_is_left_out() -> None:
    newer = worker(statuses=[200]).snapshot()
    newer["twophp_unheard_of"] = [[[], 1]]
    newer["twophp_upstream_seconds"] = [[[], [[1, 2], 3.0]]]
    series = series_of(merge([worker(statuses=[200]).snapshot(), newer]))
    assert series[key("twophp_requests_total", mode="confirm", status_class="2xx")] == 2
    assert series[key("twophp_upstream_seconds_count")] == 0


def test_no_label_can_name_a_caller_an_id_or_a_path() -> None:
    labels = {label for spec in catalogue.ALL for label in spec.labels}
    assert labels == {"mode", "status_class", "phase", "type", "kind", "statement", "version", "python"}


def test_label_values_out_of_control_cost_detail_and_not_memory() -> None:
    family = Family(catalogue.REFUSALS, Counter)
    for number in range(10 * CHILDREN_MAX):
        family.labels(type=f"type-{number}").inc()
    samples = family.samples()
    assert len(samples) == CHILDREN_MAX
    assert sum(value for _, value in samples) == 10 * CHILDREN_MAX
    assert [["other"], 9 * CHILDREN_MAX + 1] in samples


def test_labels_must_be_those_of_the_metric() -> None:
    with pytest.raises(AssertionError, match="twophp_refusals"):
        Family(catalogue.REFUSALS, Counter).labels(kind="x")


def test_an_instrument_is_made_once_per_combination() -> None:
    family = Family(catalogue.REQUEST_SECONDS, Histogram)
    assert family.labels(mode="poll") is family.labels(mode="poll")
    assert family.labels(mode="poll") is not family.labels(mode="confirm")


def test_a_worker_that_only_counts_does_not_load_the_prometheus_library() -> None:
    program = (
        "import sys; from gateway.telemetry.metrics import Metrics; from gateway.telemetry.aggregation import Totals\n"
        "Metrics('1').snapshot(); sys.exit('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode == 0
