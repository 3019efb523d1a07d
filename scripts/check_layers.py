#!/usr/bin/env python3
"""Checks the includes of the source tree, and the imports inside the Python package of backend/torch. Files include
only folders of lower layers, a library is included only by the folders that own it, and modules do not depend on one
another in a circle. A header and its source are one module.

usage: check_layers.py [ROOT]    ROOT is this repository by default

Prints each violation as path:line and exits with 1 if there is any.
"""

import ast
import pathlib
import re
import sys

# Folder -> the other folders that its files may include. A file follows the rules of the folder
# that it stands in; a file of tests/ without rules follows those for "tests". "traces" stands for
# traces/ alone. A name that ends in "/" allows all folders below it.
TRACES = ["traces/base", "traces/ops", "traces", "traces/lowering", "traces/zoo", "traces/logs", "traces/import"]
CORE = ["traces/", "sim/core"]
RUN = [*CORE, "sim/", "policies/", "backend/"]
HALL = [*RUN, "experiments/changes", "experiments/run", "experiments/output"]
TORCH = "backend/torch/spillway_torch"
ROOMS = [f"{TORCH}/{room}" for room in ("base", "step", "tape", "plan", "run", "compiled", "fit")]
TOOLS = ["fit", "limit", "measure", "plan", "replay", "report", "sweep"]
LAYERS = {
    **{folder: TRACES[:i] for i, folder in enumerate(TRACES)},
    "sim/core": ["traces/"],
    "sim/runtime": CORE,
    "sim/packing": CORE,
    "sim/alloc/pool": CORE,
    "sim/alloc": [*CORE, "sim/alloc/pool", "sim/packing"],
    "sim/cost/records": CORE,
    "sim/cost": [*CORE, "sim/cost/records"],
    "sim/compression": CORE,
    "sim/engine": [*CORE, "sim/compression"],
    "policies/kernels": CORE,
    "policies/parts": [*CORE, "policies/kernels"],
    "policies/plan": [*CORE, "policies", "policies/kernels", "policies/parts"],
    "policies/mmcnn": [*CORE, "policies", "policies/kernels", "policies/parts"],
    "policies": [*CORE, "sim/packing", "policies/kernels", "policies/parts", "policies/plan"],
    "policies/recorded": [*CORE, "policies", "policies/parts"],
    "policies/plugin": [*CORE, "policies"],
    "backend/common": CORE,
    "backend/cpu": [*CORE, "sim/compression", "backend/common"],
    "backend/cuda": [*CORE, "sim/compression", "backend/common"],
    **{room: ROOMS[:i] for i, room in enumerate(ROOMS)},
    f"{TORCH}/operators": ROOMS[:2],
    f"{TORCH}/integrations": ROOMS,
    TORCH: [f"{TORCH}/"],
    "backend": [*CORE, "backend/"],
    "experiments/changes": [*CORE, "sim/", "policies/"],
    "experiments/run": [*RUN, "experiments/changes"],
    "experiments/output": [*RUN, "experiments/changes", "experiments/run"],
    "experiments/cli/frame": HALL,
    **{f"experiments/tools/{tool}": [*HALL, "experiments/cli/frame"] for tool in TOOLS},
    "experiments/papers": [*HALL, "experiments/cli/frame", "experiments/tools/"],
    "experiments/cli": [*HALL, "experiments/cli/frame", "experiments/tools/", "experiments/papers"],
    "experiments/evidence/roofline": [*RUN, "experiments/run"],
    "experiments/bench": [*RUN, "experiments/", "tests/testing/"],
    "tests": ["traces/", "sim/", "policies/", "backend/", "experiments/", "tests/"],
}
LAYERS["tests/testing"] = LAYERS["tests"]
LAYERS["experiments/tools/sweep"].append("experiments/tools/measure")
LAYERS["experiments/tools/fit"].append("experiments/tools/plan")
LAYERS["experiments/tools/report"].append("experiments/tools/sweep")

