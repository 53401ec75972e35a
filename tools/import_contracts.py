"""A contract for import-linter that it does not have: a package may import only what is listed."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowListContract(Contract):
    """Every import out of `package` names one of `allowed` (top-level names)."""

    type_name = "allow_list"

    package = fields.StringField()
    allowed = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package, allowed = str(self.package), {str(name) for name in self.allowed}  # type: ignore[attr-defined]
        strangers = [
            f"{importer} imports {imported}"
            for importer in sorted({package} | graph.find_descendants(package))
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not f"{imported}.".startswith(f"{package}.")
            and imported.partition(".")[0] not in allowed
        ]
        return ContractCheck(kept=not strangers, metadata={"strangers": strangers})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["strangers"]:
            output.print_error(line)
