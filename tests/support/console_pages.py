"""Lists the URL paths of all console pages from the table of permissions, so new pages are included."""

from collections.abc import Mapping

from tollkeeper.console.permissions import PERMISSIONS
from tollkeeper.domain.people import Role

# Endings of paths whose answers are not pages: files, and a stream of events.
_NO_PAGES = (".csv", ".gz", "/export", "/tail")


def filled_paths(ids: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the method and the path of every route and action, in the order of the table."""
    filled = []
    for name in PERMISSIONS:
        method, path = name.split(" ")
        of_path = {**ids, "key": ids["admin_key"]} if "admin-keys" in path else ids
        filled.append((method, path.format_map(of_path)))
    return filled


def page_paths(ids: Mapping[str, str], role: Role = Role.OWNER) -> list[str]:
    """Returns the path of every page that the role may see."""
    return [
        path
        for (method, path), access in zip(filled_paths(ids), PERMISSIONS.values(), strict=True)
        if method == "GET" and not path.endswith(_NO_PAGES) and access.allows(role)
    ]
