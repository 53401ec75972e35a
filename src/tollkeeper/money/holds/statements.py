"""The hold transaction: locks accounts, reads what admission needs, writes accounts and holds.
Locks have a fixed order: accounts by organization id, then rows that belong to them. Whoever
changes an account, a project's account or a row that admission reads (a key or a project) locks the
organization's account first."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, starmap
from operator import attrgetter
from typing import Any, LiteralString
from uuid import UUID

import msgspec
from msgspec.structs import replace

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.months import time_ms_of_id
from tollkeeper.core.pricing import PRICE_NAMES, Pricing, dearest_prices
from tollkeeper.database.database import Connection
from tollkeeper.database.processes import heartbeat
from tollkeeper.database.round_trips import BoundStatement, Rows, Statement, id_array, run_alone
from tollkeeper.money.caps import counts as cap_counts
from tollkeeper.money.caps import store as caps
from tollkeeper.money.holds.account_rows import account_of, fold_of, key_status_of, project_of
from tollkeeper.money.holds.price_columns import PRICE_COLUMNS, prices
from tollkeeper.money.holds.rule import AccountState, DefaultLimits
from tollkeeper.money.holds.values import Hold, LockedAccounts

# One JSON parameter: an array per column would take more time than all else in the ledger.
# PostgreSQL reads JSON integers of any size exactly.
_encode = msgspec.json.Encoder().encode
_CACHED_PRICES_MAX = 1024


async def use_asynchronous_commit(connection: Connection) -> None:
    """The commit won't wait for the disk. Only a crash of PostgreSQL or its machine can lose it."""
    await connection.execute("SET LOCAL synchronous_commit TO off")


# The same in one round trip.
COMMIT_ASYNCHRONOUSLY = Statement(
    "tollkeeper_commit_asynchronously",
    "SELECT set_config('synchronous_commit', 'off', true)",
    returns_rows=False,
).bind_texts()


def fast_transaction(lock_wait_s: float | None) -> BoundStatement:
    """First in a hold transaction: the commit doesn't wait for the disk, locks wait `lock_wait_s`
    (None: the connection's timeout). If this process stops between two statements, the server ends
    the session after three seconds, so accounts don't stay locked."""
    lock_timeout = None if lock_wait_s is None else b"%dms" % max(1, round(lock_wait_s * 1000))
    return _FAST_TRANSACTION.bind_texts(lock_timeout)


_FAST_TRANSACTION = Statement(
    "tollkeeper_fast_transaction",
    """
    SELECT set_config('synchronous_commit', 'off', true),
        set_config('idle_in_transaction_session_timeout', '3s', true),
        set_config('lock_timeout', coalesce(%s::text, current_setting('lock_timeout')), true)
    """,
    returns_rows=False,
)


async def lock_accounts(
    connection: Connection,
    projects: Sequence[tuple[OrganizationId, ProjectId]],
    keys: Sequence[KeyId],
    limits: DefaultLimits,
) -> LockedAccounts:
    """In their fixed order, with resolved holds' unspent amounts folded in. Deletes those rows from
    `unfolded`, so you must write the states. Leaves out what doesn't exist."""
    subjects = (
        [organization_id.int for organization_id, _ in projects],
        [project_id.int for _, project_id in projects],
        [key_id.int for key_id in keys],
    )
    statements = lock_statements(*subjects)
    rows = [await run_alone(connection, statement) for statement in statements]
    locked = locked_accounts(rows, limits)
    capped = [*capped_organizations(locked)]
    if not capped:
        return locked
    read_caps = caps.read_statement(*subjects)
    locked, is_behind = caps.with_caps(locked, await run_alone(connection, read_caps))
    if is_behind:
        await recount_caps(connection, capped)
        locked, _ = caps.with_caps(locked, await run_alone(connection, read_caps))
    return locked


def capped_organizations(locked: LockedAccounts) -> Iterator[OrganizationId]:
    return (organization_id for organization_id, state in locked.states.items() if state.is_capped)


async def recount_caps(connection: Connection, capped: Iterable[OrganizationId]) -> None:
    """After the clock was set back."""
    for organization_id in capped:
        await cap_counts.recount(connection, organization_id)