# A library header -> the folders that may include it. The folders below them may, too.
LIBRARIES = {
    r"boost/": ["traces/lowering", "policies"],
    r"Eigen/": ["backend/cpu", "experiments/tools/measure", "sim/cost"],
    r"(cuda|cublas|curand|cupti|nvtx)": ["backend/cuda", "tests/cuda"],
    r"cudnn": ["backend/cuda"],
    r"(torch|ATen|c10)/": ["backend/torch"],
    r"CLI/": ["experiments/cli/frame"],
    r"benchmark/": ["experiments/bench"],
    r"simdjson": ["traces/base", "traces/import"],
    r"zstd": ["traces/base"],
    r"toml\+\+": ["sim/core", "experiments/tools/sweep"],
    r"(SQLiteCpp/|sqlite3)": ["sim/cost/records", "experiments/tools/sweep", "tests/unit"],
    r"(tbb|oneapi)/": ["experiments", "sim/packing", "tests"],
}

# Libraries so large that no header may include them: all who include it would pay for them.
HIDDEN = r"boost/|simdjson|regex$"

# Modules whose names several backends share, one in each.
MIRRORED = {"copy_path", "kernels", "pooling"}

# Folder -> the namespaces, inside spillway, of its files.
SPACES = {"traces": ["traces"], "sim": ["sim"], "policies": ["policies"], "backend/common": ["backend"], "backend/cpu": ["cpu"],
          "backend/cuda": ["cuda"], "experiments": ["lab", "cli"], "tests": ["testing", "fuzz"]}

# The libraries, which must not define two types of one name: a type of one library would hide the other library's.
LIBRARY = r"spillway::(traces|sim|policies|backend|cpu|cuda|lab)\b"
NAMESPACE = re.compile(r"namespace ([\w:]*) ?\{$|\}  // namespace")
TYPE = re.compile(r"(?:struct|class|enum class|union) (\w+)(?: final)?(?: *:(?!:).*)?(?: \{.*)?$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cc", ".cu"}
TOP = ["traces", "sim", "policies", "backend", "experiments", "tests"]


def folder_of(path: str) -> str | None:
    """Returns the key of `LAYERS` for a file: its folder, else "tests" for files below tests/, else None."""
    folder = path.rpartition("/")[0]
    return folder if folder in LAYERS else "tests" if path.startswith("tests/") else None


def allows(rules, folder: str) -> bool:
    return any(folder == rule or (rule.endswith("/") and (folder + "/").startswith(rule)) for rule in rules)


def module_of(path: str) -> str:
    return path.rpartition(".")[0]


