"""The house stays as it was drawn: layout, one-way imports, small files, and deployment files that name real things."""

from __future__ import annotations

import ast
import asyncio
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway import settings

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "gateway").rglob("*.py"))

TOP_LEVEL = {
    *(".ci", ".dockerignore", ".editorconfig", ".git", ".gitignore"),
    *("CHANGELOG.md", "Dockerfile", "LICENSE", "Makefile", "README.md", "docker-compose.yml", "pyproject.toml"),
    *("config", "deploy", "docs", "gateway", "tests"),
}

# Room -> what of ours it may import, besides itself (DESIGN, "Imports point one way").
MAY_IMPORT = {
    "protocol": set(),
    "settings": set(),
    "telemetry": {"protocol"},
    "flows": {"protocol"},
    "vault": {"protocol"},
    "upstream": {"protocol", "telemetry"},
    "store": {"protocol", "telemetry", "vault"},  # the vault's check values and pepper are kept in the store
    "delivery": {"protocol", "telemetry", "flows"},
    "obligations": {"protocol", "telemetry", "flows"},
    "background": {"protocol", "telemetry", "flows", "store"},
    "ingress": {"protocol", "telemetry", "flows"},
    "egress": {"protocol", "telemetry", "flows"},
    "operator": {"protocol", "telemetry", "flows", "store", "ingress"},  # its listener stands on the same edge
    # Its listener is the operator's; it seals pull tokens.
    "central": {"protocol", "telemetry", "flows", "store", "operator", "vault"},
}
EVERYWHERE = {"crash_points"}  # but in the pure rules
COMPOSERS = {"cli", "runtime", "__init__", "__main__"}  # they put the rooms together, so they may know all of them

# Libraries with a room of their own.
ONLY_IN = {
    "asyncpg": {"store"},
    "httptools": {"upstream"},
    "jinja2": {"central"},
    "pydantic": {"settings"},
    "rich": {"cli"},
    "typer": {"cli"},
    "yaml": {"settings"},
}
IMPURE = {"aiohttp", "asyncio", "asyncpg", "socket", "subprocess", "threading", "time"}


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "gateway").with_suffix("").parts[0]


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_top_level_holds_only_what_belongs_there() -> None:
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    found = {entry.name for entry in ROOT.iterdir()}
    strays = {name for name in found - TOP_LEVEL if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}
    assert strays == set()


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    for name in imports(path):
        library, *rest = name.split(".")
        if library == "gateway" and rest:
            if room not in COMPOSERS and rest[0] != room:
                assert room in MAY_IMPORT, f"the room {room} has no line in MAY_IMPORT"
                allowed = MAY_IMPORT[room] | (EVERYWHERE if room != "protocol" else set())
                assert rest[0] in allowed, f"{room} must not know {name}"
        else:
            assert room in COMPOSERS or room in ONLY_IN.get(library, {room}), f"{library} is not for {room}"


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) == "protocol"], ids=identity)
def test_the_rules_of_the_protocol_are_pure(path: Path) -> None:
    """No await, no clock, no sockets: rules decide, flows act."""
    assert {name.split(".")[0] for name in imports(path)} & IMPURE == set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"line {node.lineno}: no await in a rule"
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"now", "utcnow", "today"}, f"line {node.lineno}: time is passed in"


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_every_file_is_small_and_says_its_role(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 400
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no docstring"


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    for folder in ("gateway", "tests", "deploy", "config", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in {".py", ".sql", ".yaml", ".md", ""}:
                assert not marks.search(path.read_text("utf-8")), path


def test_the_libraries_declared_are_those_imported_and_each_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    declared = {re.split(r"[<>=\[]", name)[0].lower() for name in tomllib.loads(text)["project"]["dependencies"]}
    distributions = {"yaml": "pyyaml", "pydantic_core": "pydantic", "prometheus_client": "prometheus-client"}
    distributions |= {"jwt": "pyjwt", "http_message_signatures": "http-message-signatures", "http_sf": "http-sf"}
    used = {name.split(".")[0] for path in MODULES for name in imports(path)} - sys.stdlib_module_names - {"gateway"}
    assert {distributions.get(library, library) for library in used} == declared
    for name in declared:
        assert re.search(rf'^ +"{name}[^"]+",? +# \S', text, re.MULTILINE | re.IGNORECASE), f"why {name}?"


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest), continuation lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1].strip()) for line in lines]


def last(instruction: str) -> str:
    return [rest for name, rest in dockerfile() if name == instruction][-1]


