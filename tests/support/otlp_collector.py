"""Runs a collector that receives the data of OpenTelemetry's exporters over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.stream_server import StreamServer


@dataclass
class Collector:
    """Stores the spans and metrics that the exporters send."""

    endpoint: str = ""
    spans: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    raw: bytes = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.lower().split("\r\n")
            (length,) = (int(line.partition(":")[2]) for line in lines if "content-length" in line)
            self._take(head.split()[1], await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

    def _take(self, path: str, body: bytes) -> None:
        self.raw += body
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            return
        assert path == "/v1/metrics"
        for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for group in measured.scope_metrics:
                self.metrics |= {metric.name: metric for metric in group.metrics}


@asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    async with StreamServer(collector.serve) as server:
        collector.endpoint = f"http://127.0.0.1:{server.port}"
        yield collector


def attributes_of(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
