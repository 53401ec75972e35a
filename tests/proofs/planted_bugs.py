"""The bugs that are planted, and the tests that must catch them. A table."""

from tests.proofs.bug import Bug
from tests.proofs.planted_cap_bugs import CAP_BUGS
from tests.proofs.planted_isolation_bugs import ISOLATION_BUGS
from tests.proofs.planted_month_bugs import MONTH_BUGS

ADMISSION = "domain/admission.py"
SPEND = "domain/spend.py"
LEDGER = "services/ledger/ledger.py"
HOLD_QUEUE = "services/ledger/hold_queue.py"
STORE = "storage/ledger_store.py"
HISTORIES = ("proofs/test_simulation.py",)
CHARGED = ("journeys/calls/test_who_was_charged.py",)

BUGS = {
    # Money.
    "check-then-act": Bug(
        "storage/ledger.py",
        "FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id FOR UPDATE",
        "FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id",
        ("services/ledger/test_ledger.py",),
    ),
    "float money in code": Bug(
        "domain/pricing.py",
        "        prompt_price * bounds.prompt_tokens\n",
        "        float(prompt_price) * bounds.prompt_tokens\n",
        ("domain/test_pricing.py",),
    ),
    "float money in the database": Bug(
        "storage/migrations/versions/0002_ledger.py",
        "CREATE DOMAIN picousd AS numeric(38, 0);",
        "CREATE DOMAIN picousd AS double precision;",
        ("storage/test_constraints.py",),
    ),
    "negative usage is credited": Bug(
        "domain/usage.py",
        "or not 0 <= found <= COUNT_MAX",
        "or not found <= COUNT_MAX",
        ("domain/test_pricing.py",),
    ),
    # Dialects of usage.
    "the first report of usage counts": Bug(
        "domain/usage.py",
        "getattr(earlier, name) if value is None and",
        "getattr(earlier, name) if getattr(earlier, name) is not None and",
        ("backends/chat/test_usage.py",),
    ),
    "reasoning beside the completion is not charged": Bug(
        "domain/usage.py",
        "        completion = total - prompt\n",
        "        completion = report.completion_tokens or 0\n",
        ("backends/chat/test_usage.py",),
    ),
    "caches beside the prompt are not charged": Bug(
        "domain/usage.py",
        "    if report.cache_is_beside_prompt or cached > prompt:\n",
        "    if cached > prompt:\n",
        ("backends/chat/test_usage.py",),
    ),
    "one prompt of a fan-out is charged": Bug(
        "backends/fan_out.py",
        "        return call.choices\n",
        "        return 1\n",
        ("journeys/calls/test_usage.py",),
    ),
    "a tokenizer's count replaces the media": Bug(
        "domain/prompt_size.py",
        "            total += count * (tokens or 0)\n",
        "            total += count * (tokens or 0) if counted is None else 0\n",
        ("domain/test_prompt_size.py",),
    ),
    "cached tokens are held at the cheaper price": Bug(
        "domain/pricing.py",
        "    prompt_price = max(\n",
        "    prompt_price = min(\n",
        ("domain/test_pricing.py",),
    ),
    # How a call ends.
    "settlement in the request's task": Bug(
        LEDGER,
        "        return self._resolutions.submit(_FinishedCall(resolution, hold))\n",
        "        async def settle() -> bool:\n"
        "            [ending] = await self._store.resolve_all([resolution])\n"
        "            return ending is Ending.DONE\n\n"
        "        return asyncio.ensure_future(settle())\n",
        ("services/ledger/test_doubts.py",),
    ),
    "settlement given up when the database is away": Bug(
        LEDGER,
        "        endings = list(await _until_written(lambda: write(batch), len(batch)))\n",
        "        endings = list(await write(batch))\n",
        HISTORIES,
    ),
    "void on unknown outcome": Bug(
        "services/ledger/admission.py",
        "        await self._ledger.mark_unsettled(reservation.hold, reason)\n",
        "        await self.release(reservation)\n",
        HISTORIES,
    ),
    "the end of a stream is taken for its [DONE]": Bug(
        "backends/event_reader.py",
        """        self.fail(BackendFailed(ended, charged=True))
        return []
""",
        """        self.done = True
        return []
""",
        ("journeys/calls/test_faults.py",),
    ),
    # Who was charged.
    "a JSON answer that was cut is released": Bug(
        "backends/replica.py",
        "self._replica.config.body_bytes_max)\n"
        "        except HttpFailure as failure:\n"
        "            raise domain_error(failure, charged=True) from failure\n",
        "self._replica.config.body_bytes_max)\n"
        "        except HttpFailure as failure:\n"
        "            raise domain_error(failure, charged=False) from failure\n",
        CHARGED,
    ),
    "a JSON answer that is too large is released": Bug(
        "backends/replica.py",
        """"The backend's answer is too large.", charged=True""",
        """"The backend's answer is too large.", charged=False""",
        CHARGED,
    ),
    "a malformed answer is released": Bug(
        "backends/replica.py",
        """answer is malformed: {error}.", charged=True)""",
        """answer is malformed: {error}.", charged=False)""",
        CHARGED,
    ),
    "the usage of a malformed answer is lost": Bug(
        "backends/replica.py",
        "        if report is None:\n",
        "        if report is not None:\n",
        CHARGED,
    ),
    "a stream that was cut before its first piece is tried again": Bug(
        "backends/streamed_answer.py",
        "reader.fail(domain_error(failure, charged=True))",
        "reader.fail(domain_error(failure, charged=reader.accepted))",
        CHARGED,
    ),
    "a proxy's timeout is tried again": Bug(
        "backends/refusals.py",
        "StatusRule((408, 504, 524), True,",
        "StatusRule((408, 504, 524), False,",
        CHARGED,
    ),
    "an error beside output is released": Bug(
        "backends/chat/wire.py",
        "    if len(events) == 1:\n",
        "    if events:\n",
        CHARGED,
    ),
    "an abandoned JSON answer pays the prompt only": Bug(
        "services/calls/inference.py",
        "        if meter.delivered or meter.usage is not None or meter.reported_nonsense:\n",
        "        if meter.delivered or meter.usage is not None or running.abandoned:\n",
        CHARGED,
    ),
    "a caller ejects a replica": Bug(
        "backends/refusals.py",
        "        blameless=400 <= status < 500,\n",
        "        blameless=False,\n",
        ("backends/test_ejection.py",),
    ),
    "asynchronous settlement": Bug(
        STORE,
        "trips.run(FIND_ROWS_BY_KEY, resolutions",
        "trips.run(ledger.fast_transaction(None), resolutions",
        ("services/ledger/test_doubts.py",),
    ),
    "a reservation resolves twice": Bug(
        "storage/resolutions.py",
        "        ON CONFLICT DO NOTHING\n        RETURNING organization_id, reservation_id AS id, day",
        "        ON CONFLICT (organization_id, reservation_id) DO UPDATE SET day = excluded.day\n"
        "        RETURNING resolutions.organization_id, reservation_id AS id, resolutions.day",
        ("services/ledger/test_ledger.py",),
    ),
    "overage is forgotten": Bug(
        "storage/resolutions.py",
        "greatest(total - hold, 0)\n        FROM fresh",
        "0\n        FROM fresh",
        ("services/ledger/test_ledger.py",),
    ),
    "a hold that the database lost is not charged": Bug(
        LEDGER,
        "    if ending is not Ending.MISSING or call.hold is None:\n",
        "    if ending is not Ending.MISSING or call.hold is not None:\n",
        ("proofs/test_simulation.py", "services/ledger/test_doubts.py"),
    ),
    # Holds that nobody took.
    "the hold of a caller who left stays": Bug(
        LEDGER,
        "            wanted.is_abandoned = True\n",
        "            pass\n",
        HISTORIES,
    ),
    "a hold in doubt stays": Bug(
        LEDGER,
        "                self._in_doubt.submit(hold)\n",
        "                self._open.discard(hold.id.int)\n",
        HISTORIES,
    ),
    "a hold in doubt is taken for a failed one": Bug(
        STORE,
        "        self.commit_sent = True\n",
        "",
        ("services/ledger/test_doubts.py",),
    ),
    "a hold in doubt is released before it is there": Bug(
        STORE,
        "            await resolutions.lock_account("
        "connection, *{hold.organization_id for hold in holds})\n",
        "",
        ("services/ledger/test_doubts.py",),
    ),
    "a hold in doubt is simply made again": Bug(
        LEDGER,
        "        except Contention:\n",
        "        except (Contention, CommitInDoubt):\n",
        HISTORIES,
    ),
    "one spoils the batch for everybody": Bug(
        "services/ledger/group_writer.py",
        "            if len(items) == 1:\n",
        "            if len(items) >= 1:\n",
        ("services/ledger/test_group_writer.py", "services/ledger/test_ledger.py"),
    ),
    "a locked organization blocks everybody": Bug(
        HOLD_QUEUE,
        "            return await self._write(wanted, lock_wait_s=_LOCK_WAIT_S)\n",
        "            return await self._write(wanted, lock_wait_s=None)\n",
        ("services/ledger/test_ledger.py",),
    ),
    "a hold reads whole tables": Bug(
        "storage/ledger.py",
        "    + ROWS_BY_KEY,\n",
        "    + \"set_config('plan_cache_mode', 'force_generic_plan', true)\",\n",
        ("storage/test_plans.py",),
    ),
    "nobody hears that the writer was stopped": Bug(
        "services/ledger/group_writer.py",
        '        _fail(results, Unavailable("The gateway is shutting down."))\n',
        "",
        ("services/ledger/test_group_writer.py",),
    ),
    # Recovery.
    "the sweep judges without waiting": Bug(
        "services/ledger/recovery.py",
        "range(_HEARTBEATS_OBSERVED if gone else 0)",
        "range(0)",
        ("services/ledger/test_recovery.py",),
    ),
    "the sweep forgets a process that lives": Bug(
        "storage/processes.py",
        '"DELETE FROM processes WHERE id = %s AND heartbeat_at = %s", (process_id, heartbeat_at)',
        '"DELETE FROM processes WHERE id = %s AND %s IS NOT NULL", (process_id, heartbeat_at)',
        ("services/ledger/test_recovery.py",),
    ),
    "the sweep marks without the account's lock": Bug(
        "storage/resolutions.py",
        "ORDER BY organization_id FOR UPDATE",
        "ORDER BY organization_id",
        ("services/ledger/test_unsettled_marks.py",),
    ),
    "the sweep takes what is resolved": Bug(
        "storage/resolutions.py",
        "              AND NOT EXISTS (\n"
        "                  SELECT FROM resolutions d\n"
        "                  WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)\n",
        "",
        ("services/ledger/test_unsettled_marks.py",),
    ),
    "a hold without its process": Bug(
        "storage/ledger.py",
        '", alive AS (" + HEARTBEAT + ")"',
        '", alive AS (SELECT %s::uuid)"',
        ("services/ledger/test_recovery.py",),
    ),
    # Recovery and what is unsettled, many at a time.
    "recovery only looks a day back": Bug(
        "services/ledger/open_holds.py",
        "        for organization_id in search.incomplete:\n",
        "        for organization_id in set():\n",
        ("services/ledger/test_recovery.py",),
        also=(("_SEARCH_S = 3600\n", "_SEARCH_S = 86_400\n"),),
    ),
    "recovery only looks at registered processes": Bug(
        "services/ledger/recovery.py",
        "unregistered_too=True",
        "unregistered_too=False",
        ("services/ledger/test_recovery.py",),
    ),
    "a hold whose end was lost stays held": Bug(
        "services/ledger/recovery.py",
        "[hold for hold in found if self._own.has_forgotten(hold)]",
        "[hold for hold in found if not self._own]",
        ("services/ledger/test_recovery.py",),
    ),
    "a hold that was committed this moment is taken for forgotten": Bug(
        "services/ledger/recovery.py",
        "[hold for hold in forgotten if hold.id in self._forgotten_before]",
        "list(forgotten)",
        ("services/ledger/test_recovery.py",),
    ),
    "a live process that is not registered is taken for dead": Bug(
        "services/ledger/recovery.py",
        "(found in unregistered if at is None",
        "(True if at is None",
        ("services/ledger/test_recovery.py",),
    ),
    "a bulk resolution takes holds of live processes": Bug(
        "storage/unsettled.py",
        "    FROM unsettled_marks m\n",
        "    FROM (SELECT organization_id, id AS reservation_id, held_at AS marked_at,\n"
        "                 'unknown' AS reason FROM reservations) m\n",
        ("services/ledger/test_bulk_resolution.py",),
    ),
    "a bulk resolution takes what is too young": Bug(
        "storage/unsettled.py",
        "OR m.marked_at < %(marked_before)s)",
        "OR r.held_at < %(marked_before)s)",
        ("services/ledger/test_bulk_resolution.py",),
    ),
    "a bulk resolution skips what is behind its first page": Bug(
        "services/ledger/bulk_resolution.py",
        "            after = page[-1][0]\n",
        "            return Resolved(resolved, hold_picousd)\n",
        ("services/ledger/test_bulk_resolution.py",),
    ),
    # The decision.
    "a revoked key is admitted": Bug(
        ADMISSION,
        "    if status is not KeyStatus.ACTIVE:\n",
        "    if status is None:\n",
        ("domain/test_decide.py",),
    ),
    "an archived project is admitted": Bug(
        ADMISSION,
        "    if project.archived:\n",
        "    if project.archived and project.live_holds:\n",
        ("domain/test_decide.py",),
    ),
    "a negative balance admits free calls": Bug(
        ADMISSION,
        "    if request.hold_picousd <= working.available and working.available >= 0:\n",
        "    if request.hold_picousd <= max(0, working.available):\n",
        ("domain/test_decide.py",),
    ),
    "unsettled holds do not count for a cap": Bug(
        SPEND,
        "        return self.held_picousd + self.unsettled_picousd + self.settled_picousd\n",
        "        return self.held_picousd + self.settled_picousd\n",
        ("domain/test_decide.py",),
    ),
    "the month goes back with the clock": Bug(
        SPEND,
        "        if month <= self.month:\n",
        "        if month == self.month:\n",
        ("domain/test_decide.py",),
    ),
    "a clock that trembles refills twice": Bug(
        ADMISSION,
        "    at_us = project.rate_at_us if -_US_PER_MINUTE <= elapsed < 0 else now_us\n",
        "    at_us = now_us\n",
        ("domain/test_decide.py",),
    ),
    "concurrency is off by one": Bug(
        ADMISSION,
        "    if project.live_holds < project.concurrency:\n",
        "    if project.live_holds <= project.concurrency:\n",
        ("domain/test_decide.py",),
    ),
    "what is unsettled is counted twice": Bug(
        SPEND,
        "        from_held = 0 if fold.was_unsettled else fold.hold_picousd\n",
        "        from_held = fold.hold_picousd\n",
        ("domain/test_folds.py",),
    ),
    "the rest of a hold never comes back": Bug(
        ADMISSION,
        "            refund = fold.hold_picousd - fold.settled_picousd - fold.overage_picousd\n",
        "            refund = -fold.overage_picousd\n",
        ("domain/test_folds.py",),
    ),
    **CAP_BUGS,
    **MONTH_BUGS,
    **ISOLATION_BUGS,
}
