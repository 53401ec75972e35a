"""Shows the effective settings, and for each value its origin: default, preset, file or
environment."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import console_of
from tollkeeper.console.rendering import render
from tollkeeper.setup.settings.origins import SettingOrigin


async def show(request: Request) -> Response:
    console = console_of(request)
    sections: dict[str, list[SettingOrigin]] = {}
    for origin in console.origins:
        sections.setdefault(origin.name.rpartition(".")[0], []).append(origin)
    only = request.query_params.get("only", "")
    return render(
        request,
        "settings.html",
        nav="settings",
        title="Settings",
        sections=sections,
        only=only if only in ("file", "environment", "preset") else "",
        changed=sum(origin.origin != "default" for origin in console.origins),
        total=len(console.origins),
    )
