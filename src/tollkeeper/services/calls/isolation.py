"""Replaces the session and cache keys of callers by values that only this gateway can compute, so
that backends never see the original keys and projects never share one."""

from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.affinity import CachePurpose, affinity_key, isolated_text
from tollkeeper.services.vault import Vault


class Isolation:
    def __init__(self, vault: Vault) -> None:
        self._secret = vault.derive("isolation")

    def affinity(self, caller: ProjectCaller, session: str) -> bytes:
        return affinity_key(self._secret, caller.organization_id, caller.project_id, session)

    def isolated(self, caller: ProjectCaller, purpose: CachePurpose, text: str) -> str:
        return isolated_text(self._secret, caller.organization_id, caller.project_id, purpose, text)
