"""Renders pages: loads the templates, formats numbers, amounts and times, and adds the navigation
and the other elements that all pages have."""

import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tollkeeper.console.amounts import DASH, exact_usd, number, usd
from tollkeeper.console.chosen import CHOSEN, RECENT, recent_organization
from tollkeeper.console.context import session_of, whole_console
from tollkeeper.console.forms import Refused
from tollkeeper.console.offered import Offered
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.percent import percent_of
from tollkeeper.core.runtime.csv_text import csv_lines
from tollkeeper.reports.traffic.rule import Latencies
from tollkeeper.tenants.people import Person

_TEMPLATES = Path(__file__).parent / "templates"
# Percentiles of fewer calls are not shown.
_PERCENTILE_CALLS_MIN = 20
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


@dataclass(frozen=True, slots=True)
class NavEntry:
    key: str
    address: str
    title: str
    # Whether the page shows one organization at a time.
    of_organization: bool = False


NAVIGATION = (
    (
        "",
        (
            NavEntry("overview", "/", "Overview"),
            NavEntry("start", "/start", "Get started"),
            NavEntry("alerts", "/alerts", "Alerts"),
            NavEntry("activity", "/activity", "Activity"),
            NavEntry("costs", "/costs", "Costs", of_organization=True),
            NavEntry("budgets", "/budgets", "Budgets", of_organization=True),
            NavEntry("payments", "/payments", "Payments"),
            NavEntry("unsettled", "/unsettled", "Unsettled"),
            NavEntry("months", "/months", "Months"),
            NavEntry("reconcile", "/reconcile", "Reconcile"),
        ),
    ),
    (
        "Tenants",
        (
            NavEntry("organizations", "/organizations", "Organizations"),
            NavEntry("projects", "/projects", "Projects", of_organization=True),
            NavEntry("keys", "/keys", "Keys", of_organization=True),
            NavEntry("playground", "/playground", "Playground", of_organization=True),
            NavEntry("policies", "/policies", "Policies", of_organization=True),
        ),
    ),
    (
        "System",
        (
            NavEntry("models", "/models", "Models"),
            NavEntry("backends", "/backends", "Backends"),
            NavEntry("doctor", "/doctor", "Doctor"),
            NavEntry("settings", "/settings", "Settings"),
            NavEntry("audit", "/audit", "Audit"),
            NavEntry("people", "/people", "People"),
        ),
    ),
)


class Fields(dict[str, str]):
    """Contains the fields of a form or of a URL query. A missing field is an empty string."""

    def __missing__(self, name: str) -> str:
        return ""


def render(
    request: Request,
    template: str,
    *,
    nav: str,
    title: str,
    refused: Refused | None = None,
    filled: Mapping[str, str] | None = None,
    **values: Any,
) -> Response:
    """Renders a page. If `refused` is set, shows the error at the top of the page and fills the
    forms with the rejected values. Otherwise fills the forms with `filled`."""
    console = whole_console(request)
    session = session_of(request)
    form_token = console.sessions.form_token(session)
    may = _may(request)
    # People of an organization have no choice.
    recent = None if session.person.organization_id else recent_organization(request, values)
    text = _environment.get_template(template).render(
        nav=nav,
        title=title,
        navigation=_navigation(session.person, may, recent),
        recent=recent,
        may=may,
        person=session.person,
        form_token=form_token,
        once=_form_id,
        problem=None if refused is None else refused.error,
        filled=Fields((filled or {}) if refused is None else refused.filled),
        notice=_notice_text(request.query_params, form_token),
        now=console.services.clock(),
        query=Fields(request.query_params),
        path=request.url.path,
        address=lambda **changes: address_with(request, **changes),
        **values,
    )
    return HTMLResponse(text)


def csv_file(name: str, rows: Iterable[Sequence[object]]) -> Response:
    return Response(
        csv_lines(rows),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def fragment(request: Request, template: str, **values: Any) -> str:
    """Renders one part of a page that is sent as a stream. Returns HTML."""
    return _environment.get_template(template).render(may=_may(request), **values)


def _may(request: Request) -> Callable[[str, str], bool]:
    """Returns a function that tells whether the user may send a request with this method and
    path."""
    return partial(request.app.state.offers.may, session_of(request).person)


def _navigation(
    person: Person, may: Callable[[str, str], bool], recent: OrganizationId | None
) -> list[tuple[str, list[NavEntry]]]:
    """Returns the navigation entries for the pages that the user may see. Their addresses carry the
    organization `recent`."""

    def carrying(entry: NavEntry) -> NavEntry:
        if recent is None:
            return entry
        name = CHOSEN if entry.of_organization else RECENT
        return replace(entry, address=f"{entry.address}?{name}={recent}")

    groups = [
        (heading, [carrying(entry) for entry in entries if may("GET", entry.address)])
        for heading, entries in NAVIGATION
    ]
    if person.organization_id is not None:
        own_organization = NavEntry(
            "organizations", f"/organizations/{person.organization_id}", "Organization"
        )
        groups.insert(0, ("", [own_organization]))
    return [(heading, entries) for heading, entries in groups if entries]


def render_outside(template: str, **values: Any) -> HTMLResponse:
    """Renders a page for a browser without a session."""
    template_ = _environment.get_template(template)
    return HTMLResponse(template_.render(may=lambda _method, _address: True, **values))


def address_with(request: Request, **changes: object) -> str:
    """Returns the path and query of this page with changed filters and without the notice. A change
    to None removes a filter."""
    query = {
        name: value
        for name, value in request.query_params.items()
        if name not in ("notice", "signature", *changes)
    }
    query |= {name: str(value) for name, value in changes.items() if value is not None}
    return request.url.path + (f"?{urlencode(query)}" if query else "")


def signed_notice(text: str, secret: str) -> dict[str, str]:
    """Returns the part of a URL's query that makes the page show the text. The signature needs a secret
    of the session, so a malicious link cannot show a text."""
    return {"notice": text, "signature": _signature(text, secret)}


def _notice_text(query: Mapping[str, str], secret: str) -> str | None:
    text, signature = query.get("notice", ""), query.get("signature", "")
    is_ours = hmac.compare_digest(signature.encode(), _signature(text, secret).encode())
    return text if is_ours else None


def _signature(text: str, secret: str) -> str:
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()[:32]


def _form_id() -> str:
    """Returns a random id for a form, by which a second submission of the form is recognized."""
    return secrets.token_hex(16)


def compact(value: float | None) -> str:
    """Formats a large number with a unit: 1234567 becomes "1.2 M". Numbers below 10,000 have no unit."""
    if value is None:
        return DASH
    for unit, size, minimum in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if abs(value) >= minimum:
            return f"{value / size:.1f} {unit}"
    return number(value)


def milliseconds(value: float | None) -> str:
    if value is None:
        return DASH
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.2f} s" if value < 60_000 else f"{value / 60_000:.1f} min"