def lock_statements(
    organization_ids: Iterable[int], project_ids: Iterable[int], key_ids: Iterable[int]
) -> tuple[BoundStatement, ...]:
    """Those of `lock_accounts`, to be run in this order; `locked_accounts` reads the rows. The
    organizations are the projects', in the same order; ids may repeat."""
    organizations, projects = id_array(organization_ids), id_array(project_ids)
    return (
        _LOCK_ACCOUNTS.bind_texts(organizations),
        _READ_CLOCK_AND_KEYS.bind_texts(organizations, id_array(key_ids)),
        _PROJECTS_AND_FOLDS.bind_texts(organizations, organizations, projects),
    )


def locked_accounts(results: Sequence[Rows], limits: DefaultLimits) -> LockedAccounts:
    accounts, clock_and_keys, projects = results
    now_us = clock_and_keys[0][0]
    states: dict[OrganizationId, AccountState] = {}
    epochs: dict[OrganizationId, int] = {}
    for row in accounts:
        states[row[0]] = account_of(row, limits)
        epochs[row[0]] = row[6]
    # `first_key_id`: the first in the chain, if the key was rotated.
    for _, organization_id, key_id, first_key_id, models, *key in clock_and_keys:
        if key_id is not None:
            states[organization_id].keys[key_id] = key_status_of(*key)
        if first_key_id is not None:
            states[organization_id].first_keys[key_id] = first_key_id
        if models:
            states[organization_id].key_models[key_id] = tuple(models)
    for row in projects:
        organization_id, project_id = row[:2]
        state = states[organization_id]
        if project_id not in state.projects:
            state.projects[project_id] = project_of(row, limits, now_us)
        if row[_FOLD_AT] is not None:
            states[organization_id] = state.folded(fold_of(project_id, row[_FOLD_AT:]))
    return LockedAccounts(states, epochs, now_us)


_LOCK_ACCOUNTS = Statement(
    "tollkeeper_lock_accounts",
    """
    SELECT organization_id, available, overage, held, unsettled, settled, epoch, overage_bound,
           stopped, is_capped, overage_in_flight
    FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id FOR UPDATE
    """,
)
# The batch's time, by the server's clock, and the keys. Apart from `_LOCK_ACCOUNTS`, because it
# must begin after that. Otherwise it could see an earlier time than the transaction that held the
# lock before.
_READ_CLOCK_AND_KEYS = Statement(
    "tollkeeper_clock_and_keys",
    """
    SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
           k.organization_id, k.id, k.first_key_id, k.models, k.revoked_at IS NOT NULL,
           k.suspended_at IS NOT NULL, coalesce(k.expires_at <= clock_timestamp(), false)
    -- One row, so that the time is returned even if no key is found.
    FROM (SELECT) AS always
    LEFT JOIN project_keys k ON k.organization_id = ANY (%s) AND k.id = ANY (%s)
    """,
)
# A row without a fold per project, and one per fold: sums of `unfolded` rows, resolutions and
# marks. This deletes them, so each is folded once. `was_unsettled`: this statement sees the
# resolved reservation's mark, whose amount is already in the unsettled amount, or among these rows.
# Marks come first (`ORDER BY w.kind DESC`), because a marked one's resolution reduces the unsettled
# amount. `COUNT_FOLDED` counts the caps here too.
_PROJECTS_AND_FOLDS = Statement(
    "tollkeeper_projects_and_folds",
    """
    WITH taken AS (
        DELETE FROM unfolded WHERE organization_id = ANY (%s)
        RETURNING organization_id, reservation_id, kind, project_id, api_key_id, day, hold,
                  settled, overage, overage_max
    )
    """
    + caps.COUNT_FOLDED
    + """
    , seen AS (
        SELECT t.*, t.kind = 'resolved' AND m.reservation_id IS NOT NULL AS was_unsettled
        FROM taken t LEFT JOIN LATERAL (
            SELECT reservation_id FROM unsettled_marks
            WHERE organization_id = t.organization_id AND reservation_id = t.reservation_id
            -- Makes PostgreSQL look up each mark by its id. Otherwise it may read all marks.
            OFFSET 0
        ) m ON true
    ), folds AS (
        SELECT organization_id, project_id, kind, was_unsettled, count(*) AS count,
               sum(hold) AS hold, sum(settled) AS settled, sum(overage) AS overage,
               sum(overage_max) AS overage_max
        FROM seen GROUP BY organization_id, project_id, kind, was_unsettled
    ), wanted AS (
        SELECT * FROM folds
        UNION SELECT *, NULL, NULL, NULL, NULL, NULL, NULL, NULL
        FROM unnest(%s::uuid[], %s::uuid[])
    )
    SELECT a.organization_id, a.project_id, a.held, a.unsettled, a.settled, a.live_holds,
           a.requests_per_minute, a.concurrency, a.rate_units, a.rate_at_us,
           p.archived_at IS NOT NULL, p.models, w.kind, w.was_unsettled, w.count, w.hold,
           w.settled, w.overage, w.overage_max
    FROM wanted w
    JOIN project_accounts a USING (organization_id, project_id)
    JOIN projects p ON p.organization_id = a.organization_id AND p.id = a.project_id
    ORDER BY w.kind DESC
    """,
)
# Where a fold's columns begin in `_PROJECTS_AND_FOLDS`.
_FOLD_AT = 12


