"""The plan of the house: imports point down, files are short, and nothing dangerous is called."""

import ast
import functools
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "nmt"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 400

# An import may point to the same room or to a lower layer. Rooms of one layer do not see each other.
LAYER = {
    "device": 0,
    "errors": 0,
    "extras": 0,
    "files": 0,
    "languages": 0,
    "native": 0,
    "pack": 0,
    "processes": 0,
    "progress": 0,
    "recipe": 0,
    "torchrun": 0,
    "data": 1,
    "models": 1,
    "run_folder": 1,
    "checkpoint": 2,
    "run": 2,
    "evaluation": 2,
    "decoding": 2,
    "threads": 2,
    "api": 3,
    "training": 3,
    "export": 3,
    "cli": 4,
    "": 4,  # the package itself, which is the way in from Python
}
# The exceptions: every room may see the errors and what makes files durable, recipes know languages, processes speak in
# what is packed, and a run folder is made of checkpoints.
ALSO = {
    ("device", "errors"),
    ("recipe", "errors"),
    ("recipe", "files"),
    ("recipe", "languages"),
    ("languages", "errors"),
    ("extras", "errors"),
    ("files", "errors"),
    ("torchrun", "errors"),
    ("processes", "errors"),
    ("processes", "pack"),
    ("run", "checkpoint"),
}

# The rooms of a package, each of which may see itself and those before it; "" is what lies beside them.
IN_PACKAGE = {
    "data": (
        "arrays",
        "text",
        "sharing",
        "vocabulary",
        "stored",
        "batching",
        "resampling",
        "units",
        "filters",
        "reading",
        "reporting",
        "blockwise",
        "",
    ),
    "decoding": ("scoring", "constraints", "search", ""),
    "training": ("log", "ranks", "optimizers", "losses", "", "starting", "checking"),
}

MODULES_NOT_USED = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
BUILTINS_NOT_CALLED = {"eval", "exec", "compile", "__import__"}
CALLS_NOT_MADE = {
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "os.system",
    "os.popen",
    "torch.load",
    "torch.save",
    "np.load",
    "numpy.load",
}
METHODS_NOT_CALLED = {"splitlines", "extractall"}
ARGUMENTS_NOT_TRUE = {"shell", "allow_pickle", "trust_remote_code"}


def name_of(path):
    """nmt/data/text/lines.py -> nmt.data.text.lines"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@pytest.fixture(scope="module", autouse=True)
def no_tree_outlives_these_tests():
    yield
    statements_of.cache_clear()
    tree_of.cache_clear()


MODULES = {name_of(path): path for path in FILES}


def room_of(module):
    return module.split(".")[1] if "." in module else ""


def room_in_package(module):
    """nmt.data.text.lines -> text; nmt.data.prepare -> nothing"""
    parts = module.split(".")
    return "" if MODULES[".".join(parts[:3])].name == f"{parts[2]}.py" else parts[2]


def only_for_types(statements):
    """Every node under `if TYPE_CHECKING:`, which is never run."""
    return {
        id(node)
        for block in statements
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for part in block.body
        for node in ast.walk(part)
    }


@functools.cache
def statements_of(path):
    """Every import and `if` of a file, wherever in it."""
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Import | ast.ImportFrom | ast.If)]


def imports_of(path, *, run=False):
    """Modules of the package that a file imports, wherever in the file. run: only what is really executed."""
    skipped = only_for_types(statements_of(path)) if run else set()
    for node in statements_of(path):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: write the whole name of the module, no relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def complaint(path, line, text):
    return f"{path.relative_to(ROOT)}:{line}: {text}"


def test_every_room_has_a_layer():
    rooms = {room_of(module) for module in MODULES}
    assert not rooms - set(LAYER), "say in LAYER what these may see"


def test_imports_point_down():
    wrong = []
    for module, path in MODULES.items():
        here = room_of(module)
        for line, target in imports_of(path):
            there = room_of(target)
            if not target.startswith("nmt.") or there == here or (here, there) in ALSO:
                continue
            if LAYER[there] >= LAYER[here]:
                wrong.append(
                    complaint(path, line, f"{here} (layer {LAYER[here]}) imports {target} (layer {LAYER[there]})")
                )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", IN_PACKAGE)
def test_in_a_package_too_imports_point_down(package):
    rooms, wrong = IN_PACKAGE[package], []
    for module, path in MODULES.items():
        if not module.startswith(f"nmt.{package}.") or path.name == "__init__.py":
            continue
        here = rooms.index(room_in_package(module))
        for line, target in imports_of(path):
            if target.startswith(f"nmt.{package}.") and rooms.index(room_in_package(target)) > here:
                wrong.append(complaint(path, line, f"{module} imports {target}, which lies above it"))
    assert not wrong, "\n".join(wrong)


def test_no_import_goes_in_a_circle():
    seen = {
        module: {target for _, target in imports_of(path, run=True)} & set(MODULES) for module, path in MODULES.items()
    }
    done = set()

    def visit(module, trail):
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for target in sorted(seen[module]):
                visit(target, [*trail, module])
            done.add(module)

    for module in MODULES:
        visit(module, [])


def test_a_file_fits_a_readers_head():
    n_line = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in FILES}
    assert {name: n for name, n in n_line.items() if n > MOST_LINES} == {}, "it should have been two files"


def test_init_files_are_empty_but_the_way_in():
    written = [path for path in FILES if path.name == "__init__.py" and path.stat().st_size]
    assert written == [PACKAGE / "__init__.py"]


def test_there_is_no_drawer_for_everything():
    assert [str(path) for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")] == []


def test_what_is_public_says_what_it_is():
    wrong = []
    for path in FILES:
        if path.name == "__init__.py":
            continue
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            wrong.append(complaint(path, 1, "the file has no docstring"))
        for node in tree.body:
            is_public = isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"
            if is_public and not ast.get_docstring(node):
                wrong.append(complaint(path, node.lineno, f"{node.name} has no docstring"))
    assert not wrong, "\n".join(wrong)


def dangers_in(tree):
    """(line, what) for each thing that reads code out of data, runs a shell, or depends on the locale."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, f"import {name}") for name in names if name.split(".")[0] in MODULES_NOT_USED)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        method = called.rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
        if called in BUILTINS_NOT_CALLED | CALLS_NOT_MADE or method in METHODS_NOT_CALLED:
            yield node.lineno, f"{called}()"
        for keyword in node.keywords:
            if keyword.arg in ARGUMENTS_NOT_TRUE and ast.unparse(keyword.value) != "False":
                yield node.lineno, f"{keyword.arg}={ast.unparse(keyword.value)}"
        if is_text_without_encoding(node, called, method):
            yield node.lineno, f"{called}() of text without encoding="


