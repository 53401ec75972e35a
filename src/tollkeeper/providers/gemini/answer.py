"""Converts a Gemini answer, streamed or not, to events. Does no I/O. No record marks a stream's
end: it's complete if a finish reason came before the HTTP body's end."""

import uuid
from functools import partial

from msgspec import Raw

from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.inference import Annotation, Call, Delta, Event, Finish, UsageReport
from tollkeeper.core.usage import ReportedUsage
from tollkeeper.providers.answer_json import (
    MalformedAnswer,
    error_record,
    value_or_none,
    with_status,
)
from tollkeeper.providers.event_reader import EventReader
from tollkeeper.providers.gemini import records
from tollkeeper.providers.gemini.records import (
    Candidate,
    FunctionCall,
    Grounding,
    GroundingChunk,
    GroundingSupport,
    InlineData,
    Part,
    Record,
)
from tollkeeper.providers.gemini.thinking import Seal
from tollkeeper.providers.gemini.usage import read_usage
from tollkeeper.providers.usage_reports import report_in

_NO_ARGUMENTS = "{}"


_CITATIONS_MAX = 4096


class GroundedText:
    """Text and sources of an answer with web searches. Sources in a later record replace earlier
    ones."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        # Distinct, and not empty: the provider doesn't charge for empty ones.
        self._queries: dict[str, None] = {}
        self._sources: list[GroundingChunk] = []
        self._supports: list[GroundingSupport] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)

    def take(self, grounding: Grounding) -> None:
        self._queries |= dict.fromkeys(filter(None, grounding.web_search_queries or ()))
        self._sources = grounding.grounding_chunks or self._sources
        self._supports = grounding.grounding_supports or self._supports

    @property
    def searches(self) -> int:
        return len(self._queries)

    def annotations(self) -> tuple[Annotation, ...]:
        """In characters. Without sources that no text cites."""
        encoded = "".join(self._pieces).encode()
        citations = []
        for support in self._supports:
            segment = support.segment
            if segment is None:
                continue
            start = _characters(encoded, segment.start_index or 0)
            end = _characters(encoded, segment.end_index or 0)
            for index in support.grounding_chunk_indices or ():
                page = self._sources[index].web if 0 <= index < len(self._sources) else None
                if page is not None and page.uri and start <= end:
                    citations.append(Annotation(page.uri, page.title or "", start, end))
        return tuple(citations[:_CITATIONS_MAX])


def _characters(encoded: bytes, count: int) -> int:
    return len(encoded[: max(0, count)].decode(errors="ignore"))


class GeminiAnswer(EventReader):
    """One choice: the gateway always requests one candidate."""

    enforces_single_call = True

    def __init__(self, call: Call, *, secrets: tuple[str, ...] = ()) -> None:
        super().__init__(call, secrets=secrets)
        self._grounded = GroundedText() if call.prompt.web_search is not None else None
        self._text_length = 0
        # Of the current thought. Its signature comes with its last piece.
        self._thought: list[str] = []
        # The last one.
        self._reason: str | None = None

    @staticmethod
    def usage_in(body: bytes) -> UsageReport | None:
        usage = records.decode_usage_only(body).usage_metadata
        return report_in(usage, partial(read_usage, is_final=True))

    def _read_body(self, body: bytes) -> None:
        self._read(records.decode_answer(body))
        self._end()

    def end_body(self) -> list[Event]:
        """An earlier finish reason doesn't end it: some models report one in every record."""
        try:
            self._end()
        except MalformedAnswer:
            super().end_body()
        return self._take_events()

    def _read_record(self, payload: bytes) -> None:
        self._read(records.decode_record(payload))

    def _read(self, record: Record) -> None:
        self._open()
        for candidate in record.candidates or ():
            self._reason = self._read_candidate(candidate) or self._reason
        feedback = record.prompt_feedback
        error = error_record(record.error)
        if feedback is not None and feedback.block_reason and not record.candidates:
            # The prompt was blocked, so there's no candidate.
            self._reason = self._reason or "SAFETY"
            if error is None and not self.accepted:
                # The usage report may be missing or lack all counts.
                self._events.append(UsageReport(ReportedUsage(completion_tokens=0)))
        # With an error, it's a running total: the provider may charge for more output.
        self._read_usage(record.usage_metadata, is_final=self._reason is not None and error is None)
        if error is not None:
            self.fail(self._error_for(with_status(error, "status", records.STATUSES)))
        elif self._reason in records.FAILURES:
            self._fail_by_model(self._reason)

    def _read_candidate(self, candidate: Candidate) -> str | None:
        """The finish reason, or None."""
        if candidate.index:
            raise MalformedAnswer("it has a choice that was not asked for")
        parts = () if candidate.content is None else candidate.content.parts or ()
        for part in parts:
            self._read_part(part)
        if candidate.grounding_metadata is not None and self._grounded is not None:
            self._grounded.take(candidate.grounding_metadata)
            self._searches = self._grounded.searches
        reason = candidate.finish_reason
        return None if reason == records.UNSPECIFIED else reason or None

    def _read_part(self, part: Part) -> None:
        if part.function_call is not None:
            self._read_call(part.function_call, part.thought_signature)
        elif part.thought:
            self._read_thought(part.text or "", part.thought_signature)
        else:
            if part.inline_data is not None and part.inline_data.data:
                self._read_image(part.inline_data)
            if part.text or part.thought_signature:
                self._read_text(part.text or "", part.thought_signature)

    def _read_thought(self, text: str, signature: str | None) -> None:
        if text:
            self._thought.append(text)
            self._emit(Delta(0, reasoning=text))
        if signature:
            self._seal(Seal(signature, thought="".join(self._thought)))
            self._thought = []

    def _read_image(self, image: InlineData) -> None:
        media_type = image.mime_type or ""
        if not media_type.startswith("image/"):
            # The settings declare the wrong output modalities. Fails, because part of
            # the answer would be lost.
            message = (
                f"The model answered with {media_type[:100]}, which the gateway cannot pass on."
            )
            self.fail(BackendFailed(message, charged=True, may_be_client_fault=True))
            return
        self._emit_images((f"data:{media_type};base64,{image.data}",))

    def _read_text(self, text: str, signature: str | None) -> None:
        self._text_length += len(text)
        if text:
            if self._grounded is not None:
                self._grounded.add(text)
            self._emit(Delta(0, text))
        if signature:
            self._seal(Seal(signature, text_end=self._text_length, text_length=len(text)))

    def _read_call(self, called: FunctionCall, signature: str | None) -> None:
        if not called.name:
            raise MalformedAnswer("a call has no name")
        index = self._count_call()
        if self._first_call_only and index:
            return
        args = value_or_none(called.args)
        arguments = _NO_ARGUMENTS if args is None else bytes(args).decode()
        # Models before Gemini 3 send no ids.
        call_id = called.id or f"call_{uuid.uuid4().hex[:24]}"
        if signature:
            self._seal(Seal(signature, call=call_id))
        self._emit_call(index, call_id, called.name, arguments)

    def _seal(self, seal: Seal) -> None:
        self._emit(Delta(0, sealed_reasoning=seal.sealed()))

    def _read_usage(self, usage: Raw, *, is_final: bool) -> None:
        read = partial(read_usage, is_final=is_final, searches=self._searches)
        report = report_in(usage, read)
        if report is None:
            if self._searches:
                so_far = ReportedUsage(web_searches=self._searches, is_running_total=not is_final)
                self._events.append(UsageReport(so_far))
            return
        # Even a readable running total shows that the call ran.
        self._report(report, is_final=is_final or report.usage is not None)

    def _end(self) -> None:
        if self.ended:
            return
        if self._reason is None:
            raise MalformedAnswer("it has no finish reason")
        annotations = () if self._grounded is None else self._grounded.annotations()
        if annotations:
            self._emit(Delta(0, annotations=annotations))
        finish: str = records.FINISHES.get(self._reason, self._reason)
        if finish == Finish.STOP and self._call_count:
            finish = Finish.TOOL_CALLS
        self._finish(finish)
        self.done = True
