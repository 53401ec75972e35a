"""Lists the planted bugs and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug
from tests.proofs.planted_cap_bugs import CAP_BUGS
from tests.proofs.planted_isolation_bugs import ISOLATION_BUGS
from tests.proofs.planted_month_bugs import MONTH_BUGS
from tests.proofs.planted_payment_bugs import PAYMENT_BUGS

HISTORIES = ("proofs/test_simulation.py",)
CHARGED = ("journeys/calls/test_who_was_charged.py",)

BUGS = {
    # Bugs in amounts of money.
    "check-then-act": SqlBug(
        "_LOCK_ACCOUNTS",
        "FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id FOR UPDATE",
        "FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id",
        ("money/holds/test_ledger.py",),
    ),
    "float money in code": Bug(
        "hold_at",
        "prices.dearest_input * bounds.prompt_tokens",
        "float(prices.dearest_input) * bounds.prompt_tokens",
        ("core/test_pricing.py",),
    ),
    "float money in the database": SqlBug(
        "0100_schema:_SQL",
        "CREATE DOMAIN picousd AS numeric(38, 0);",
        "CREATE DOMAIN picousd AS double precision;",
        ("database/test_constraints.py",),
    ),
    "a negative amount is stored beside a positive one": SqlBug(
        "0100_schema:_SQL",
        "project_accounts_not_negative CHECK (least(",
        "project_accounts_not_negative CHECK (greatest(",
        ("database/test_constraints.py",),
    ),
    "negative usage is credited": Bug(
        "usage:read_count",
        "0 <= found <= COUNT_MAX",
        "found <= COUNT_MAX",
        ("core/test_pricing.py",),
        also=(("core.usage:Count", "ge=0", ""),),
    ),
    # Bugs in reading and bounding token counts.
    "the first report of usage counts": Bug(
        "merged",
        "value is None",
        "getattr(earlier, name) is not None",
        ("providers/chat/test_usage.py",),
    ),
    "reasoning beside the completion is not charged": Bug(
        "usage:_read_as",
        "completion = total - prompt",
        "completion = report.completion_tokens or 0",
        ("providers/chat/test_usage.py",),
    ),
    "caches beside the prompt are not charged": Bug(
        "possible_usages",
        "if report.cache_adds_to_prompt or max(read, written) > prompt:",
        "if max(read, written) > prompt:",
        ("providers/chat/test_usage.py",),
    ),
    "one prompt of a fan-out is charged": Bug(
        "FanOutBackend.prompts_sent",
        "return call.choices",
        "return 1",
        ("journeys/calls/test_usage.py",),
    ),
    "a failed part of a fan-out stops the others": Bug(
        "_FanOutCall._fail",
        "not part.sent and part.task is not asyncio.current_task()",
        "part.task is not asyncio.current_task()",
        ("providers/test_fan_out.py",),
    ),
    "one unknown part of a fan-out makes the whole call an estimate": Bug(
        "Meter.set_parts",
        "any(part.prompt_is_unknown for part in parts)",
        "any(part.usage is None for part in parts)",
        ("providers/test_fan_out.py",),
    ),
    "a part of a fan-out of which nothing was received is free": Bug(
        "Meter.set_parts",
        "received += [part._estimate(longest_output) for part in unseen]",
        "",
        ("providers/test_fan_out.py",),
    ),
    "a tokenizer's count replaces the media": Bug(
        "PromptSize.bound",
        "total += count * (tokens or 0)",
        "total += count * (tokens or 0) if counted is None else 0",
        ("core/test_prompt_size.py",),
    ),
    "cached tokens are held at the cheaper price": Bug(
        "Pricing.__post_init__",
        "max(self.prompt, self.input_cache_read, self.input_cache_write,"
        " self.input_cache_write_1h)",
        "min(self.prompt, self.input_cache_read, self.input_cache_write,"
        " self.input_cache_write_1h)",
        ("core/test_pricing.py",),
    ),
    # Bugs at the end of a call.
    "settlement in the request's task": Bug(
        "Ledger.resolve",
        "return self._resolutions.submit(_FinishedCall(resolution, hold))",
        "async def settle() -> bool:\n"
        "    [ending] = await self._store.resolve_all([resolution])\n"
        "    return ending is Ending.DONE\n"
        "\n"
        "return asyncio.ensure_future(settle())",
        ("money/unsettled/test_doubts.py",),
    ),
    "settlement given up when the database is away": Bug(
        "Ledger._write_finished",
        "endings = list(await _until_written(lambda: write(outcomes), len(batch)))",
        "endings = list(await write(outcomes))",
        HISTORIES,
    ),
    "settlement given up when a result is cut off": Bug(
        "round_trips:_wait",
        "loop.remove_reader(descriptor)",
        "pass",
        ("database/test_round_trips.py",),
    ),
    "void on unknown outcome": Bug(
        "Admission.leave_unsettled",
        "return self._ledger.mark_unsettled(tab.hold, reason)",
        "return self.release(tab)",
        HISTORIES,
    ),
    "the end of a stream is taken for its [DONE]": Bug(
        "StreamReader.end_body",
        "self.fail(failure)\nreturn []",
        "self.done = True\nreturn []",
        ("journeys/calls/test_faults.py",),
    ),
    # Bugs in the decision whether a failed call is charged.
    "a JSON answer that was cut is released": Bug(
        "RoutedBackend._try",
        "charged=receiver.sent",
        "charged=False",
        CHARGED,
    ),
    "a JSON answer that is too large is released": Bug(
        "failures:domain_error",
        'return BackendFailed("The backend\'s answer is too large.", charged=charged,'
        " may_be_client_fault=True)",
        'return BackendFailed("The backend\'s answer is too large.", charged=False,'
        " may_be_client_fault=True)",
        CHARGED,
    ),
    "a malformed answer is released": Bug(
        "routing:_read_malformed",
        "charged=True",
        "charged=False",
        CHARGED,
    ),
    "the usage of a malformed answer is lost": Bug(
        "routing:_read_malformed",
        "if report is None:",
        "if report is not None:",
        CHARGED,
    ),
    "a stream that was cut before its first piece is tried again": Bug(
        "StreamedAnswer._read",
        "reader.fail(domain_error(failure, charged=True))",
        "reader.fail(domain_error(failure, charged=reader.accepted))",
        CHARGED,
    ),
    "a proxy's timeout is tried again": Bug(
        "STATUS_RULES",
        "(408, 504, 524), True",
        "(408, 504, 524), False",
        CHARGED,
    ),
    "an error beside output is released": Bug(
        "_failed_answer",
        "if len(events) == 1:",
        "if events:",
        CHARGED,
    ),
    "an abandoned JSON answer pays the prompt only": Bug(
        "_charge_of_failed",
        "meter.has_begun or meter.usage is not None or meter.reported_impossible_usage",
        "meter.has_begun or meter.usage is not None or tab.abandoned",
        CHARGED,
    ),
    "a caller ejects a replica": Bug(
        "refusals:_failed",
        "may_be_client_fault=400 <= status < 500",
        "may_be_client_fault=False",
        ("providers/test_ejection.py",),
    ),
    "asynchronous settlement": Bug(
        "money.holds.store:LedgerStore.resolve_all",
        "await trips.run(*statements)",
        "(await trips.run(ledger.COMMIT_ASYNCHRONOUSLY, *statements))[1:]",
        ("money/unsettled/test_doubts.py",),
    ),
    "a batch is given up if another process has resolved one of its calls": Bug(
        "LedgerStore.resolve_all",
        "raise Contention from exc",
        "return [Ending.ALREADY_ENDED] * len(batch)",
        ("money/holds/test_ledger.py",),
    ),
    "overage is forgotten": SqlBug(
        "_RESOLVE",
        "greatest(total - hold, 0) FROM fresh",
        "0 FROM fresh",
        ("money/holds/test_ledger.py",),
    ),
    "a hold that the database lost is not charged": Bug(
        "Ledger._write_lost",
        "ending is Ending.MISSING and call.hold is not None",
        "ending is Ending.MISSING and call.hold is None",
        ("proofs/test_simulation.py", "money/unsettled/test_doubts.py"),
    ),
    # Bugs in abandoned holds, holds in doubt and batches.
    "the hold of a caller who left stays": Bug(
        "Holds._note_committed",
        "if waiting.done() and decision.refusal is None:",
        "if waiting is None:",
        HISTORIES,
    ),
    "a hold in doubt stays": Bug(
        "Ledger._note_in_doubt",
        "self._in_doubt.submit(hold)",
        "self._open.discard(hold.id.int)",
        HISTORIES,
    ),
    "a hold in doubt is taken for a failed one": Bug(
        "money.holds.store:HoldTransaction.write",
        "self.commit_sent = True",
        "",
        ("money/unsettled/test_doubts.py",),
    ),
    "a hold in doubt is released before it is there": Bug(
        "money.holds.store:LedgerStore.release_in_doubt",
        "await lock_account_rows(connection, *{hold.organization_id for hold in holds})",
        "",
        ("money/unsettled/test_doubts.py",),
    ),
    "a hold in doubt is simply made again": Bug(
        "Holds._hold_waiting",
        "except Contention as exc:",
        "except (Contention, CommitInDoubt) as exc:",
        HISTORIES,
    ),
    "a bad record of activity takes its batch along": Bug(
        "Batches._write_parts",
        "if len(part) > 1:",
        "if len(part) > len(batch):",
        ("core/runtime/test_batches.py", "reports/test_activity.py"),
    ),
    "a record of activity that is written again is counted again": SqlBug(
        "_INSERT_MISSING",
        "ON CONFLICT DO NOTHING RETURNING *)",
        "ON CONFLICT (organization_id, request_id, started_at) DO UPDATE SET streamed = true"
        " RETURNING *)",
        ("reports/test_rollups.py",),
    ),
    "a record of activity that is written again is given up": Bug(
        "reports.activity.store:insert",
        "except pg.UniqueViolation:",
        "except pg.ForeignKeyViolation:",
        ("reports/test_activity.py",),
    ),
    "one invalid item fails its whole batch": Bug(
        "writing",
        "if len(batch) == 1:",
        "if len(batch) >= 1:",
        ("money/holds/test_group_writer.py", "money/holds/test_ledger.py"),
    ),
    "a locked organization blocks all others": Bug(
        "Holds._hold_waiting",
        "_LOCK_WAIT_S if is_common else None",
        "None",
        ("money/holds/test_ledger.py",),
    ),
    "a hold reads whole tables": Bug(
        "KeptConnections.take",
        "await connection.execute(PREFER_INDEX_LOOKUPS)",
        'await connection.execute("SET plan_cache_mode TO force_generic_plan")',
        ("database/test_plans.py",),
    ),
    "a report is planned like a hold": Bug(
        "Database._connection",
        "await connection.execute(PLAN_NORMALLY)",
        "",
        ("database/test_plans.py", "database/test_kept_connections.py"),
    ),
    "the ledger uses connections that the server has closed": Bug(
        "KeptConnections.take",
        "(connection := self._idle.pop()).is_lost()",
        "(connection := self._idle.pop()).closed",
        ("database/test_kept_connections.py",),
    ),
    "requests use connections that the server has closed": Bug(
        "_take",
        "(connection := await pool.getconn()).is_lost()",
        "(connection := await pool.getconn()).closed",
        ("database/test_kept_connections.py",),
    ),
    "a pause of the process closes its connections": Bug(
        "WatchedConnection.start_watch",
        "self._watch_again",
        "self.hang_up",
        ("database/test_kept_connections.py",),
    ),
    "the settlement of a long call reads all calls since its start": SqlBug(
        "_RESOLVE",
        "r.organization_id = g.organization_id AND r.id = g.id",
        "r.organization_id = g.organization_id AND r.id::text = g.id::text",
        ("database/test_plans.py",),
    ),
    "callers are not told that the writer was stopped": Bug(
        "GroupQueue._run",
        'self.fail(waiting, Unavailable("The gateway is shutting down."))',
        "",
        ("money/holds/test_group_writer.py",),
    ),
    # Bugs after a failover, and in the recovery of dead processes.
    "an old primary is as good as the promoted server": Bug(
        "Rank.is_newer_than",
        "self.is_same_database(other) and self.timeline > other.timeline",
        "self.is_same_database(other)",
        ("database/test_fence.py",),
    ),
    "a copy on the same timeline is the server itself": Bug(
        "Rank.is_same",
        "_are_equal_if_known(self.history, other.history)",
        "True",
        ("database/test_fence.py",),
    ),
    "a file of another version is forgotten": Bug(
        "Fence._read_saved",
        'self._saved["newest"][: len(Rank._fields)]',
        'self._saved["newest"]',
        ("database/test_fence.py",),
    ),
    "a dump beside the original is the original": SqlBug(
        "_IDENTIFY",
        "(SELECT oid::bigint FROM pg_database WHERE datname = current_database())",
        "0::bigint",
        ("database/test_fence.py",),
    ),
    "connections to an old primary stay open": Bug(
        "Fence._close_connections",
        "connection.hang_up()",
        "",
        ("database/test_fence.py",),
    ),
    "the sweep judges without waiting": Bug(
        "Recovery._observe",
        "range(_HEARTBEATS_OBSERVED if suspects else 0)",
        "range(0)",
        ("money/unsettled/test_recovery.py",),
    ),
    "the sweep forgets a process that lives": SqlBug(
        "forget_dead",
        "heartbeat_at = %s",
        "%s IS NOT NULL",
        ("money/unsettled/test_recovery.py",),
    ),
    "the sweep marks without the account's lock": SqlBug(
        "lock_account_rows",
        "ORDER BY organization_id FOR UPDATE",
        "ORDER BY organization_id",
        ("money/unsettled/test_unsettled_marks.py",),
    ),
    "the sweep marks resolved holds": SqlBug(
        "mark_unsettled",
        "AND NOT EXISTS ( SELECT FROM resolutions d WHERE d.organization_id = r.organization_id AND"
        " d.reservation_id = r.id)",
        "",
        ("money/unsettled/test_unsettled_marks.py",),
    ),
    "a hold without its process": SqlBug(
        "_WRITE_HOLDS",
        "INSERT INTO processes (id) VALUES (%s)"
        " ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()",
        "SELECT %s::uuid",
        ("money/unsettled/test_recovery.py",),
    ),
    # Bugs in recovery, and in the resolution of many unsettled calls.
    "recovery only looks a day back": Bug(
        "OpenHolds.find_all",
        "for organization_id in search.incomplete:",
        "for organization_id in set():",
        ("money/unsettled/test_recovery.py",),
        also=(("_SEARCH_S", "3600", "86_400"),),
    ),
    "recovery only looks at registered processes": Bug(
        "Recovery.ledger_recover",
        "unregistered_too=True",
        "unregistered_too=False",
        ("money/unsettled/test_recovery.py",),
    ),
    "a hold whose end was lost stays held": Bug(
        "Recovery._mark_forgotten",
        "[hold for hold in open_holds if self._own.has_forgotten(hold)]",
        "[hold for hold in open_holds if not self._own]",
        ("money/unsettled/test_recovery.py",),
    ),
    "a hold that was committed this moment is taken for forgotten": Bug(
        "Recovery._mark_forgotten",
        "[hold for hold in forgotten if hold.id in self._forgotten_before]",
        "list(forgotten)",
        ("money/unsettled/test_recovery.py",),
    ),
    "a live process that is not registered is taken for dead": Bug(
        "Recovery._observe",
        "process_id in unregistered",
        "True",
        ("money/unsettled/test_recovery.py",),
    ),
    "a bulk resolution takes holds of live processes": SqlBug(
        "money.unsettled.store:_SELECTED",
        "FROM unsettled_marks m",
        "FROM (SELECT organization_id, id AS reservation_id, held_at AS marked_at, 'unknown' AS"
        " reason FROM reservations) m",
        ("money/unsettled/test_bulk_resolution.py",),
    ),
    "a bulk resolution takes holds that are too young": SqlBug(
        "money.unsettled.store:_SELECTED",
        "OR m.marked_at < %(marked_before)s)",
        "OR r.held_at < %(marked_before)s)",
        ("money/unsettled/test_bulk_resolution.py",),
    ),
    "a bulk resolution skips the holds after its first page": Bug(
        "BulkResolution.ledger_resolve_all",
        "after = page[-1][0]",
        "return Resolved(resolved, hold_picousd)",
        ("money/unsettled/test_bulk_resolution.py",),
    ),
    # Bugs in the admission decision.
    "a revoked key is admitted": Bug(
        "AccountBatch.__init__",
        "status is KeyStatus.ACTIVE",
        "status is not None",
        ("money/holds/test_decide.py",),
    ),
    "an archived project is admitted": Bug(
        "AccountBatch._refuse_by_restrictions",
        "if project.archived:",
        "if project.archived and project.live_holds:",
        ("money/holds/test_decide.py",),
    ),
    "a negative balance admits free calls": Bug(
        "AccountBatch.decide",
        "if amount > available:",
        "if amount > max(0, available):",
        ("money/holds/test_decide.py",),
    ),
    "a clock that trembles refills twice": Bug(
        "_refill_rate",
        "at_us = project.rate_at_us if -_US_PER_MINUTE <= elapsed < 0 else now_us",
        "at_us = now_us",
        ("money/holds/test_decide.py",),
    ),
    "concurrency is off by one": Bug(
        "_BatchProject.__init__",
        "state.concurrency - state.live_holds",
        "state.concurrency - state.live_holds + 1",
        ("money/holds/test_decide.py",),
    ),
    "unsettled holds are counted twice": Bug(
        "Spend.folded",
        "from_held = 0 if fold.was_unsettled else fold.hold_picousd",
        "from_held = fold.hold_picousd",
        ("money/holds/test_folds.py",),
    ),
    "the rest of a hold never comes back": Bug(
        "AccountState.folded",
        "refund = fold.hold_picousd - fold.settled_picousd - fold.overage_picousd",
        "refund = -fold.overage_picousd",
        ("money/holds/test_folds.py",),
    ),
    **CAP_BUGS,
    **MONTH_BUGS,
    **PAYMENT_BUGS,
    **ISOLATION_BUGS,
}