async def write_states(connection: Connection, states: dict[OrganizationId, AccountState]) -> None:
    for statement in write_states_statements(states):
        await run_alone(connection, statement)


def write_states_statements(
    states: dict[OrganizationId, AccountState],
) -> tuple[BoundStatement, ...]:
    return (_WRITE_STATES.bind_texts(*_state_documents(states)), *caps.write_statements(states))


def write_holds_statements(
    process_id: UUID, holds: Sequence[Hold], accounts: LockedAccounts
) -> tuple[BoundStatement, ...]:
    """Writes locked accounts and reservations, and renews the process's lease. If others have
    declared it dead, registers it again: every hold belongs to a registered process."""
    groups = []
    for group, members in _groups(holds):
        group.holds = [*starmap(_OwnColumns, map(_own_values, members))]
        groups.append(group)
    process, states = b"%032x" % process_id.int, _state_documents(accounts.states)
    write_holds = _WRITE_HOLDS.bind_texts(
        *states, process, process, b"%d" % accounts.now_us, _encode(groups)
    )
    return (write_holds, *caps.write_statements(accounts.states))


def _groups(holds: Sequence[Hold]) -> Iterator[tuple[Any, list[Hold]]]:
    """By key, model and prices. A hold whose prices depend on its bounds is its own group."""
    for _, group in groupby(sorted(holds, key=_key), _sharing):
        members = [*group]
        parts = [[hold] for hold in members] if _has_own_prices(members[0]) else [members]
        for part in parts:
            shared = _HoldGroup(*_shared_values(part[0]))
            yield replace(shared, **_special_prices(part[0])), part


def _has_own_prices(hold: Hold) -> bool:
    """They depend on the hold's bounds."""
    return bool(hold.pricing.variants or hold.bounds.writes_images)


def _special_prices(hold: Hold) -> dict[str, Any]:
    """Those that aren't `hold.pricing`'s. If several prices are possible, the columns have the one
    it was computed with, and `price_variants` all."""
    if not _has_own_prices(hold):
        return {}
    return _price_columns(dearest_prices(hold.pricing, hold.bounds), hold.pricing)


@lru_cache(maxsize=_CACHED_PRICES_MAX)
def _price_columns(dearest: Pricing, all_prices: Pricing) -> dict[str, Any]:
    columns: dict[str, Any] = {
        column: getattr(dearest, name) for column, name in PRICE_COLUMNS.items()
    }
    has_other_prices = bool(all_prices.variants) or dearest != all_prices
    columns["price_variants"] = _variants(all_prices) if has_other_prices else None
    return columns


def _variants(pricing: Pricing) -> list[dict[str, Any]]:
    ordinary = {"service_tier": None, "from_tokens": 0, **_amounts(pricing)}
    return [
        ordinary,
        *(
            {
                "service_tier": variant.service_tier,
                "from_tokens": variant.from_tokens,
                **_amounts(variant.prices),
            }
            for variant in pricing.variants
        ),
    ]


def _amounts(prices: Pricing) -> dict[str, str]:
    return {name: str(getattr(prices, name)) for name in PRICE_NAMES}


def _state_documents(states: dict[OrganizationId, AccountState]) -> tuple[bytes, bytes]:
    accounts = [
        _AccountColumns(organization_id, *_account_values(state))
        for organization_id, state in states.items()
    ]
    projects = [
        _ProjectColumns(organization_id, project_id, *_project_values(project))
        for organization_id, state in states.items()
        for project_id, project in state.projects.items()
    ]
    return _encode(accounts), _encode(projects)


