"""Checks whether a statement stays within the rows of the organizations that it names.

If tables are distributed by organization, a single server can answer a statement only if each of the
statement's tables is tied to a named organization. The table's key has to equal a parameter, a row of
a batch that the caller passes, or the key of another tied table. All other statements need all servers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import sqlglot
from sqlglot import exp

_PARAMETER = re.compile(r"%\(\w+\)s|%s")
KEY = "organization_id"
# Added to the untied tables if some of them are not joined by their keys.
ACROSS = "rows of different organizations are joined"
# The table of organizations itself is distributed by its own id.
_OWN_KEYS = {"organizations": "id"}
_QUERIES = (exp.Select, exp.SetOperation, exp.Insert, exp.Update, exp.Delete)


# For each table or WITH definition: the distributed tables that a query which uses it has to tie.
_Known: TypeAlias = Mapping[str, frozenset[str]]


@dataclass
class _Scope:
    """Contains the sources of one query, and the ties between their keys."""

    known: _Known
    outer: "_Scope | None" = None
    # By alias: the name of a distributed table, or of a WITH definition that is not tied itself.
    tables: dict[str, str] = field(default_factory=dict)
    # Aliases of batches of rows, sub-queries, and WITH definitions that are tied themselves.
    others: set[str] = field(default_factory=set)
    ties: list[tuple[str, str]] = field(default_factory=list)

    def add(self, source: exp.Expr) -> None:
        alias = source.alias_or_name
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            if source.name not in self.known:
                return  # Every server has this table.
            if self.known[source.name]:
                self.tables[alias] = source.name
                return
        self.others.add(alias)

    def key_of(self, column: exp.Expr | None) -> str | None:
        """Returns the alias of the source whose key this column is, or None."""
        if not isinstance(column, exp.Column):
            return None
        alias = column.table
        if not alias:
            candidates = [one for one, table in self.tables.items() if column.name == _key(table)]
            alias = candidates[0] if len(candidates) == 1 else ""
        if alias in self.tables:
            return alias if column.name == _key(self.tables[alias]) else None
        if alias in self.others:
            return alias
        return None if self.outer is None else self.outer.key_of(column)

    def tied(self) -> set[str]:
        """Returns the aliases whose keys are given, directly or by ties to others."""
        found = {"", *self.others}
        if self.outer is not None:
            # The check of the outer query finds out whether its own tables are tied.
            found |= set(self.outer.tables) | self.outer.tied()
        while True:
            more = {two for pair in self.ties for one, two in (pair, pair[::-1]) if one in found}
            if more <= found:
                return found
            found |= more

    def untied(self) -> frozenset[str]:
        tied = self.tied()
        left = [alias for alias in self.tables if alias not in tied]
        found = _all(self.known[self.tables[alias]] for alias in left)
        if len(left) > 1 and not self._tied_to(left[0]) >= set(left):
            found |= {ACROSS}
        return found

    def _tied_to(self, alias: str) -> set[str]:
        found = {alias}
        while True:
            more = {two for pair in self.ties for one, two in (pair, pair[::-1]) if one in found}
            if more <= found:
                return found
            found |= more


def _key(table: str) -> str:
    return _OWN_KEYS.get(table, KEY)


def untied(text: str, distributed: frozenset[str]) -> set[str]:
    """Returns the distributed tables whose rows the statement reads or writes for organizations that it
    does not name. The set is empty if the statement stays within the organizations that it names."""
    written = _PARAMETER.sub("$1", text).replace("%%", "%")
    parsed = sqlglot.parse_one(written, dialect="postgres")
    if isinstance(parsed, exp.Command):
        return {name for name in distributed if re.search(rf"\b{name}\b", text)}
    found = {name: frozenset({name}) for name in distributed}
    return set(_check(parsed, None, found))


def _check(query: exp.Expr, outer: _Scope | None, known: _Known) -> frozenset[str]:
    """Returns the tables that are not tied. A query may also tie the tables of its WITH definitions."""
    if not isinstance(query, _QUERIES):
        return _all(_check(part, outer, known) for part in _queries_in(query))
    known = dict(known)
    clause = query.args.get("with_") or query.args.get("with")
    found: frozenset[str] = frozenset()
    for definition in [] if clause is None else clause.expressions:
        known[definition.alias] = _check(definition.this, outer, known)
        if isinstance(definition.this, exp.Insert | exp.Update | exp.Delete):
            found |= known[definition.alias]  # It runs even if the query does not use it.
    if isinstance(query, exp.SetOperation):
        return found | _check(query.left, outer, known) | _check(query.right, outer, known)
    scope = _Scope(known, outer)
    for source in _sources(query):
        scope.add(source)
    for condition in _conditions(query):
        _add_ties(scope, condition)
    _add_using(scope, query)
    return (
        found
        | scope.untied()
        | _all(
            _check(nested, scope, known) for part in _parts(query) for nested in _queries_in(part)
        )
    )


def _all(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _sources(query: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the sources of this query. The target of an INSERT is not a source."""
    if isinstance(query, exp.Update | exp.Delete):
        yield query.this
        yield from query.args.get("using") or []
    clause = query.args.get("from_") or query.args.get("from")
    if clause is not None and not isinstance(query, exp.Insert):
        yield clause.this
        yield from (join.this for join in clause.this.args.get("joins") or [])
    if not isinstance(query, exp.Insert):
        for join in query.args.get("joins") or []:
            yield join.this
            yield from (nested.this for nested in join.this.args.get("joins") or [])
        yield from query.args.get("laterals") or []


