"""Builds from the settings what only a process with calls needs."""

from tollkeeper.calls.running_calls import InferenceLimits
from tollkeeper.core.port import Backend
from tollkeeper.core.runtime.late_log import logs_are_for_people
from tollkeeper.core.runtime.request_log import RequestLog, json_lines, text_lines
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.money.unsettled.bulk_resolution import BulkAction, UnsettledRule
from tollkeeper.policies.checks import PolicyChecks
from tollkeeper.policies.judge.judge import JudgeMeter
from tollkeeper.policies.texts.media_text import UnreadKind
from tollkeeper.setup.backends import build_first_judge, build_judge, judge_secret
from tollkeeper.setup.settings import Settings

# After a client has gone, the gateway reads on for this long, because usage comes at the end. If neither
# output nor usage has come by then, the call is unsettled and its hold stays.
DRAIN_S = 10.0
# In one process: one for each connection that a worker can have (`entry.descriptors.CONNECTIONS_MAX`). An
# organization's limit is a share, so that none uses all connections. Memory has its own limit.
CALLS_MAX = 10_000


def inference_limits(settings: Settings) -> InferenceLimits:
    judge = settings.judge
    return InferenceLimits(
        deadline_s=settings.limits.inference_deadline_s,
        drain_s=DRAIN_S,
        calls_max=CALLS_MAX,
        segment_characters=0 if judge is None else judge.segment_characters,
        judges_in_parallel=judge is not None and judge.overlap,
    )


def build_checks(
    settings: Settings, backends: dict[str, Backend], vault: Vault | None, meter: JudgeMeter
) -> PolicyChecks:
    """Without a vault, there is no judge."""
    judge = first = None
    if vault is not None:
        secret = judge_secret(vault)
        judge = build_judge(settings, backends, secret, meter=meter)
        first = build_first_judge(settings, backends, secret, meter)
    return PolicyChecks(judge, first=first, denied_unread=_denied_unread(settings))


def build_request_log(settings: Settings, *, serving: bool) -> RequestLog:
    lines = text_lines if logs_are_for_people() else json_lines
    return RequestLog(lines if serving and settings.logs.requests else None)


def unsettled_rule(settings: Settings) -> UnsettledRule | None:
    """None if only operators resolve them."""
    declared = settings.ledger
    if declared.unsettled_after_hours == 0 or declared.unsettled_resolution == "keep":
        return None
    return UnsettledRule(declared.unsettled_after_hours, BulkAction(declared.unsettled_resolution))


def _denied_unread(settings: Settings) -> frozenset[UnreadKind]:
    # The setting's "images" and "files" are the kinds "image" and "file".
    return frozenset(UnreadKind(name.removesuffix("s")) for name in settings.policy.denied_content)