# Fields whose values become columns below, in that order.
_SPEND = {
    "held": "spend.held_picousd",
    "unsettled": "spend.unsettled_picousd",
    "settled": "spend.settled_picousd",
}
_ACCOUNT = {
    "available": "available_picousd",
    "overage": "overage_picousd",
    "stopped": "stopped",
    "overage_in_flight": "overage_in_flight_picousd",
    **_SPEND,
}
_PROJECT = {
    "live_holds": "live_holds",
    "rate_units": "rate_units",
    "rate_at_us": "rate_at_us",
    **_SPEND,
}
# What holds of the same key and model share, and the rest.
_SHARED = {
    "organization_id": "organization_id",
    "project_id": "project_id",
    "api_key_id": "key_id",
    "model": "model",
    **{column: f"pricing.{name}" for column, name in PRICE_COLUMNS.items()},
}
_OWN = {
    "hold": "hold_picousd",
    "overage_max": "overage_max_picousd",
    "prompt_tokens_max": "bounds.prompt_tokens",
    "choices": "bounds.choices",
    "output_tokens_max": "bounds.output_tokens_each",
    "images": "bounds.images",
    "web_searches": "bounds.web_searches",
    "input_audio_tokens_max": "bounds.input_audio_tokens",
    "output_audio_tokens_max": "bounds.output_audio_tokens_each",
}
# Become JSON objects, without the columns of a hold that are zero or unset.
_AccountColumns = msgspec.defstruct("_AccountColumns", ["organization_id", *_ACCOUNT], gc=False)
_ProjectColumns = msgspec.defstruct(
    "_ProjectColumns", ["organization_id", "project_id", *_PROJECT], gc=False
)
_OwnColumns = msgspec.defstruct(
    "_OwnColumns", ["id", *((name, int, 0) for name in _OWN)], omit_defaults=True, gc=False
)
_HoldGroup = msgspec.defstruct(
    "_HoldGroup",
    [*_SHARED, *((name, Any, None) for name in ("holds", "price_variants"))],
    omit_defaults=True,
    gc=False,
)


_account_values = attrgetter(*_ACCOUNT.values())
_project_values = attrgetter(*_PROJECT.values())
_shared_values = attrgetter(*_SHARED.values())
_own_values = attrgetter("id", *_OWN.values())
# A key belongs to one project of one organization. Integers compare faster than UUIDs.
_key = attrgetter("key_id.int")
_sharing = attrgetter(*("key_id.int", "model", "pricing", "bounds.writes_images"))

_STATES: LiteralString = """
    WITH written_accounts AS (
        UPDATE accounts a SET available = v.available, overage = v.overage, stopped = v.stopped,
            overage_in_flight = v.overage_in_flight, held = v.held, unsettled = v.unsettled,
            settled = v.settled
        FROM json_to_recordset(%s::json) AS v (organization_id uuid, available numeric,
            overage numeric, stopped boolean, overage_in_flight numeric, held numeric,
            unsettled numeric, settled numeric)
        WHERE a.organization_id = v.organization_id
    ), written_projects AS (
        UPDATE project_accounts a SET live_holds = v.live_holds, rate_units = v.rate_units,
            rate_at_us = v.rate_at_us, held = v.held, unsettled = v.unsettled, settled = v.settled
        FROM json_to_recordset(%s::json) AS v (organization_id uuid, project_id uuid,
            live_holds integer, rate_units bigint, rate_at_us bigint, held numeric,
            unsettled numeric, settled numeric)
        WHERE a.organization_id = v.organization_id AND a.project_id = v.project_id
    )
"""
_WRITE_STATES = Statement("tollkeeper_write_states", _STATES + "SELECT", returns_rows=False)
# `alive` is `processes.HEARTBEAT`, written out.
_WRITE_HOLDS = Statement(
    "tollkeeper_write_holds",
    _STATES
    + """
    , alive AS (
        INSERT INTO processes (id) VALUES (%s)
        ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()
    )
    INSERT INTO reservations (process_id, held_at, id, organization_id, project_id, api_key_id,
        model, price_prompt, price_completion, price_image, price_request, price_cache_read,
        price_cache_write, price_cache_write_1h, price_web_search, price_input_audio,
        price_output_audio, price_variants, hold, overage_max, prompt_tokens_max, choices,
        output_tokens_max, images, web_searches, input_audio_tokens_max, output_audio_tokens_max)
    SELECT %s::uuid, to_timestamp(%s::numeric / 1000000), h.id, organization_id, project_id,
        api_key_id, model, price_prompt, price_completion, price_image, price_request,
        price_cache_read, price_cache_write, price_cache_write_1h, price_web_search,
        price_input_audio, price_output_audio, price_variants, coalesce(h.hold, 0),
        coalesce(h.overage_max, 0), coalesce(h.prompt_tokens_max, 0), coalesce(h.choices, 0),
        coalesce(h.output_tokens_max, 0), coalesce(h.images, 0), coalesce(h.web_searches, 0),
        coalesce(h.input_audio_tokens_max, 0), coalesce(h.output_audio_tokens_max, 0)
    FROM json_to_recordset(%s::json) AS g (organization_id uuid, project_id uuid, api_key_id uuid,
            model text, price_prompt numeric, price_completion numeric, price_image numeric,
            price_request numeric, price_cache_read numeric, price_cache_write numeric,
            price_cache_write_1h numeric, price_web_search numeric, price_input_audio numeric,
            price_output_audio numeric, price_variants jsonb, holds json),
        json_to_recordset(g.holds) AS h (id uuid, hold numeric, overage_max numeric,
            prompt_tokens_max bigint, choices integer, output_tokens_max bigint, images integer,
            web_searches integer, input_audio_tokens_max bigint, output_audio_tokens_max bigint)
    """,
    returns_rows=False,
)


