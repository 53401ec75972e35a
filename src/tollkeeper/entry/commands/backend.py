"""`tollkeeper backend`: tests a backend with real calls."""

import asyncio
from typing import Annotated

import typer

from tollkeeper.core.catalog import Model
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.entry.commands.command import Invocation, command, noun_app
from tollkeeper.entry.commands.output import Listing
from tollkeeper.setup.backend_trial import credential_of, model_on_backend, running_backend
from tollkeeper.setup.settings import Settings
from tollkeeper.setup.trial_calls import BackendTrial, TrialResult

# For `TrialResult.worked`.
_RESULT_WORDS = {True: "works", False: "fails", None: "not offered"}

app = noun_app("Test a backend, a service that runs models.")


@command(app, "try", example="tollkeeper backend try openai")
def backend_try(
    invocation: Invocation,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The name of a backend in the settings.", show_default=False
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Call this model of the backend.",
            show_default="the first model",
        ),
    ] = None,
) -> Listing:
    """Test a backend with real calls, which the provider charges.

    The calls ask for an answer, a stream, a tool call and a token count."""
    settings = invocation.settings()
    tested_model = model_on_backend(settings, name, model)
    credential = credential_of(settings, name)
    results = asyncio.run(_results(settings, name, tested_model))
    failed = [result.check for result in results if result.worked is False]
    total = sum(result.cost_picousd for result in results)
    return Listing(
        [
            {
                "check": result.check,
                "verdict": _RESULT_WORDS[result.worked],
                "detail": result.detail,
                "cost_usd": usd_from_picousd(result.cost_picousd),
            }
            for result in results
        ],
        columns=("check", "verdict", "detail", "cost_usd"),
        summary={
            "ok": not failed,
            "model": tested_model.id,
            "credential": credential,
            "cost_usd": usd_from_picousd(total),
        },
        note=(
            f"Model: {tested_model.id}. Credential: {credential}. Cost: "
            f"{usd_from_picousd(total)} USD by the model's prices; no organization is charged."
        ),
        refusal=f"The backend {name} fails at: {', '.join(failed)}." if failed else "",
    )


async def _results(settings: Settings, name: str, model: Model) -> list[TrialResult]:
    async with running_backend(settings, name) as backend:
        trial = BackendTrial(backend, model, deadline_s=settings.limits.inference_deadline_s)
        return [result async for result in trial.results()]
