"""The bugs between tenants that are planted, and the tests that must catch them. A table."""

from tests.proofs.bug import Bug

ROUTING = "backends/routing.py"
EJECTION = ("backends/test_ejection.py",)
TRANSCRIPT = "domain/transcript.py"
MARKERS = ("api/test_markers.py",)

ISOLATION_BUGS = {
    # Health.
    "the last healthy replica is ejected": Bug(
        ROUTING,
        "            is_last_healthy=not has_spare,\n",
        "            is_last_healthy=False,\n",
        EJECTION,
    ),
    "one organization ejects what others use": Bug(
        "backends/health.py",
        " and len(self._failed_for) >= needed:\n",
        ":\n",
        EJECTION,
    ),
    "a caller's own deadline ejects": Bug(
        ROUTING,
        "            if isinstance(error, DeadlineExceeded) and loop.time() >= self._deadline:\n",
        "            if isinstance(error, DeadlineExceeded) and self._deadline < 0:\n",
        EJECTION,
    ),
    # Turns.
    "who comes first is served until it is empty": Bug(
        "fair_queue.py",
        "            self._lanes.move_to_end(owner)\n",
        "            pass\n",
        ("services/test_fair_queue.py",),
    ),
    "one organization holds every slot": Bug(
        "fair_queue.py",
        "        return self._held.get(owner, 0) < self._owner_max\n",
        "        return True\n",
        ("services/test_fair_queue.py", "backends/transport/test_fair_connections.py"),
    ),
    "questions to the judge are answered in order of arrival": Bug(
        "services/policies/judge.py",
        "watching=asker.watching, organization=asker.organization_id",
        "watching=asker.watching",
        ("services/policies/test_judge_turns.py",),
    ),
    "holds are written in order of arrival": Bug(
        "services/ledger/hold_queue.py",
        "            owner=_organization,\n",
        "            owner=lambda wanted: None,\n",
        ("services/ledger/test_hold_queue.py",),
    ),
    "one organization fills the process": Bug(
        "services/calls/running_calls.py",
        " or own >= share(limit)",
        "",
        ("journeys/isolation/test_overload.py",),
    ),
    "one organization's callers that leave take the reading on from others": Bug(
        "services/calls/running_calls.py",
        " and self._read_on_of[owner] < share(limit)",
        "",
        ("services/calls/test_running_calls.py",),
    ),
    "one organization has all texts that are watched": Bug(
        "services/policies/watch_room.py",
        "            or texts[owner] >= share(texts_max)\n",
        "",
        ("services/policies/test_evidence.py",),
    ),
    "one organization uses up the connections to the database": Bug(
        "storage/database.py",
        "owner_max=max(1, slots // _ONE_ORGANIZATION_PART)",
        "owner_max=slots",
        ("storage/test_database.py",),
    ),
    "requests of a crowd begin all at once": Bug(
        "hosting/http_protocol.py",
        "        elif self._state.arrivals.take(self._owner) or self._is_refused_soon():\n",
        "        elif self._state.arrivals is not None:\n",
        ("hosting/test_arrivals.py",),
    ),
    "an owner has the whole turn beside others": Bug(
        "fair_turns.py",
        "        if taken >= self._owner_max and self._is_shared(owner):\n",
        "        if taken >= self._per_turn and self._is_shared(owner):\n",
        ("services/test_fair_turns.py",),
    ),
    "a call is sent for a caller that left while it waited": Bug(
        "services/calls/running_calls.py",
        "        if running.waits_to_be_sent:\n",
        "        if running.waits_to_be_sent and running.stopped:\n",
        ("journeys/isolation/test_backend_connections.py",),
    ),
    "a call that was never sent stays unsettled": Bug(
        "services/calls/inference.py",
        "            raise _ended_early(running, sent=backend_call.sent) from None\n",
        "            raise _ended_early(running, sent=True) from None\n",
        ("journeys/isolation/test_backend_connections.py",),
    ),
    "who is nobody known has as much of a turn as an organization": Bug(
        "fair_turns.py",
        "        self._taken.update(self._had_before)\n",
        "        pass\n",
        ("services/test_fair_turns.py",),
    ),
    "strangers wait behind a crowd from elsewhere": Bug(
        "hosting/arrivals.py",
        "        self._strangers.push(network_of(address), begin)\n",
        "        self._strangers.push(None, begin)\n",
        ("hosting/test_arrivals.py",),
    ),
    # Holds of texts that are written to mislead the estimate.
    "spaces between letters are free": Bug(
        "domain/estimate.py",
        "            weight += _RUN_OF_SPACES * runs\n",
        "            pass\n",
        ("domain/test_estimate.py",),
    ),
    "a word in one character is one character": Bug(
        "domain/estimate.py",
        "    added = added_bytes(text)\n",
        "    added = 0\n",
        ("domain/test_estimate.py",),
    ),
    "who pays by bytes is held by the estimate": Bug(
        "services/calls/inference.py",
        "        if size.searches_web or call.model.token_bounds.text_by_bytes:\n",
        "        if size.searches_web:\n",
        ("journeys/calls/test_text_bound.py",),
    ),
    "calls that nothing can pay for have no rate": Bug(
        "services/ledger/admission.py",
        "        self._refused_calls.use(project_id)\n",
        "        pass\n",
        ("journeys/isolation/test_rates.py",),
    ),
    "administration has no rate": Bug(
        "api/app.py",
        "            self._services.administration_rate.take(caller.organization_id, reading.key)\n",
        "            pass\n",
        ("journeys/isolation/test_administration.py",),
    ),
    "two policies take the last place": Bug(
        "storage/organizations.py",
        "WHERE id = %s FOR NO KEY UPDATE",
        "WHERE id = %s",
        ("journeys/isolation/test_administration.py",),
    ),
    "two keys take the last place": Bug(
        "storage/projects.py",
        "AND id = %s FOR NO KEY UPDATE",
        "AND id = %s FOR SHARE",
        ("journeys/isolation/test_administration.py",),
    ),
    "results of a flood are handed out first": Bug(
        "fair_turns.py",
        "        self._waiting.push(owner, (owner, give))\n",
        "        self._waiting.push(None, (owner, give))\n",
        ("services/test_fair_turns.py",),
    ),
    "a flood keeps its share beside the few calls of others": Bug(
        "services/overload.py",
        "            elif self._is_uneven:\n",
        "            elif self._limit < 0:\n",
        ("services/test_overload.py",),
    ),
    # What is seen.
    "keys are not judged": Bug(
        TRANSCRIPT,
        '            yield f"{key}: {text}" if key else text\n',
        "            yield text\n",
        MARKERS,
    ),
    "the choice of a tool is not judged": Bug(
        TRANSCRIPT,
        '        yield "tool_choice", list(_choice_texts(prompt.tool_choice))\n',
        '        yield "tool_choice", []\n',
        MARKERS,
    ),
    "a property hides another of the same name": Bug(
        "api/chat/messages.py",
        "    if extra.keys() & source.keys():\n",
        "    if not extra and not source:\n",
        MARKERS,
    ),
    "what no judge reads is let through": Bug(
        "services/policies/checks.py",
        "            if part.kind in self._denied_unread:\n",
        "            if part.kind in ():\n",
        ("services/policies/test_unread.py",),
    ),
    # Caches and addresses.
    "projects share a prefix cache": Bug(
        "api/isolated.py",
        "    if salt is None and model.isolates_cache:\n",
        "    if salt is None and model.shares_cache:\n",
        ("journeys/isolation/test_caches.py",),
    ),
    "a backend fetches what a caller names": Bug(
        "services/calls/options.py",
        "        if not model.allows_remote_media:\n",
        "        if not model.backend:\n",
        ("journeys/isolation/test_caches.py",),
    ),
}
