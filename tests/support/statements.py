"""Finds every SQL statement in the source of the storage package.

A statement is an argument of `execute`, `copy` or `Statement`. Most texts are constants, or are composed
of constants of their module, and are evaluated in this module. If a text depends on the arguments of a
function, `_CHOICES` contains its parts. A text that cannot be evaluated in either way is an error.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Final

from psycopg import sql

import tollkeeper
from tollkeeper.core.months import Month
from tollkeeper.reports.traffic.rule import TimeRange

_SOURCE = Path(tollkeeper.__file__).parent
_CALLS: Final = {"execute": 0, "copy": 0, "Statement": 1}
_MONTH = Month(2026, 1)
# By function: the parts of statements that depend on the function's arguments. Each local name has
# a list of its possible values, as expressions that are evaluated in the function's module.
_NAMED_KINDS = ("ORGANIZATIONS", "PROJECTS", "PROJECT_KEYS", "ADMIN_KEYS")
_SORTS = ("None", "Sort(SortKey.COST)", "Sort(SortKey.DURATION, ascending=True)")
_CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "reports.activity.store.find_newest": {"filters": ("None", "' AND '.join(_FILTERS.values())")},
    "reports.activity.pages.find_in_steps": {"condition": ("'true' + _BEFORE",), "sort": _SORTS},
    "reports.activity.pages.find_judged": {
        "statement": (
            "_FIND_JUDGED.format(matched='', before=_BEFORE)",
            "_FIND_JUDGED.format(matched='AND matched', before='')",
        )
    },
    "reports.activity.pages.find_at": {
        "condition": ("'organization_id = %(organization)s'",),
        "sort": _SORTS,
    },
    "reports.activity.partitions.add_day": {
        "statement": ("_ADD_DAY[0]", "_ADD_DAY[1]", "_ADD_DAY[2]", "_ADD_DAY[3]"),
        "names": (
            (
                "{name: sql.Identifier(name) for name in ('table', 'default', 'home', 'day', 'time')}"
                " | {name: sql.Literal('') for name in ('first', 'last')}"
            ),
        ),
    },
    "reports.activity.partitions.drop_day": {"table": ("ACTIVITY",), "day": ("date(2026, 1, 1)",)},
    "reports.activity.partitions.delete_from_default": {"table": ("ACTIVITY",)},
    "tenants.admin_keys_store.find_page": {"comparison": ("'<'",), "direction": ("'DESC'",)},
    "tenants.audit.store.find_page": {"where": ("''", "'WHERE organization_id = %s'")},
    "money.caps.store.write_account_cap": {
        "statement": ("_WRITE_ACCOUNT_CAP", "_WRITE_PROJECT_CAP")
    },
    "money.months.close_proof.find_close_differences": {
        "query": ("_TOTALS", "_LINES", "_UNRESOLVED")
    },
    "database.compatibility.read_schema_state": {"row": ("(1, None)", "(1, 1)")},
    "database.fence._write": {"statement": ("_MARK", "_ACCEPT")},
    "money.months.export.stream_csv": {"query": ("_EXPORT.format(first='NULL', end_id='NULL')",)},
    "money.months.store.drop_month": {"month": ("MONTH",)},
    "money.months.store.seal_month": {"month": ("MONTH",)},
    "money.months.store.find_unresolved": {"query": ("'SELECT r.organization_id' + _UNRESOLVED",)},
    "money.months.store.stream_close_rows": {"query": ("_TOTALS_AS_TEXT", "_LINES_AS_TEXT")},
    "tenants.names_store.find": {"kind": _NAMED_KINDS},
    "tenants.names_store.find_in_use": {"kind": _NAMED_KINDS},
    "tenants.names_store.rename": {"kind": _NAMED_KINDS},
    "tenants.names_store.find_names": {
        "kinds": ("'SELECT id::text, name FROM organizations WHERE id = ANY (%(ids)s)'",),
        "policies": ("'SELECT id, name FROM policies WHERE id = ANY (%(policies)s)'",),
    },
    "reports.sums.find_costs_by_hour": {"condition": ("'project_id = ANY (%(project_id)s)'",)},
    "reports.sums.read": {
        "statement": (
            "_statement(MONEY, filters(_OF_ALL)[0], ('day', 'project_id'), ('amount',))",
            "_statement(MONEY_OF_ALL, 'true', ('organization_id', 'day'), ('amount',))",
            "_statement(CALLS, filters(_OF_ALL)[0], ('hour', 'status'), ('requests',))",
            "_statement(CALLS, 'project_id = %(project_id)s', ('step',), ('records',), 'cost_max')",
            "_statement(CALLS_OF_ALL, filters(CALLS_OF_ALL.only)[0], ('model',), ('failures',))",
            "_statement(LATENCIES, 'true', ('model', 'rung'), ('requests',))",
            "_statement(USAGE, filters(_OF_ALL)[0], ('model',), ('first_day', *USAGE_SUMS))",
            "_statement(VERDICTS, filters(_OF_ALL)[0], ('policy_id',), ('unanswered',))",
        )
    },
    "reports.sums.sum_unsettled": {"condition": ("'api_key_id = ANY (%(api_key_id)s)'",)},
    "money.verification.store.find_in_slice": {"query": ("*",)},
    "database.watched_connection.allow_long_statements": {"minutes": ("5",)},
}
# These classes only pass on the statements of others, or set up a session.
_NO_STATEMENTS = {
    "database.database.Database",
    "database.round_trips.RoundTrips",
    "database.round_trips.run_alone",
}


@dataclass(frozen=True, slots=True)
class Found:
    """Contains a statement, and the name of its function or constant."""

    name: str
    text: str

    @property
    def normal(self) -> str:
        return " ".join(self.text.split())


def all_statements() -> list[Found]:
    found: list[Found] = []
    for path in _files_with_statements():
        place = ".".join(path.relative_to(_SOURCE).with_suffix("").parts)
        module = importlib.import_module(f"tollkeeper.{place}")
        for name, expression in _expressions(ast.parse(path.read_text())):
            whole = f"{place}.{name}"
            if whole not in _NO_STATEMENTS:
                found += [Found(whole, text) for text in _texts(module, whole, expression)]
    return found


def _files_with_statements() -> list[Path]:
    """Every file of a room that may use the database, except services: they only call stores."""
    return sorted(
        path
        for room in ("console", "database", "money", "policies", "reports", "tenants")
        for path in (_SOURCE / room).rglob("*.py")
        if "migrations" not in path.parts and path.name != "service.py"
    )


def _expressions(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yields the statement of each call in `_CALLS`, with the function or constant that contains it."""
    for top in tree.body:
        name = getattr(top, "name", "")
        if isinstance(top, ast.Assign) and isinstance(top.targets[0], ast.Name):
            name = top.targets[0].id
        for node in ast.walk(top):
            if isinstance(node, ast.Call) and _called(node) in _CALLS:
                position = _CALLS[_called(node)]
                if len(node.args) > position:
                    yield name, node.args[position]


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(module: ModuleType, name: str, expression: ast.expr) -> Iterator[str]:
    code = compile(ast.Expression(expression), name, "eval")
    scope = {**vars(module), "MONTH": _MONTH, "TIME": TimeRange(0, 10**6)}
    choices = _CHOICES.get(name, {})
    for values in product(*(_values(scope, texts) for texts in choices.values())):
        try:
            found = eval(code, {**scope, **dict(zip(choices, values, strict=True))})
        except NameError as exc:
            raise AssertionError(f"{name}: `_CHOICES` has to say what it sends: {exc}") from exc
        if isinstance(found, sql.Composable):
            found = found.as_string(None)
        yield found.decode() if isinstance(found, bytes) else found


def _values(scope: dict[str, object], texts: tuple[str, ...]) -> list[object]:
    if texts == ("*",):
        return _invariants(scope)
    return [eval(text, scope) for text in texts]


def _invariants(scope: dict[str, object]) -> list[object]:
    """Returns every query of the verification: all long constants of its module."""
    return [
        value
        for name, value in scope.items()
        if name.isupper() and isinstance(value, str) and "%(after)s" in value and "SELECT" in value
        if name not in ("_RESERVED", "LINES")
    ]
