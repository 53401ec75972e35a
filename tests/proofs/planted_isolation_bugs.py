"""Lists planted bugs that break the isolation of tenants, and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug

EJECTION = ("providers/test_ejection.py",)
ALLOWED_MODELS = ("journeys/calls/test_allowed_models.py",)
MARKERS = ("faces/test_markers.py",)
CONSOLE_CONNECTIONS = ("console/test_connections.py",)
CONSOLE = ("console/test_security.py",)
POLICIES = ("faces/organization/test_policies.py",)
PROVIDER_WORDS = ("core/test_provider_words.py",)
JUDGED_TURNS = ("providers/test_judged_turns.py",)

ISOLATION_BUGS = {
    "a new connection gets the headers, and the key, of another connection": Bug(
        "RequestParser.parse_known",
        "self._known.get((before, after))",
        "next(iter(self._known.values()), None)",
        ("journeys/calls/test_repeated_heads.py",),
    ),
    "of two different keys in one request, one is picked": Bug(
        "presented_key",
        "len(keys) > 1",
        "len(keys) > 2",
        ("faces/test_authorization.py",),
    ),
    "beyond its rate, a revoked key passes as valid": Bug(
        "App._answer",
        "await self._authenticate(context)",
        "context.cached_key.caller if context.cached_key else await self._authenticate(context)",
        ("journeys/isolation/test_rates.py",),
    ),
    "a report adds up the calls of every organization": Bug(
        "filters",
        "conditions.append(f'{name} = %({name})s')",
        "conditions.append(f'%({name})s::text IS NOT NULL')",
        ("reports/test_rollups.py",),
    ),
    # Bugs in the lists of allowed models.
    "the list of a key is not read at admission": Bug(
        "money.holds.statements:locked_accounts",
        "if models:",
        "if models is True:",
        ALLOWED_MODELS,
    ),
    "the list of a project is not read at admission": Bug(
        "account_rows:project_of",
        "models=tuple(row[11] or ())",
        "",
        ALLOWED_MODELS,
    ),
    "prompts of models that are not allowed are counted": Bug(
        "TokenCounting.count",
        "if not caller.may_use(call.model.id):",
        "if False:",
        ALLOWED_MODELS,
    ),
    "the tokenizer gets prompts of models that are not allowed": Bug(
        "could_admit",
        "model=model_id",
        "model=(models or key_models or ('',))[0]",
        ALLOWED_MODELS,
    ),
    "a rotated key may use every model": Bug(
        "ProjectKeys.project_key_rotate",
        "models=old.models",
        "",
        ALLOWED_MODELS,
    ),
    # Bugs in the ejection of replicas.
    "the last healthy replica is ejected": Bug(
        "RoutedBackend._failed",
        "is_last_healthy=not has_spare",
        "is_last_healthy=False",
        EJECTION,
    ),
    "one organization ejects a replica that others use": Bug(
        "ReplicaHealth.failed",
        "len(self._failed_for) >= needed",
        "True",
        EJECTION,
    ),
    "a caller's own deadline ejects": Bug(
        "RoutedBackend._note_failure",
        "if is_late and now >= deadline:",
        "if is_late and deadline < 0:",
        EJECTION,
    ),
    # Bugs in connections to backends.
    "a connection with half a request is used again": Bug(
        "Connection.on_message_complete",
        "self._parser.should_keep_alive() and self._unsent is None"
        " and not any(map(_unwritten_bytes, self._transports))",
        "self._parser.should_keep_alive()",
        ("providers/transport/test_connections.py",),
    ),
    # Bugs in fair queues and in limits for each organization.
    "the first owner is served until its lane is empty": Bug(
        "FairQueue.pop",
        "self._lanes.move_to_end(owner)",
        "pass",
        ("core/runtime/test_fair_queue.py",),
    ),
    "one organization holds every slot": Bug(
        "FairSlots._may_hold",
        "return self._held.get(owner, 0) < self._owner_max",
        "return True",
        ("core/runtime/test_fair_queue.py", "providers/transport/test_fair_connections.py"),
    ),
    "questions to the judge are answered in order of arrival": Bug(
        "Judge._ask_or_split",
        "organization=asker.organization_id",
        "",
        ("policies/test_judge_turns.py",),
    ),
    "holds are written in order of arrival": Bug(
        "Holds.__init__",
        "owner=_organization",
        "owner=lambda hold: None",
        ("money/holds/test_holds.py",),
    ),
    "one organization fills the process": Bug(
        "RunningCalls.begin",
        "calls.running >= self._calls_of_owner_max",
        "False",
        ("journeys/isolation/test_overload.py",),
    ),
    "disconnects of one organization use up the limit for reading answers on": Bug(
        "_Drains.take_place",
        "taken_by_owner >= self._places_of_owner",
        "False",
        ("calls/test_running_calls.py",),
    ),
    "one organization has all answers that are read until their deadline": Bug(
        "RunningCalls.__init__",
        "-(-limits.long_drains_max // 4)",
        "limits.long_drains_max",
        ("journeys/calls/test_billed_to_end.py",),
    ),
    "one organization has all texts that are watched": Bug(
        "BackgroundTextLimits.take",
        "texts[owner] >= share(texts_max)",
        "False",
        ("policies/test_evidence.py",),
    ),
    "one organization uses up the connections to the database": Bug(
        "Database.__init__",
        "owner_max=max(1, slots // _ONE_ORGANIZATION_DIVISOR)",
        "owner_max=slots",
        ("database/test_database.py",),
    ),
    "organizations take all of the room for bodies": Bug(
        "RequestShare._require_room",
        "if organization_bytes > free:",
        "if free < 0:",
        ("http/test_bounds.py",),
    ),
    "a declared body takes room before it arrives": Bug(
        "faces.request:read_body",
        "share.grow_to(max(size, _FIRST_SHARE_BYTES))",
        "share.grow_to(max(exchange.body_bytes, _FIRST_SHARE_BYTES))",
        ("http/test_bounds.py",),
    ),
    "connections without a key keep others out": Bug(
        "ConnectionLimit._close_any",
        "if self._close_one(self._without_key, self._close_if_idle):",
        "if self._close_one({}, self._close_if_idle):",
        ("core/runtime/test_connection_limit.py",),
    ),
    "requests that wait for their turn keep others out": Bug(
        "ConnectionLimit._close_any",
        "return self._close_one(largest, self._close_if_waiting)",
        "return False",
        ("core/runtime/test_connection_limit.py",),
    ),
    "requests of a crowd begin all at once": Bug(
        "HttpConnection.buffer_updated",
        "if self._state.arrivals.take(self.owner):",
        "if self._state.arrivals is not None:",
        ("http/test_arrivals.py",),
    ),
    "an overloaded process begins all requests that it does not reject at once": Bug(
        "Arrivals.probably_rejects",
        "not self.turns.exceeds(owner)",
        "True",
        ("journeys/isolation/test_overload.py",),
    ),
    "an owner has the whole turn beside others": Bug(
        "FairTurns.take",
        "if used.count(owner) >= self._owner_max and self._is_shared(owner):",
        "if used.count(owner) >= self._per_turn and self._is_shared(owner):",
        ("core/runtime/test_fair_turns.py",),
    ),
    "a call is sent for a caller that left while it waited": Bug(
        "RunningCalls.abandon",
        "if tab.waits_to_be_sent:",
        "if tab.waits_to_be_sent and tab.stopped:",
        ("journeys/isolation/test_backend_connections.py",),
    ),
    "a call that was never sent stays unsettled": Bug(
        "_ended_early",
        'return BackendFailed("The client disconnected.", charged=tab.sent)',
        'return BackendFailed("The client disconnected.", charged=True)',
        ("journeys/isolation/test_backend_connections.py",),
    ),
    "unknown callers get as large a share of a turn as an organization": Bug(
        "FairTurns._next_turn",
        "self._used[:] = self._already_used",
        "self._used.clear()",
        ("core/runtime/test_fair_turns.py",),
    ),
    "strangers wait behind a crowd from elsewhere": Bug(
        "Arrivals.wait_as_stranger",
        "self._strangers.push(network_of(address), begin)",
        "self._strangers.push(None, begin)",
        ("http/test_arrivals.py",),
    ),
    # Bugs in holds of texts that are written to mislead the estimate, and in rates.
    "spaces between letters are free": Bug(
        "measure_text",
        "weight += _SPACE_RUN_WEIGHT * runs",
        "pass",
        ("core/test_estimate.py",),
    ),
    "a word in one character is one character": Bug(
        "measure_text",
        "0 if text.isascii() else added_bytes(text)",
        "0",
        ("core/test_estimate.py",),
    ),
    "a prompt that is limited by its bytes is held by the estimate": Bug(
        "Plan.__post_init__",
        "model.token_bounds.text_by_bytes",
        "False",
        ("journeys/calls/test_text_bound.py",),
    ),
    "refused calls have no rate limit": Bug(
        "StandingRefusals.count_refused",
        "self._refused_calls.use(project_id)",
        "pass",
        ("journeys/isolation/test_rates.py",),
    ),
    "administration has no rate limit": Bug(
        "App._accept",
        "self._services.administration_rate.take(caller.organization_id, context.key)",
        "pass",
        ("journeys/isolation/test_administration.py",),
    ),
    "two policies take the last place": SqlBug(
        "tenants.organizations_store:lock",
        "WHERE id = %s FOR NO KEY UPDATE",
        "WHERE id = %s",
        ("journeys/isolation/test_administration.py",),
    ),
    "two keys take the last place": SqlBug(
        "tenants.projects_store:find_and_lock",
        "AND id = %s FOR NO KEY UPDATE",
        "AND id = %s FOR SHARE",
        ("journeys/isolation/test_administration.py",),
    ),
    "results of a flood are handed out first": Bug(
        "FairTurns.wait",
        "self._waiting.push(owner, (owner, callback))",
        "self._waiting.push(None, (owner, callback))",
        ("core/runtime/test_fair_turns.py",),
    ),
    "a flood keeps its share beside the few calls of others": Bug(
        "OverloadGate._decide",
        "elif self._is_uneven:",
        "elif self._limit < 0:",
        ("core/runtime/test_overload.py",),
    ),
    # Bugs in the text that the judge reads.
    "keys are not judged": Bug(
        "_object_texts",
        'yield f"{key}: {text}" if key else text',
        "yield text",
        MARKERS,
    ),
    "the choice of a tool is not judged": Bug(
        "transcript:_fields",
        'yield "tool_choice", list(_choice_texts(prompt.tool_choice))',
        'yield "tool_choice", []',
        MARKERS,
    ),
    "a word that several texts spell is not judged": Bug(
        "transcript:_joined_text",
        '"".join(part.text for part, _ in placed if isinstance(part, Text | Refusal))',
        '" ".join(part.text for part, _ in placed if isinstance(part, Text | Refusal))',
        ("policies/test_content.py",),
    ),
    "a word in two turns that a wire joins is not judged": Bug(
        "_turn_sections", "True in joins", "False", JUDGED_TURNS
    ),
    "an empty turn hides a word in the turns around it": Bug(
        "_joined_turns", "if not any(map(_is_sent, turn.parts)):", "if False:", JUDGED_TURNS
    ),
    "turns that a backend receives apart are judged as one": Bug(
        "_turn_sections", "True in joins", "joins", JUDGED_TURNS
    ),
    "only one form of the turns is judged if the backends differ": Bug(
        "_turn_sections", "if False not in joins:", "if True in joins:", JUDGED_TURNS
    ),
    "any finish reason reaches clients": Bug(
        "known_finish", "finish in _FINISHES", "True", PROVIDER_WORDS
    ),
    "any service tier reaches clients": Bug(
        "known_service_tier", "tier in _SERVICE_TIERS", "True", PROVIDER_WORDS
    ),
    "any fingerprint reaches clients": Bug(
        "known_fingerprint", "_FINGERPRINT.fullmatch(fingerprint)", "True", PROVIDER_WORDS
    ),
    "any name of a token count reaches clients": Bug(
        "known_counts", '_COUNT_WORDS.issuperset(name.split("_"))', "True", PROVIDER_WORDS
    ),
    "a stop text that the client did not send reaches clients": Bug(
        "MessagesAnswer._read_stop",
        "sequence if sequence in self._stops else None",
        "sequence",
        ("journeys/providers/test_messages_face.py",),
    ),
    "a policy's new name takes effect without publication": SqlBug(
        "policies.store:_VERSION_COLUMNS", "v.name", "p.name", POLICIES
    ),
    "a new name counts as published": Bug(
        "policies.policy:Policy.has_unpublished_changes",
        "(version.name, version.rule) != (self.name, self.draft)",
        "version.rule != self.draft",
        POLICIES,
    ),
    "JSON escapes of a request are not decoded for the judge": Bug(
        "transcript:section",
        "with_decoded_escapes(text)",
        "text",
        ("policies/test_content.py",),
    ),
    "the epoch of a lost change is used again": SqlBug(
        "policies.store:increment_epoch",
        "floor(random() * 4294967296)::bigint",
        "0",
        ("policies/test_directory.py",),
    ),
    "a property hides another of the same name": Bug(
        "messages:_joined",
        "if extra.keys() & source.keys():",
        "if not extra and not source:",
        MARKERS,
    ),
    "content that no judge can read is let through": Bug(
        "PolicyChecks._refuse_unread",
        "if part.kind in self._denied_unread:",
        "if part.kind in ():",
        ("policies/test_unread.py",),
    ),
    # Bugs in the isolation of caches, and in the check of remote addresses.
    "projects share a prefix cache": Bug(
        "Isolation.caching_wish",
        "if salt is None and model.isolates_cache:",
        "if salt is None and not model.isolates_cache:",
        ("journeys/isolation/test_caches.py",),
    ),
    "a backend fetches an address that a client names": Bug(
        "_require_medium",
        "if not model.allows_remote_media:",
        "if not model.backend:",
        ("journeys/isolation/test_caches.py",),
    ),
    # Bugs before the verdict, and in the judge's reading of files.
    "a tokenizer gets a prompt that no policy has judged": Bug(
        "TokenCounting._may_send_to_tokenizer",
        "not any(policy.enforces(Direction.REQUEST) for policy in policies)",
        "True",
        ("journeys/policies/test_before_the_verdict.py",),
    ),
    "a call that was counted is admitted under a new policy": Bug(
        "Inference._judge_request",
        "tab.tokenizer_asked or call.tokenizer_asked",
        "False",
        ("journeys/policies/test_before_the_verdict.py",),
    ),
    "base64 that decoders read differently is readable": Bug(
        "read_inline",
        'not any(sign in body for sign in "%-_")',
        "True",
        ("core/test_inline_content.py",),
    ),
    "an ASCII PDF is a text": Bug(
        "media_text:_is_text",
        "_PDF_SIGNATURE not in beginning",
        "True",
        ("core/test_inline_content.py",),
    ),
    "the judge's cache is shared": Bug(
        "Judge._salt",
        "not self._model.isolates_cache",
        "self._model",
        ("policies/test_judge_salt.py",),
    ),
    "a word that claims to be encrypted is not judged": Bug(
        "_search_block_texts", "yield from content.texts", "pass", MARKERS
    ),
    # Bugs in the console.
    "people of an organization reach every organization": Bug(
        "_Own._checked",
        "is_own = await owner(identity) == self.id",
        "is_own = bool(await owner(identity))",
        ("console/test_permissions.py",),
    ),
    "a link from elsewhere shows a notice of its own": Bug(
        "rendering:_notice_text",
        "return text if is_ours else None",
        "return text or None",
        ("console/test_confirmations.py",),
    ),
    "the console decodes forms in any encoding": Bug(
        "read_form",
        'options.get(b"charset", b"utf-8").lower() not in _UTF8',
        "False",
        CONSOLE,
    ),
    "strangers' codes keep people from signing in": Bug(
        "IdentityProvider.finish",
        "async with self._step(callback) as client, place:",
        "async with self._step(callback) as client, asyncio.timeout(_DEADLINE_S):",
        ("console/test_faulty_identity_provider.py",),
    ),
    "a wait of the smallest network makes room": Bug(
        "Places._end_one",
        "Counter(self._networks.values()).most_common(1)",
        "Counter(self._networks.values()).most_common()[-1:]",
        ("console/test_places.py",),
    ),
    "a network may send any number of codes": Bug(
        "console.sign_in:_person",
        "if wait_s:",
        "if False:",
        ("console/test_faulty_identity_provider.py",),
    ),
    "the console accepts any number of connections": Bug(
        "_Door._accept",
        "self.limit.enter(connection, self._network(connection, peer[0]))",
        "True",
        CONSOLE_CONNECTIONS,
    ),
    "the console waits for the head of a request forever": Bug(
        "console.server:_Connection._check_deadline",
        "if self._write_timer is None:",
        "if False:",
        CONSOLE_CONNECTIONS,
    ),
    "the console reads large bodies without a session": Bug(
        "Guard._answer",
        'scope["session"] is None and scope["method"] not in _SAFE_METHODS',
        "False",
        CONSOLE_CONNECTIONS,
    ),
    "the console decodes a form without the session's token": Bug(
        "_form_of_session",
        "if sessions.form_token(session).encode() not in await request.body():",
        "if False:",
        CONSOLE,
    ),
}
