"""Exports traces and metrics over OTLP: for each call a span, and its tokens, duration and time to the first
token. No text of prompts or answers, unless the operator opts in.

OpenTelemetry's own variables say where to and with what. Its SDK is optional, and imported only if they name
a collector.
"""

import importlib
import os
import re
import time
from types import ModuleType
from typing import Any

import structlog

from tollkeeper import __version__
from tollkeeper.calls.tab import CallSpan, CallTracer
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.inference import Call
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.setup import telemetry_names as names
from tollkeeper.setup.settings import SettingsError
from tollkeeper.setup.telemetry_content import AnswerContent, content_attributes

# OpenTelemetry's variables.
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_EXPORT_TIMEOUT_S = 10
# Of prompt and answer on one span.
CONTENT_BYTES = 16_384
# In the queue and in one export.
_QUEUED_SPANS_MAX = 2048
_EXPORTED_SPANS_MAX = 512
# Bytes in the queue and in one export. With content they reduce the number of spans (`_span_limits`).
_QUEUED_CONTENT_BYTES_MAX = 64 << 20
_EXPORTED_CONTENT_BYTES_MAX = 4 << 20
# `traceparent`, version 00: trace id, span id, flags.
_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SDK_MODULES = (
    "opentelemetry.trace",
    "opentelemetry.sdk.trace",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.metrics.export",
    "opentelemetry.sdk.resources",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)

_log = structlog.get_logger("tollkeeper.telemetry")


def collector() -> str:
    """The base URL; "": nothing is exported."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return "" if disabled else os.environ.get(ENDPOINT, "").rstrip("/")


def sends_content() -> bool:
    """For every organization."""
    return os.environ.get(CONTENT, "").lower() in ("true", "span_only", "span_and_event")


def build_tracer() -> CallTracer | None:
    """None without a collector."""
    endpoint = collector()
    if not endpoint:
        return None
    sdk = import_sdk()
    if sends_content():
        _log.warning("traces carry the content of calls of every organization", endpoint=endpoint)
    return OtelTracer(endpoint, sdk)


def import_sdk() -> list[ModuleType]:
    """In the order of `_SDK_MODULES`. Raises SettingsError if one isn't installed."""
    try:
        return [importlib.import_module(name) for name in _SDK_MODULES]
    except ImportError:
        raise SettingsError(
            f"{ENDPOINT} is set, but OpenTelemetry is not installed; install tollkeeper[otel]"
        ) from None


class OtelTracer:
    def __init__(self, base: str, sdk: list[ModuleType]) -> None:
        api, trace, export, metrics, metrics_export, resources, spans, measures = sdk
        # The SDK itself reads OTEL_TRACES_SAMPLER and OTEL_METRIC_EXPORT_INTERVAL.
        service_name = os.environ.get("OTEL_SERVICE_NAME") or "tollkeeper"
        resource = resources.Resource.create(
            {"service.name": service_name, "service.version": __version__}
        )
        self._api = api
        self._traces = trace.TracerProvider(resource=resource)
        # On one span.
        self.content_bytes = CONTENT_BYTES if sends_content() else None
        queued, exported = _span_limits(self.content_bytes)
        self._traces.add_span_processor(
            export.BatchSpanProcessor(
                spans.OTLPSpanExporter(f"{base}/v1/traces", timeout=_EXPORT_TIMEOUT_S),
                max_queue_size=queued,
                max_export_batch_size=exported,
            )
        )
        reader = metrics_export.PeriodicExportingMetricReader(
            measures.OTLPMetricExporter(f"{base}/v1/metrics", timeout=_EXPORT_TIMEOUT_S)
        )
        self._meters = metrics.MeterProvider(resource=resource, metric_readers=[reader])
        self._tracer = self._traces.get_tracer("tollkeeper", __version__)
        meter = self._meters.get_meter("tollkeeper", __version__)
        self.tokens = meter.create_histogram(names.TOKEN_USAGE_METRIC, unit="{token}")
        self.duration = meter.create_histogram(names.DURATION_METRIC, unit="s")
        self.first_token = meter.create_histogram(names.FIRST_TOKEN_METRIC, unit="s")

    def started(self, call: Call) -> CallSpan:
        span = self._tracer.start_span(
            f"chat {call.model.id}",
            context=self._parent(call.incoming_trace),
            kind=self._api.SpanKind.CLIENT,
            start_time=time.time_ns(),
        )
        return _OtelSpan(self, span, call)

    def close(self) -> None:
        self._traces.shutdown()
        self._meters.shutdown()

    def failure(self, code: str) -> Any:
        return self._api.Status(self._api.StatusCode.ERROR, code)

    def _parent(self, header: bytes | None) -> Any:
        """None if the client's header is missing or invalid."""
        match = None if header is None else _TRACEPARENT.fullmatch(header)
        if match is None or not int(match[1], 16) or not int(match[2], 16):
            return None
        context = self._api.SpanContext(
            trace_id=int(match[1], 16),
            span_id=int(match[2], 16),
            is_remote=True,
            trace_flags=self._api.TraceFlags(int(match[3], 16)),
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(context))


