"""The one vocabulary between protocols and backends: a call goes down, events come up.

A protocol turns its request into a `Call` and renders the events; a backend turns the call into
its own request and its answer into events. Metering and policies read the same events, so none of
them knows a protocol. The words are plain structs without cyclic garbage collection, because a
stream makes one of them a piece.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.prompt import FreeObject, Prompt
from tollkeeper.domain.usage import ReportedUsage


class Finish(StrEnum):
    """Why a choice ended. A backend's own words outside this list are passed on as they are."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    FUNCTION_CALL = "function_call"


class Call(msgspec.Struct, frozen=True):
    """One inference call, complete: nothing below looks at the caller's request again."""

    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    model: Model
    # How many completions (`n`), and the bound of each.
    choices: int
    output_tokens_max: int
    # The name under which the bound travels: the caller's own word for it.
    output_bound_field: str
    # The caller reads pieces as they come. A backend may stream all the same.
    streamed: bool
    prompt: Prompt
    # The isolated affinity key: never the caller's own text.
    affinity: bytes | None = None
    # Published policies that the caller adds to those that attach by themselves, each once.
    policy_ids: tuple[str, ...] = ()


class ToolCallPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of one tool call; `id` and `name` come once, `arguments` grows."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class FunctionCallPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of a legacy function call."""

    name: str | None = None
    arguments: str = ""


class Annotation(msgspec.Struct, frozen=True, gc=False):
    """A citation inside the text."""

    url: str
    title: str
    start_index: int
    end_index: int


class Opened(msgspec.Struct, frozen=True, gc=False):
    """The backend has begun to answer. First event, once."""

    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: msgspec.Raw | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What one piece adds to one choice. A complete answer is one delta a choice."""

    choice: int
    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()
    function_call: FunctionCallPiece | None = None
    annotations: tuple[Annotation, ...] = ()
    # The log-probabilities in the shape of the chat protocol, as the backend wrote them.
    logprobs: msgspec.Raw | None = None
    # Set in the last delta of a choice.
    finish: str | None = None
    # Reasoning that only its backend can read, to be sent back with the next turn.
    sealed_reasoning: str | None = None


class UsageReport(msgspec.Struct, frozen=True, gc=False):
    """The backend reported usage, perhaps not for the last time. `usage` is None where the report
    cannot be true; `absurd` has it then, as it came."""

    usage: ReportedUsage | None
    absurd: FreeObject | None = None


Event: TypeAlias = Opened | Delta | UsageReport
# Events come in batches, one a network read, so that a busy stream pays per read and not per word.
Batch: TypeAlias = Sequence[Event]