def microseconds(value: float | None) -> str:
    if value is None or value >= 10_000:
        return milliseconds(None if value is None else value / 1000)
    return f"{value / 1000:.1f} ms" if value >= 1000 else f"{value:.0f} µs"


def percentile(latencies: Latencies, share: float) -> float | None:
    """Returns the latency that this share of the calls did not exceed; None if there are too few
    calls for a meaningful percentile."""
    calls = sum(latencies.by_bucket.values())
    return None if calls < _PERCENTILE_CALLS_MIN else latencies.percentile(share)


def latency(value: float | None, unit: str = "ms") -> str:
    if value is None:
        return "Too few calls"
    return milliseconds(value) if unit == "ms" else microseconds(value)


def percent(part: float, whole: float) -> str:
    return DASH if not whole else f"{100 * part / whole:.1f} %"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def when(unix_s: float | None) -> Markup | str:
    if unix_s is None:
        return DASH
    time = datetime.fromtimestamp(unix_s, UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        time.isoformat(), time.strftime("%Y-%m-%d %H:%M:%S")
    )


def clock(unix_s: float) -> Markup:
    """Formats a date and time without the year."""
    time = datetime.fromtimestamp(unix_s, UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        time.isoformat(), time.strftime("%b %d %H:%M:%S")
    )


def day(unix_s: float | None) -> str:
    return DASH if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")


def input_time(unix_s: float) -> str:
    """Formats a time, in UTC, as the value of an `<input type="datetime-local">`."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def ago(unix_s: float | None, now: int) -> Markup | str:
    """Formats the time that has passed since `unix_s` or, if `unix_s` is in the future, the time
    until `unix_s`. The tooltip has the date and time."""
    if unix_s is None:
        return "never"
    time = datetime.fromtimestamp(unix_s, UTC)
    text = f"{duration(now - unix_s)} ago" if now >= unix_s else f"in {duration(unix_s - now)}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        time.isoformat(), time.strftime("%Y-%m-%d %H:%M:%S"), text
    )


def chart_data(value: Mapping[str, Any]) -> Markup:
    """Encodes the data of a chart as JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return Markup(  # noqa: S704 - every character with a meaning in HTML is escaped
        text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    )


def labelled(table: str) -> Markup:
    """Adds to each table cell the attribute `data-label` with the heading of the cell's column. On
    a narrow screen, console.css shows each row as a card, with this heading next to each cell."""
    columns = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table, re.DOTALL)
    headings = [escape(Markup(text).striptags()) for text in columns]  # noqa: S704 - our own template

    def label_row(row: re.Match[str]) -> str:
        columns = iter(headings)

        def label_cell(cell: re.Match[str]) -> str:
            # A cell that spans several columns gets the heading of the first of these columns.
            spanned = [next(columns, "") for _ in range(int(cell[2] or 1))]
            return f'<{cell[1]} data-label="{spanned[0]}"{cell[0][3:]}'

        return re.sub(r'<(t[dh])\b(?! scope="col")(?:[^>]*?\bcolspan="(\d+)")?', label_cell, row[0])

    text = re.sub(r"<tr\b.*?</tr>", label_row, table, flags=re.DOTALL)
    return Markup(text)  # noqa: S704 - the template has escaped every value


def _create_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=[Offered],
    )
    environment.filters |= {
        "usd": usd,
        "exact_usd": exact_usd,
        "basis_points": percent_of,
        "number": number,
        "compact": compact,
        "ms": milliseconds,
        "us": microseconds,
        "latency": latency,
        "duration": duration,
        "when": when,
        "clock": clock,
        "day": day,
        "ago": ago,
        "input_time": input_time,
        "chart_data": chart_data,
        "labelled": labelled,
    }
    environment.globals |= {"percent": percent, "percentile": percentile}
    return environment


_environment = _create_environment()
