"""A closed month as CSV: a row per reservation, in a fixed order. Depends only on stored rows and
the columns below, so two exports have the same bytes, unless a later version adds a column."""

from collections.abc import AsyncIterator
from typing import LiteralString

from psycopg import sql

from tollkeeper.core.months import Month
from tollkeeper.core.pricing import LINE_ITEMS
from tollkeeper.database.database import Connection
from tollkeeper.money.holds.price_columns import PRICE_COLUMNS

# Names and SQL. Files outlive the version that wrote them, so add columns only at the end. New
# price dimensions are appended automatically (see `_COLUMNS`).
_ORDERED: tuple[tuple[LiteralString, LiteralString], ...] = (
    ("organization_id", "r.organization_id"),
    ("reservation_id", "r.id"),
    ("project_id", "r.project_id"),
    ("api_key_id", "r.api_key_id"),
    ("model", "r.model"),
    ("held_at", "to_char(r.held_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"),
    ("hold_picousd", "r.hold"),
    ("price_prompt_picousd", "r.price_prompt"),
    ("price_completion_picousd", "r.price_completion"),
    ("price_image_picousd", "r.price_image"),
    ("price_request_picousd", "r.price_request"),
    ("price_cache_read_picousd", "r.price_cache_read"),
    ("price_cache_write_picousd", "r.price_cache_write"),
    ("price_cache_write_1h_picousd", "r.price_cache_write_1h"),
    ("price_web_search_picousd", "r.price_web_search"),
    ("prompt_tokens_max", "r.prompt_tokens_max"),
    ("choices", "r.choices"),
    ("output_tokens_max", "r.output_tokens_max"),
    ("images", "r.images"),
    ("web_searches", "r.web_searches"),
    ("unsettled_reason", "m.reason"),
    ("resolution", "d.kind"),
    ("settled_picousd", "d.settled"),
    ("released_picousd", "d.released"),
    ("overage_picousd", "coalesce(o.amount, 0)"),
    ("prompt_picousd", "d.prompt"),
    ("completion_picousd", "d.completion"),
    ("input_cache_read_picousd", "d.input_cache_read"),
    ("input_cache_write_picousd", "d.input_cache_write"),
    ("image_picousd", "d.image"),
    ("request_picousd", "d.request"),
    ("web_search_picousd", "d.web_search"),
    ("other_picousd", "d.other"),
    ("estimated", "d.estimated"),
    ("resolved_by", "d.resolved_by"),
    (
        "resolved_at",
        "to_char(d.resolved_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
    ),
    ("price_input_audio_picousd", "r.price_input_audio"),
    ("price_output_audio_picousd", "r.price_output_audio"),
    ("input_audio_tokens_max", "r.input_audio_tokens_max"),
    ("output_audio_tokens_max", "r.output_audio_tokens_max"),
    ("price_variants", "r.price_variants"),
    ("input_audio_picousd", "d.input_audio"),
    ("output_audio_picousd", "d.output_audio"),
    ("output_image_picousd", "d.output_image"),
    ("day", "to_char(date '1970-01-01' + d.day, 'YYYY-MM-DD')"),
    ("adjusts_day", "to_char(date '1970-01-01' + d.adjusts_day, 'YYYY-MM-DD')"),
)
_AMOUNTS = (
    *((column + "_picousd", "r." + column) for column in PRICE_COLUMNS),
    *((name + "_picousd", "d." + name) for name in LINE_ITEMS),
)
_COLUMNS = (*_ORDERED, *(column for column in _AMOUNTS if column not in _ORDERED))
COLUMNS = tuple(name for name, _ in _COLUMNS)
_SELECTED: LiteralString = ", ".join(expression + " AS " + name for name, expression in _COLUMNS)


async def stream_csv(connection: Connection, month: Month) -> AsyncIterator[bytes]:
    query = sql.SQL(_EXPORT).format(
        first=sql.Literal(month.first_id), end_id=sql.Literal(month.end_id)
    )
    async with connection.cursor() as cursor, cursor.copy(query) as copy:
        async for part in copy:
            yield bytes(part)


_EXPORT: LiteralString = (
    "COPY (SELECT "
    + _SELECTED
    + """
    FROM reservations r
    JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
      AND d.reservation_id >= {first} AND d.reservation_id < {end_id}
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
      AND o.reservation_id >= {first} AND o.reservation_id < {end_id}
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    WHERE r.id >= {first} AND r.id < {end_id}
    ORDER BY r.organization_id, r.id
    ) TO STDOUT WITH (FORMAT csv, HEADER true, ENCODING 'UTF8')
    """
)
