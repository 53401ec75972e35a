"""Runs the checks that an operator starts: `tollkeeper doctor`, and a trial with real calls to a
backend."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import Question
from tollkeeper.console.amounts import exact_usd
from tollkeeper.console.changes import answer_form
from tollkeeper.console.context import Finding, console_of
from tollkeeper.console.forms import Form, Refused
from tollkeeper.console.rendering import render
from tollkeeper.setup.backend_trial import credential_of, model_on_backend, running_backend
from tollkeeper.setup.trial_calls import BackendTrial

# The deadline for all checks of `tollkeeper doctor` together.
_DOCTOR_S = 180.0
_RESULTS = {True: "works", False: "fails", None: "not offered"}


async def show_doctor(
    request: Request, refused: Refused | None = None, *, findings: Sequence[Finding] = ()
) -> Response:
    return render(
        request, "doctor.html", nav="doctor", title="Doctor", refused=refused, findings=findings
    )


async def run_doctor(request: Request) -> Response:
    async def handle(_form: Form) -> Response:
        console = console_of(request)
        async with console.exclusive_run(_DOCTOR_S):
            findings = await console.machine.doctor()
        return await show_doctor(request, findings=findings)

    return await answer_form(request, handle, show_doctor)


async def show_trial(
    request: Request, refused: Refused | None = None, *, results: Sequence[Finding] = ()
) -> Response:
    settings, name = console_of(request).settings, request.path_params["backend"]
    return render(
        request,
        "backend_trial.html",
        nav="backends",
        title=f"Try {name}",
        refused=refused,
        backend=name,
        model=model_on_backend(settings, name, None),
        credential=credential_of(settings, name),
        results=results,
    )


async def run_trial(request: Request) -> Response:
    console, name = console_of(request), request.path_params["backend"]
    model = model_on_backend(console.settings, name, None)
    deadline_s = console.settings.limits.inference_deadline_s

    async def ask(_form: Form) -> Question:
        return Question(
            f"Make real calls to {name}?",
            "The trial asks for an answer, a stream, a tool call and a token count. The provider "
            "charges for these calls, and no tenant pays for them.",
            "Try it",
            facts={"Model": model.id},
        )

    async def handle(_form: Form) -> Response:
        # The trial makes up to four calls, and each call may take the whole deadline.
        async with (
            console.exclusive_run(4 * deadline_s),
            running_backend(console.settings, name) as backend,
        ):
            trial = BackendTrial(backend, model, deadline_s=deadline_s)
            results = [
                Finding(
                    one.check,
                    _RESULTS[one.worked],
                    f"{one.detail}; {exact_usd(one.cost_picousd)}",
                )
                async for one in trial.results()
            ]
        return await show_trial(request, results=results)

    return await answer_form(request, handle, show_trial, ask=ask, back="/backends")
