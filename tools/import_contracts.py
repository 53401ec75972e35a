"""Adds a kind of contract to import-linter: a package may import only listed packages."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowListContract(Contract):
    """Requires that `package` imports only itself and the top-level packages in `allowed`."""

    type_name = "allow_list"

    package = fields.StringField()
    allowed = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package, allowed = str(self.package), {str(name) for name in self.allowed}  # type: ignore[attr-defined]
        forbidden_imports = [
            f"{importer} imports {imported}"
            for importer in sorted({package} | graph.find_descendants(package))
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not f"{imported}.".startswith(f"{package}.")
            and imported.partition(".")[0] not in allowed
        ]
        return ContractCheck(
            kept=not forbidden_imports, metadata={"forbidden_imports": forbidden_imports}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["forbidden_imports"]:
            output.print_error(line)
