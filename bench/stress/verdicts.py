"""Compiles the table of one run of the load programme: each figure with its limit."""

from collections.abc import Callable, Iterator
from statistics import median

from bench.stress.open_loop import percentile_ms
from bench.stress.programme import Beside, Programme, Round
from bench.stress.quiet import Quiet
from bench.table import Met, Row

_REFUSED_MS_MAX = 100
_SLOWER_MAX = 2
_RECOVERED_S_MAX = 10
_GROWTH_MB_MAX = 64
_BOOKS_SLACK_S = 30


def rows(programme: Programme) -> list[Row]:
    return [*_knee(programme), *_overload(programme), *_others(programme)]


def _knee(programme: Programme) -> Iterator[Row]:
    closed = f"{programme.closed_per_second:,.0f} a second"
    yield Row("closed loop, 32 connections", closed, "", "")
    for rate, found in programme.steps:
        served = 100 * len(found.served_s) / found.offered
        times = f"p50 {percentile_ms(found.served_s, 50):.0f} ms"
        yield Row(f"open loop, {rate:,.0f} a second", f"{served:.0f} % served, {times}", "", "")
    yield Row("the knee", f"{programme.knee_per_second:,.0f} a second", "", "")


def _overload(programme: Programme) -> Iterator[Row]:
    rounds = programme.rounds

    def figure(read: Callable[[Round], float]) -> float:
        return median(read(found) for found in rounds)

    offered = 3 * programme.knee_per_second
    served = figure(lambda found: found.overload.served_per_second)
    yield Row(f"at three times the knee, {offered:,.0f} a second: served",
              f"{served:,.0f} a second", "", "")  # fmt: skip
    for percent in (50, 99):
        taken = figure(lambda found, at=percent: percentile_ms(found.overload.refused_s, at))  # type: ignore[misc]
        limit = _REFUSED_MS_MAX
        yield Row(f"... time to a refusal, p{percent}", f"{taken:.0f} ms", f"at most {limit} ms",
                  _met(taken <= limit))  # fmt: skip
    refused = sum(len(found.overload.refused_s) for found in rounds)
    malformed = sum(found.overload.malformed for found in rounds)
    yield Row("... refusals that are not 429 or 503, in the envelope, with Retry-After",
              f"{malformed} of {refused:,}", "0", _met(not malformed))  # fmt: skip
    failures = sum(found.overload.failures for found in rounds)
    yield Row("... neither answered nor refused", str(failures), "0", _met(not failures))
    for percent in (50, 99):
        at_knee = figure(lambda found, at=percent: percentile_ms(found.knee.served_s, at))  # type: ignore[misc]
        beyond = figure(lambda found, at=percent: percentile_ms(found.overload.served_s, at))  # type: ignore[misc]
        measured = f"{beyond:.0f} ms, of {at_knee:.0f} ms at the knee: {beyond / at_knee:.1f}"
        yield Row(f"... an admitted call, p{percent}", measured, f"at most {_SLOWER_MAX} times",
                  _met(beyond <= _SLOWER_MAX * at_knee))  # fmt: skip
    late = figure(lambda found: percentile_ms(found.overload.late_s, 99))
    yield Row("... how late the generator sends, p99", f"{late:.0f} ms", "", "")
    recovered = [found.recovered_s for found in rounds]
    slowest = max((taken for taken in recovered if taken is not None), default=0.0)
    is_met = None not in recovered and slowest <= _RECOVERED_S_MAX
    yield Row("after it, a single caller is as fast as before",
              f"after {slowest:.1f} s" if None not in recovered else "not in time",
              f"at most {_RECOVERED_S_MAX} s", _met(is_met))  # fmt: skip


def _others(programme: Programme) -> Iterator[Row]:
    for found in programme.beside:
        yield _quiet_row(found)
        rest = "not in time" if found.at_rest_s is None else f"after {found.at_rest_s:.0f} s"
        yield Row("... descriptors, tasks, calls and held money as before", rest,
                  f"at most {_BOOKS_SLACK_S} s", _met(found.at_rest_s is not None))  # fmt: skip
        if found.name in programme.elsewhere:
            yield _elsewhere_row(found, programme.elsewhere[found.name])
    baseline = programme.baseline
    assert baseline is not None
    growth = programme.beside[-1].vitals.resident_mb - baseline.resident_mb
    yield Row("resident memory, at the end and after the closed loop",
              f"{growth:+.0f} MB of {baseline.resident_mb:.0f} MB",
              f"at most +{_GROWTH_MB_MAX} MB", _met(growth <= _GROWTH_MB_MAX))  # fmt: skip


def _quiet_row(found: Beside) -> Row:
    slower = found.p50_ms / found.alone_p50_ms
    measured = (
        f"p50 {found.p50_ms:.0f} ms, of {found.alone_p50_ms:.0f} ms alone: {slower:.1f}; "
        f"p99 {found.p99_ms:.0f} of {found.alone_p99_ms:.0f} ms; "
        f"{found.failures} of {found.calls} not served"
    )
    is_met = slower <= _SLOWER_MAX and not found.failures
    return Row(f"a quiet caller beside {found.name} ({found.connections:,} connections)", measured,
               f"at most {_SLOWER_MAX} times, all served", _met(is_met))  # fmt: skip


def _elsewhere_row(flooded: Beside, elsewhere: Quiet) -> Row:
    """Compares a flood of the quiet client's gateway with a flood of another gateway. Both floods keep the
    machine equally busy, so the difference is the effect of sharing a gateway."""
    slower = flooded.p50_ms / elsewhere.p50_ms
    measured = (
        f"p50 {flooded.p50_ms:.0f} ms, of {elsewhere.p50_ms:.0f} ms beside it elsewhere: "
        f"{slower:.1f}; p99 {flooded.p99_ms:.0f} of {elsewhere.p99_ms:.0f} ms"
    )
    return Row("... and beside the same on another gateway of this machine", measured,
               f"at most {_SLOWER_MAX} times", _met(slower <= _SLOWER_MAX))  # fmt: skip


def _met(is_met: bool) -> Met:
    return "yes" if is_met else "no"