def is_text_without_encoding(node, called, method):
    if any(keyword.arg == "encoding" for keyword in node.keywords):
        return False
    if method == "read_text":
        return not node.args
    if method == "write_text":
        return len(node.args) < 2
    modes = [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    if called in ("open", "os.fdopen", "io.open"):
        mode = (modes or node.args[1:2] or [ast.Constant("r")])[0]
        return not isinstance(mode, ast.Constant) or "b" not in mode.value
    if called in ("gzip.open", "bz2.open", "lzma.open"):
        mode = (modes or node.args[1:2] or [ast.Constant("rb")])[0]
        return not isinstance(mode, ast.Constant) or "t" in mode.value
    if method == "open":  # of a path; other things that open take what they open as first argument
        mode = (modes or node.args[:1] or [ast.Constant("r")])[0]
        return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and "b" not in mode.value
    return False


def test_nothing_dangerous_is_called():
    found = [complaint(path, line, text) for path in FILES for line, text in dangers_in(tree_of(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import a, dill.x",
        "eval('1')",
        "exec(x)",
        "compile(x, '', 'exec')",
        "yaml.load(x)",
        "os.system('x')",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=y)",
        "torch.load(x)",
        "np.load(x)",
        "'a'.splitlines()",
        "f().splitlines()",
        "tar.extractall()",
        "open(x)",
        "open(x, 'w')",
        "open(x, mode)",
        "path.open()",
        "path.open('a+')",
        "path.open(mode='w')",
        "gzip.open(x, 'rt')",
        "path.read_text()",
        "path.write_text(x)",
        "os.fdopen(3, 'w')",
    ],
)
def test_a_danger_is_seen(code):
    assert list(dangers_in(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "torch.compile(x)",
        "re.compile(x)",
        "model.eval()",
        "open(x, 'rb')",
        "open(x, encoding='utf-8')",
        "path.open('wb')",
        "path.open('x', encoding='utf-8')",
        "gzip.open(x)",
        "Prepared.open(folder)",
        "path.read_text(encoding='utf-8')",
        "yaml.safe_load(x)",
        "np.save(x, y)",
    ],
)
def test_what_is_harmless_is_not_taken_for_a_danger(code):
    assert not list(dangers_in(ast.parse(code)))


def test_nothing_is_left_undone():
    marks = ("TODO", "FIXME", "XXX", "NotImplementedError", "# noqa", "type: ignore")
    found = [
        complaint(path, number, line.strip())
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        if any(mark in line for mark in marks)
    ]
    assert not found, "\n".join(found)


def test_the_commands_that_are_installed_exist():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert set(scripts) >= {"nmt-preprocess", "nmt-train", "nmt-translate"}
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert module in MODULES, target
        assert function in [node.name for node in tree_of(MODULES[module]).body if isinstance(node, ast.FunctionDef)]