async def write_trial(connection: Connection, process_id: UUID, reservation_id: UUID) -> None:
    """Runs a hold's statements for an organization that doesn't exist, and an empty reservation for
    any project whose row isn't locked, so only a lock on a whole table makes it wait. Roll it
    back."""
    await connection.execute("SET LOCAL lock_timeout TO '1s'")
    nobody = (reservation_id.int,)
    for statement in (*lock_statements(nobody, nobody, nobody), *write_states_statements({})):
        await run_alone(connection, statement)
    await heartbeat(connection, process_id)
    await connection.execute(_TRIAL, (process_id, reservation_id, reservation_id))


_TRIAL: LiteralString = """
    INSERT INTO reservations (process_id, held_at, organization_id, id, project_id, api_key_id,
        model, hold, price_prompt, price_completion, price_image, price_request, price_cache_read,
        prompt_tokens_max, choices, output_tokens_max, images)
    SELECT %s, clock_timestamp(), organization_id, %s, project_id, %s, '', 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0
    FROM project_accounts LIMIT 1 FOR KEY SHARE SKIP LOCKED
"""


async def restore_holds(
    connection: Connection,
    process_id: UUID,
    holds: Sequence[Hold],
    *,
    time_from_id: bool = False,
) -> None:
    """Rewrites what the database lost after its commit, by a crash before it was on disk, or a
    failover. The hold is zero, as the money is no longer held, so the whole cost will be overage.
    Leaves existing rows alone. Locks the accounts. `time_from_id`: dated by the id (when the call
    arrived), not now."""
    groups = []
    for group, members in _groups(holds):
        # A hold must equal prices times limits, which are zero here. Nothing multiplies the price
        # per request, so it must be zero too.
        group.price_request = 0
        group.holds = [
            {"id": hold.id, "held_at_ms": time_ms_of_id(hold.id) if time_from_id else None}
            for hold in members
        ]
        groups.append(group)
    await connection.execute(
        _LOCK_ACCOUNTS.sql, (sorted({hold.organization_id for hold in holds}),)
    )
    await connection.execute(_RESTORE_HOLDS, (process_id, _encode(groups).decode()))


_RESTORE_HOLDS: LiteralString = (
    """
    WITH restored AS (
        INSERT INTO reservations (process_id, held_at, organization_id, id, project_id,
            api_key_id, model, hold, """
    + prices()
    + """, price_variants, prompt_tokens_max, choices,
            output_tokens_max, images)
        SELECT %s, least(clock_timestamp(), to_timestamp(h.held_at_ms / 1000)), g.organization_id,
            h.id, g.project_id, g.api_key_id, g.model, 0, """
    + prices("g.")
    + """,
            g.price_variants, 0, 0, 0, 0
        FROM json_to_recordset(%s::json) AS g (organization_id uuid, project_id uuid,
            api_key_id uuid, model text, """
    + prices(after=" numeric")
    + """, price_variants jsonb, holds json)
        JOIN accounts a USING (organization_id),
        LATERAL json_to_recordset(g.holds) AS h (id uuid, held_at_ms numeric)
        ON CONFLICT DO NOTHING
        RETURNING organization_id, project_id
    ), counted AS (
        SELECT organization_id, project_id, count(*) AS count FROM restored GROUP BY 1, 2
    )
    UPDATE project_accounts p SET live_holds = p.live_holds + c.count FROM counted c
    WHERE p.organization_id = c.organization_id AND p.project_id = c.project_id
    """
)