def _span_limits(content_bytes: int | None) -> tuple[int, int]:
    """In the queue, and in one export."""
    if content_bytes is None:
        return _QUEUED_SPANS_MAX, _EXPORTED_SPANS_MAX
    return (
        min(_QUEUED_SPANS_MAX, _QUEUED_CONTENT_BYTES_MAX // content_bytes),
        min(_EXPORTED_SPANS_MAX, _EXPORTED_CONTENT_BYTES_MAX // content_bytes),
    )


class _OtelSpan:
    def __init__(self, tracer: OtelTracer, span: Any, call: Call) -> None:
        self._tracer = tracer
        self._span = span
        self._call = call
        self.answer: AnswerContent | None = None
        if tracer.content_bytes is not None and span.is_recording():
            self.answer = AnswerContent(tracer.content_bytes)

    @property
    def traceparent(self) -> bytes:
        context = self._span.get_span_context()
        return b"00-%032x-%016x-%02x" % (
            context.trace_id,
            context.span_id,
            int(context.trace_flags),
        )

    def ended(self, record: ActivityRecord) -> None:
        shared = {
            names.OPERATION: names.OPERATIONS.get(record.operation, record.operation),
            names.PROVIDER: self._call.model.backend,
            names.REQUEST_MODEL: record.model,
        }
        if record.error_code is not None:
            shared[names.ERROR_TYPE] = record.error_code
        self._measure(record, shared)
        span = self._span
        if span.is_recording():
            span.set_attributes({**shared, **self._details(record)})
            # Without a hold it was rejected before it was sent, and a rejected call should take little CPU.
            if self.answer is not None and record.hold_picousd is not None:
                span.set_attributes(self._content(self.answer))
            if record.error_code is not None:
                span.set_status(self._tracer.failure(record.error_code))
        span.end()

    def _content(self, answer: AnswerContent) -> dict[str, str | tuple[str, ...]]:
        assert self._tracer.content_bytes is not None
        content = content_attributes(self._call.prompt, answer, self._tracer.content_bytes)
        return {**content, names.ORGANIZATION: str(self._call.organization_id)}

    def _details(self, record: ActivityRecord) -> dict[str, Any]:
        details: dict[str, Any] = {
            names.REQUEST_MAX_TOKENS: self._call.output_tokens_max,
            names.REQUEST_CHOICES: self._call.choices,
            names.RESPONSE_ID: record.request_id,
            names.HTTP_STATUS: record.status,
            names.SETTLEMENT: record.settlement,
        }
        if record.finish is not None:
            details[names.FINISH_REASONS] = (record.finish,)
        if record.prompt_tokens is not None:
            details[names.INPUT_TOKENS] = record.prompt_tokens
            details[names.OUTPUT_TOKENS] = record.completion_tokens
        if record.cost_picousd is not None:
            details[names.COST] = usd_from_picousd(record.cost_picousd)
        if record.overhead_us is not None:
            details[names.OVERHEAD] = record.overhead_us / 1000
        return details

    def _measure(self, record: ActivityRecord, shared: dict[str, str]) -> None:
        tracer = self._tracer
        tracer.duration.record(record.duration_us / 1_000_000, shared)
        if record.first_piece_us is not None:
            tracer.first_token.record(record.first_piece_us / 1_000_000, shared)
        for kind, tokens in (("input", record.prompt_tokens), ("output", record.completion_tokens)):
            if tokens is not None:
                tracer.tokens.record(tokens, {**shared, names.TOKEN_TYPE: kind})
