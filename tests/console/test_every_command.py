"""Tests that each command of an operator has a page or an action in the console, or a reason why not."""

import importlib
from collections.abc import Mapping

from typer.main import get_command

from tollkeeper.console.app import ROUTES
from tollkeeper.console.pages import keys, months, organizations, policy, projects
from tollkeeper.entry.commands.main import _COMMANDS

_ACTIONS: dict[str, Mapping[str, object]] = {
    "organizations": organizations.ACTIONS,
    "projects": projects.ACTIONS,
    "keys": keys.ACTIONS,
    "policies": policy.ACTIONS,
    "months": months.ACTIONS,
}
# For each command, the page or action of the console that does the same.
PAGES = {
    "alert list": "GET /alerts",
    "activity export": "GET /activity/export",
    "activity list": "GET /activity",
    "activity show": "GET /activity/{request_id}",
    "admin-key create": "POST /organizations/{organization}/admin-keys",
    "admin-key list": "GET /organizations/{organization}",
    "admin-key rename": "POST /organizations/{organization}/admin-keys/{key}/rename",
    "admin-key revoke": "POST /organizations/{organization}/admin-keys/{key}",
    "audit list": "GET /audit",
    "backend try": "POST /backends/{backend}/try",
    "cap clear": "organizations clear-cap",
    "cap set": "organizations set-cap",
    "cap show": "GET /organizations/{organization}",
    "costs": "GET /costs",
    "credit assign": "POST /payments/assign",
    "credit events": "GET /payments",
    "credit grant": "organizations grant-credit",
    "credit list": "GET /organizations/{organization}",
    "credit withdraw": "organizations grant-credit",
    "statement": "GET /organizations/{organization}/statement",
    "credit show": "GET /organizations/{organization}",
    "doctor": "POST /doctor",
    "ledger close": "POST /months/close",
    "ledger drop": "months drop",
    "ledger export": "GET /months/{month}.csv.gz",
    "ledger months": "GET /months",
    "ledger reconcile": "POST /reconcile",
    "ledger recover": "POST /unsettled/recover",
    "ledger resolve": "POST /unsettled/{reservation}",
    "ledger unsettled": "GET /unsettled",
    "ledger verify": "POST /verify",
    "limit set": "projects set-limits",
    "limit show": "GET /projects/{project}",
    "organization archive": "organizations archive",
    "organization create": "POST /organizations",
    "organization grant-check": "organizations grant-check",
    "organization list": "GET /organizations",
    "organization rename": "organizations rename",
    "organization revoke-check": "organizations revoke-check",
    "organization show": "GET /organizations/{organization}",
    "overage clear": "organizations clear-overage",
    "overage set": "organizations set-overage",
    "overage show": "GET /organizations/{organization}",
    "policy calibrate": "policies calibrate",
    "policy calibrations": "GET /policies/{policy}",
    "policy create": "POST /policies",
    "policy edit": "policies edit",
    "policy list": "GET /policies",
    "policy pause": "policies pause",
    "policy publish": "policies publish",
    "policy resume": "policies resume",
    "policy show": "GET /policies/{policy}",
    "policy try": "POST /policies/try",
    "project allow-models": "projects allow-models",
    "project archive": "projects archive",
    "project create": "POST /projects",
    "project list": "GET /projects",
    "project rename": "projects rename",
    "project show": "GET /projects/{project}",
    "project-key allow-models": "keys allow-models",
    "project-key create": "POST /keys",
    "project-key list": "GET /keys",
    "project-key rename": "keys rename",
    "project-key revoke": "keys revoke",
    "project-key rotate": "POST /keys/{key}/rotate",
    "project-key suspend": "keys suspend",
    "project-key unsuspend": "keys unsuspend",
}
_STARTS = "it starts processes on a machine, the console among them"
REASONS = {
    "overage forget": "is done after a change of the settings, on the machine of the settings",
    "overage models": "the alerts page names the models that have exceeded their holds",
    "console": _STARTS,
    "demo": _STARTS,
    "serve": _STARTS,
    "migrate": "it runs before the processes of a new version start",
    "database accept": "it decides which server is right while no process may serve",
    "init": "it writes a settings file, before there is an installation",
    "reload": "it sends a settings file that lies on the gateway's machine",
    "openapi": "it prints a document for programs",
    "model import": "it writes lines to paste into the settings file",
    "ledger compare-log": "it reads log files of gigabytes where they lie",
}


def _commands() -> set[str]:
    found = set()
    for name, module, _ in _COMMANDS:
        command = get_command(importlib.import_module(f"tollkeeper.entry.commands.{module}").app)
        verbs = getattr(command, "commands", None)
        found |= {f"{name} {verb}" for verb in verbs} if verbs else {name}
    return found


def test_every_command_has_a_page_or_a_reason() -> None:
    assert not PAGES.keys() & REASONS.keys()
    assert PAGES.keys() | REASONS.keys() == _commands()


def test_every_page_and_action_of_the_list_is_there() -> None:
    routes = {f"{method} {route.path}" for route in ROUTES for method in route.methods or ()}
    for command, place in PAGES.items():
        noun, _, action = place.partition(" ")
        found = action in _ACTIONS[noun] if noun in _ACTIONS else place in routes
        assert found, (command, place)
