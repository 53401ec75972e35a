"""Adds two kinds of contracts to import-linter: pure modules, and no circle between files."""

from fnmatch import fnmatchcase

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class _ListingContract(Contract):
    """Reports what breaks it line by line."""

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line)


class PureContract(_ListingContract):
    """Modules whose names match `modules` import only each other and the libraries in `allowed`."""

    type_name = "pure"

    modules = fields.SetField(subfield=fields.StringField())
    allowed = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        patterns = {str(one) for one in self.modules}  # type: ignore[attr-defined]
        allowed = {str(one) for one in self.allowed}  # type: ignore[attr-defined]
        unmatched = set(patterns)

        def is_pure(module: str) -> bool:
            matched = {one for one in patterns if _matches(module, one)}
            unmatched.difference_update(matched)
            return bool(matched)

        pure = {module for module in graph.modules if is_pure(module)}
        broken = [
            f"{importer} imports {imported}"
            for importer in sorted(pure)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported not in pure and imported.partition(".")[0] not in allowed
        ]
        broken += [f"no module is named {one}" for one in sorted(unmatched)]
        return ContractCheck(kept=not broken, metadata={"broken": broken})


class AcyclicFilesContract(_ListingContract):
    """No files of `package` import each other in a circle, whatever folders they're in."""

    type_name = "acyclic_files"

    package = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package = str(self.package)
        left = {
            module: {
                one
                for one in graph.find_modules_directly_imported_by(module)
                if f"{one}.".startswith(f"{package}.") and one != module
            }
            for module in graph.find_descendants(package)
        }
        while free := {module for module, imported in left.items() if not imported & left.keys()}:
            for module in free:
                del left[module]
        broken = [
            f"{module} imports {', '.join(sorted(imported & left.keys()))}"
            for module, imported in sorted(left.items())
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})


def _matches(module: str, pattern: str) -> bool:
    """`*` stands for one part of a name, as in import-linter."""
    names, wanted = module.split("."), pattern.split(".")
    return len(names) == len(wanted) and all(map(fnmatchcase, names, wanted))