def _conditions(query: exp.Expr) -> Iterator[exp.Expr]:
    where = query.args.get("where")
    if where is not None:
        yield where.this
    for join in query.find_all(exp.Join):
        if join.args.get("on") is not None and _query_of(join) is query:
            yield join.args["on"]


def _query_of(node: exp.Expr) -> exp.Expr | None:
    above = node.parent
    while above is not None and not isinstance(above, _QUERIES):
        above = above.parent
    return above


def _add_ties(scope: _Scope, condition: exp.Expr) -> None:
    """Adds the equalities that must all be true. Conditions under OR, NOT or CASE tie nothing."""
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        if isinstance(part, exp.And | exp.Paren) and part is not condition:
            _add_ties(scope, part.unnest())
        elif isinstance(part, exp.EQ):
            left, right = part.this, part.expression
            if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
                for one, two in zip(left.expressions, right.expressions, strict=True):
                    _add_tie(scope, one, two)
            else:
                _add_tie(scope, left, right)
                _add_tie(scope, right, left)


def _add_tie(scope: _Scope, one: exp.Expr, two: exp.Expr) -> None:
    alias = scope.key_of(one)
    if alias is None:
        return
    if _is_given(two):
        scope.ties.append(("", alias))
    elif (other := scope.key_of(two)) is not None:
        scope.ties.append((alias, other))


def _is_given(value: exp.Expr) -> bool:
    """Returns whether the value is a parameter, or any element of a parameter."""
    if isinstance(value, exp.Any | exp.Cast | exp.Paren):
        return _is_given(value.this)
    return isinstance(value, exp.Parameter)


def _add_using(scope: _Scope, query: exp.Expr) -> None:
    """Ties a table that is joined with USING (organization_id) to all sources before it."""
    before = [source.alias_or_name for source in _sources(query)]
    for join in query.args.get("joins") or []:
        names = {column.name for column in join.args.get("using") or []}
        alias = join.this.alias_or_name
        if KEY in names:
            at = before.index(alias)
            scope.ties += [(one, alias) for one in before[:at]]


def _parts(query: exp.Expr) -> Iterator[exp.Expr]:
    """Yields all parts of a query except WITH, which is checked separately."""
    for name, value in query.args.items():
        if name in ("with", "with_"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, exp.Expr):
                yield part


def _queries_in(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the outermost queries in the node, or the node itself if it is a query."""
    if isinstance(node, _QUERIES):
        yield node
        return
    for child in node.iter_expressions():
        yield from _queries_in(child)