def test_the_image_is_built_from_files_that_exist_and_runs_unprivileged() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, rest in dockerfile():
        if name == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in kept, f".dockerignore leaves {source} out"
        assert "embedded" not in rest, "a container is given a database"
    assert last("USER").split(":")[0] not in {"0", "root"}
    assert last("EXPOSE").split() == ["8080", "9080"]
    command = json.loads(last("ENTRYPOINT")) + json.loads(last("CMD"))
    assert command == ["twophp", "serve", "-c", "/etc/twophp/gateway.yaml"]


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
async def test_the_health_check_of_the_image_asks_the_operator_listener(status: int, healthy: bool) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/healthz"
        return web.Response(status=status)

    assert "http://127.0.0.1:9080/healthz" in last("ENV")
    python, *arguments = json.loads(last("HEALTHCHECK").split("CMD", 1)[1])
    assert python == "python"
    application = web.Application()
    application.router.add_get("/healthz", answer)
    async with TestServer(application) as server:
        environment = {"TWOPHP_HEALTH_URL": str(server.make_url("/healthz")), "http_proxy": "http://127.0.0.1:9"}
        process = await _run(sys.executable, *arguments, environment=environment)
    assert (process == 0) is healthy


async def _run(*arguments: str, environment: dict[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(*arguments, env=environment, stderr=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(30):
        return await process.wait()


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def test_compose_names_files_modules_and_services_that_exist() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "sample", "gateway"}
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose()["volumes"] or (ROOT / source).is_file(), source
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "a development set-up is not for the network"
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in services[needed]
    _, flag, module = services["sample"]["entrypoint"]
    assert flag == "-m"
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module


def kubernetes() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/sidecar.yaml").read_text())
    return {document["kind"]: document for document in documents}


def test_the_configuration_of_compose_is_valid_with_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = compose()["services"]["gateway"]
    for name, value in gateway["environment"].items():
        monkeypatch.setenv(name, value)
    loaded = settings.load(ROOT / "deploy/compose/gateway.yaml")
    assert (loaded.listen.port, loaded.operator.port) == (8080, 9080)
    grace_s = int(gateway["stop_grace_period"].removesuffix("s"))
    assert grace_s * 1000 > loaded.drain.timeout_ms


def test_the_kubernetes_example_is_valid_and_hangs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = kubernetes()
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (gateway,) = [container for container in pod["containers"] if container["name"] == "gateway"]
    key = compose()["services"]["gateway"]["environment"]["TWOPHP_KEY_DEV"]
    for variable in gateway["env"]:
        reference = variable["valueFrom"]["secretKeyRef"]
        assert reference["key"] in documents["Secret"]["stringData"]
        monkeypatch.setenv(variable["name"], key if "KEY" in variable["name"] else "postgresql://user@host/database")
    loaded = settings.parse(documents["ConfigMap"]["data"]["gateway.yaml"], "gateway.yaml")
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    assert ports == {"http": loaded.listen.port, "operator": loaded.operator.port}
    assert documents["Service"]["spec"]["ports"][0]["targetPort"] in ports
    assert gateway["securityContext"]["runAsUser"] == int(last("USER").split(":")[0])
    assert pod["terminationGracePeriodSeconds"] * 1000 > loaded.drain.timeout_ms


def test_the_prometheus_example_is_valid_yaml() -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/scrape.yaml").read_text())["scrape_configs"]
    assert {job["job_name"] for job in jobs} == {"twophp-gateway", "twophp-gateway-pods"}
    operator = next(port for port in last("EXPOSE").split() if port != "8080")
    assert jobs[0]["static_configs"][0]["targets"] == [f"127.0.0.1:{operator}"]


@pytest.mark.parametrize("target", ["run", "test", "lint", "bench", "chaos", "matrix", "mutants", "clean"])
def test_make_knows_its_targets(target: str) -> None:
    subprocess.run(["make", "--dry-run", "--silent", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_the_wheel_holds_everything_and_installs_the_command(tmp_path: Path) -> None:
    """The commands of the Dockerfile, in an empty environment."""
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", "gateway"):
        _copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = tmp_path.glob("twophp_gateway-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "gateway").rglob("*")
        if path.suffix in {".py", ".sql", ".html", ".css", ".js", ".svg"} or path.name == "py.typed"
    }
    assert held == expected

    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    # The libraries are those that the tests run with: only our own package is under test.
    (site,) = environment.glob("lib/python*/site-packages")
    libraries = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n")
    found = subprocess.run(
        [python, "-c", "import gateway; print(gateway.__file__)"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.startswith(str(site))
    helped = subprocess.run([environment / "bin" / "twophp", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert helped.returncode == 0, helped.stderr
    assert "serve" in helped.stdout


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)


def test_the_check_of_ci_is_an_executable_script() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("visit", ["first", "second"])
async def test_every_test_gets_a_migrated_database_of_its_own(fresh_database: str, visit: str) -> None:
    connection = await asyncpg.connect(fresh_database)
    try:
        assert await connection.fetchval("SELECT count(*) FROM schema_migrations") > 0
        await connection.execute("CREATE TABLE left_behind ()")
    finally:
        await connection.close()
