"""The audit list: who changed what, and when."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.rendering import render


async def show(request: Request) -> Response:
    return render(request, "audit.html", nav="audit", title="Audit", entries=None)
