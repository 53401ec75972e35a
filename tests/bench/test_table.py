"""Tests the printed table: targets that are met or missed, and peers that were not measured."""

from bench.table import Row, as_markdown, rows

_FIGURES = {
    "tollkeeper.cpu_us_per_request": 250.0,
    "tollkeeper.requests_per_s": 2000.0,
    "tollkeeper.cpu_us_per_piece": 60.0,
    "sglang.cpu_us_per_request": 200.0,
    "sglang.requests_per_s": 2500.0,
    "sglang.cpu_us_per_piece": 40.0,
    "litellm.cpu_us_per_request": 20_000.0,
    "litellm.requests_per_s": 30.0,
    "database_cpu_us_per_request": 90.0,
    "database_share": 0.36,
    "two_workers_share": 1.2,
    "wal_bytes_per_request": 2_345.0,
    "stream_first_byte_added_ms_p50": 1.5,
    "stream_first_byte_added_ms_p99": 4.0,
    "json_first_byte_added_ms_p50": 2.5,
    "json_first_byte_added_ms_p99": 9.0,
    "idle_resident_mb": 80.0,
    "stream_resident_kib": 20.0,
    "report_settled": 1_000_000.0,
    "report_ratio": 1.1,
    "hot_organization_share": 0.7,
    "start_s": 1.0,
}
_MISSING = {
    "tensorzero": "could not be started: no licence",
    "portkey": "could not be installed: no such host",
    "litellm": "failed under load: 3 of 16 requests failed",
}


def _row(figure: str) -> Row:
    (found,) = [row for row in rows(_FIGURES, _MISSING) if row.figure == figure]
    return found


def test_ratios_are_of_this_run() -> None:
    sglang = "CPU per chat request, of the SGLang gateway's"
    assert _row(sglang) == Row(sglang, "1.25", "at most 1", "no")
    pieces = "CPU per streamed piece, of the SGLang gateway's"
    assert _row(pieces) == Row(pieces, "1.5", "at most 0.8", "no")
    litellm = "CPU per chat request, of LiteLLM's"
    assert _row(litellm) == Row(litellm, "1/80", "at most 1/80", "yes")


def test_a_peer_that_is_missing_has_no_number() -> None:
    portkey = _row("CPU per chat request, of Portkey's")
    assert portkey.measured == _MISSING["portkey"]
    assert portkey.met == "not measured"
    streams = _row("CPU per streamed piece, of LiteLLM's")
    assert streams.measured == _MISSING["litellm"]
    assert streams.met == "not measured"
    assert _row("CPU per streamed piece: LiteLLM").measured == _MISSING["litellm"]


def test_targets_of_both_directions() -> None:
    assert _row("added to the first byte of a stream, p50").met == "yes"
    hot = _row("throughput with a hot organization, of that over 100 organizations")
    assert (hot.target, hot.met) == ("at least 0.8", "no")
    assert _row("a report after 1,000,000 settled requests, of one after 1,000").met == "yes"


def test_the_database_has_rows_of_its_own() -> None:
    assert _row("CPU per chat request: the database, apart from the gateway").measured == "90 µs"
    assert _row("log of the database per chat request").measured == "2,345 bytes"
    assert _row("CPU of the database, of the gateway's own").met == "yes"


def test_every_line_is_as_wide_as_the_first() -> None:
    lines = as_markdown(rows(_FIGURES, _MISSING)).split("\n")
    assert {len(line) for line in lines} == {len(lines[0])}