def imports(root: pathlib.Path, path: pathlib.Path):
    """Yields the line and the file of each module of its own package that a Python file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in node.names:
                found = [f for f in (base / f"{name.name}.py", base.with_suffix(".py"), base / "__init__.py") if f.exists()]
                yield node.lineno, found[0].relative_to(root).as_posix()


class Tree:
    """The files of a source tree and their includes."""

    def __init__(self, root: pathlib.Path):
        self.files = {}  # path -> [(line, quote, header)]
        self.types = {}  # (namespaces, name) -> [path:line]
        self.misplaced = []  # a line for each namespace that is not its folder's
        for top in TOP:
            for path in sorted((root / top).rglob("*")):
                if path.suffix not in SOURCES:
                    continue
                lines = path.read_text(encoding="utf-8").splitlines()
                matches = [(n, INCLUDE.match(line)) for n, line in enumerate(lines, start=1)]
                self.note_types(path.relative_to(root).as_posix(), lines)
                self.files[path.relative_to(root).as_posix()] = [(n, *m.groups()) for n, m in matches if m]
        for path in sorted((root / TORCH).rglob("*.py")):
            self.files[path.relative_to(root).as_posix()] = [(n, '"', m) for n, m in imports(root, path)]

    def note_types(self, path: str, lines):
        """Notes the types that a file defines for others to see; clang-format starts them in the first column."""
        spaces = []
        for number, line in enumerate(lines, start=1):
            space, kind = NAMESPACE.match(line), TYPE.match(line)
            if space and space[1] is None:
                spaces.pop()
            elif space:
                spaces.append(space[1])
                homes = next((SPACES[folder] for folder in SPACES if path.startswith(folder + "/")), [])
                if homes and path != "traces/base/namespaces.h" and re.match(r"spillway(?!::(%s)\b)" % "|".join(homes), space[1]):
                    self.misplaced.append(f"{path}:{number}: {space[1]} is not spillway::{' or spillway::'.join(homes)}")
            elif kind and "" not in spaces and not path.startswith(("tests/fuzz/", "tests/out_of_tree/")):
                self.types.setdefault((*(re.sub(LIBRARY, "spillway", space) for space in spaces), kind[1]), []).append(f"{path}:{number}")

    def duplicates(self):
        """Types that two files define, and modules of the same name."""
        for (*spaces, name), places in self.types.items():
            if len(places) > 1:
                yield f"{places[1]}: {'::'.join(spaces)}::{name} is defined in {places[0]}, too"
        stems = {}
        for module in sorted({module_of(path) for path in self.files if not path.startswith(("tests/", f"{TORCH}/"))}):
            folder, _, stem = module.rpartition("/")
            other = stems.setdefault(stem, folder)
            if other != folder and stem not in MIRRORED:
                yield f"{module}: {other} has a module of that name, too"

    def violations(self):
        # Files of tests/out_of_tree include installed headers, like another project's.
        for path, includes in self.files.items():
            if path.startswith("tests/out_of_tree/"):
                continue
            own = folder_of(path)
            if own is None:
                yield f"{path}:1: {path.rpartition('/')[0]}/ has no rule in scripts/check_layers.py"
                continue
            for line, quote, header in includes:
                problem = self.library(path, header) if quote == "<" else self.layer(own, header)
                if problem:
                    yield f"{path}:{line}: {problem}"

    @staticmethod
    def library(path: str, header: str):
        for pattern, homes in LIBRARIES.items():
            if re.match(pattern, header) and not any(path.startswith(home + "/") for home in homes):
                return f"<{header}> belongs to {', '.join(homes)}"
        if path.endswith(".h") and re.match(HIDDEN, header):
            return f"<{header}> belongs in sources, not in headers"
        return None

    def layer(self, own: str, header: str):
        if header not in self.files:
            return f'"{header}" is not a path from the root'
        folder = folder_of(header)
        if folder != own and not allows(LAYERS[own], folder):
            return f'{own} must not include "{header}"'
        return None

    def circles(self):
        """Returns each set of modules that depend on one another, by Tarjan's algorithm."""
        uses = {}
        for path, includes in self.files.items():
            names = (module_of(h) for _, quote, h in includes if quote == '"' and h in self.files)
            uses.setdefault(module_of(path), set()).update(names)
        index, low, stack = {}, {}, []
        found = []

        def visit(module):
            index[module] = low[module] = len(index)
            stack.append(module)
            for used in sorted(uses.get(module, ())):
                if used == module:
                    continue
                if used not in index:
                    visit(used)
                    low[module] = min(low[module], low[used])
                elif used in stack:
                    low[module] = min(low[module], index[used])
            if low[module] == index[module]:
                at = stack.index(module)
                circle = sorted(stack[at:])
                del stack[at:]
                if len(circle) > 1:
                    found.append(circle)

        sys.setrecursionlimit(10000)
        for module in sorted(uses):
            if module not in index:
                visit(module)
        return found


def main() -> int:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    tree = Tree(root)
    found = [*tree.violations(), *tree.misplaced, *tree.duplicates(), *(f"a circle of modules: {' '.join(c)}" for c in tree.circles())]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
