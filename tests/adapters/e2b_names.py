"""Plugin for E2B's own tests: `e2b` is staddle.compat.e2b, and fixtures make our sandboxes."""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import sys
import types
import uuid
from fnmatch import fnmatch

import pytest
import pytest_asyncio

from staddle.compat import e2b as facade

CLIENT = "of E2B's HTTP client: requests, tokens and headers of its service"
SERVICE = "of a part of E2B's service that is not offered: the facade refuses it"
INTERNET = "needs hosts of the internet"
TLS = "the port of a sandbox is reached on the loopback, without TLS"
KERNEL = "a sandbox has the kernel of the host, whose boot id stays"
#: Tests of theirs that cannot pass, by pattern, and the reason.
NOT_HERE = {
    "*test_config_propagation*": CLIENT,
    "*test_sync_client_lifecycle*": CLIENT,
    "*test_connect_in_*debug_mode*": CLIENT,
    "*test_instance_connect_in_debug_mode*": CLIENT,
    "*test_connect_normalizes_unset_tokens": CLIENT,
    "*test_create_payload_*": CLIENT,
    "*test_create.py::test_start": CLIENT,
    "*test_start_secured": CLIENT,
    "*test_connect_to_secured": CLIENT,
    "*with_secured_envd": CLIENT,
    "*test_download_url_*": SERVICE,
    "*test_mcp_gateway_*": SERVICE,
    "*test_auto_resume_*": SERVICE,
    "*test_mask_request_host": SERVICE,
    "*test_firewall_transform_*": SERVICE,
    "*test_allow_public_traffic_*": TLS,
    "*test_ping_server": TLS,
    "*test_internet_access_enabled": INTERNET,
    "*test_internet_access_default": INTERNET,
    "*test_allow_specific_ip_*": INTERNET,
    "*test_deny_specific_ip": INTERNET,
    "*test_allow_takes_precedence_*": INTERNET,
    "*test_update_network_*": INTERNET,
    "*test_pause_filesystem_only": KERNEL,
    "*test_auto_pause_filesystem_only_reboots": KERNEL,
    "*sandbox_sync/*::test_watch_iterated": "counts the events of inotify",
    "*sandbox_sync/*::test_watch_recursive_directory_changes": "counts the events of inotify",
}
#: Of those, the ones that pass.
PASSES = ("*test_watch_file_with_secured_envd",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = f"{item.path}::{item.name}"
        reasons = [NOT_HERE[pattern] for pattern in NOT_HERE if fnmatch(name, pattern)]
        if reasons and not any(fnmatch(name, pattern) for pattern in PASSES):
            item.add_marker(pytest.mark.xfail(run=False, reason=reasons[0]))


class FacadeModule(types.ModuleType):
    """`e2b`, or a module below it: names of the facade, and empty classes for the others."""

    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(facade, name, None) or type(name, (), {})


class FacadeFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `e2b` and everything below it."""

    def find_spec(self, name, path, target=None):
        if name == "e2b" or name.startswith("e2b."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return FacadeModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, FacadeFinder())


@pytest.fixture
def test_api_key():
    return "e2b_" + "0" * 40


@pytest.fixture
def sandbox_test_id():
    return f"test_{uuid.uuid4().hex}"


@pytest.fixture
def template():
    return "base"


@pytest.fixture
def debug():
    return False


@pytest.fixture
def sandbox_factory(request, template, sandbox_test_id):
    def factory(*, template_name=template, **options):
        options.setdefault("metadata", {}).setdefault("sandbox_test_id", sandbox_test_id)
        made = facade.Sandbox.create(template_name, **options)
        request.addfinalizer(made.kill)
        return made

    return factory


@pytest.fixture
def sandbox(sandbox_factory):
    return sandbox_factory()


@pytest_asyncio.fixture
async def async_sandbox_factory(template, sandbox_test_id):
    opened = []

    async def factory(*, template_name=template, **options):
        options.setdefault("metadata", {}).setdefault("sandbox_test_id", sandbox_test_id)
        opened.append(await facade.AsyncSandbox.create(template_name, **options))
        return opened[-1]

    yield factory
    await asyncio.gather(*(each.kill() for each in opened))


@pytest_asyncio.fixture
async def async_sandbox(async_sandbox_factory):
    return await async_sandbox_factory()


class Helpers:
    """Theirs, for commands in the background that should not fail."""

    @staticmethod
    def catch_cmd_exit_error_in_background(command):
        task = asyncio.ensure_future(command.wait())

        def disable():
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return disable

    @staticmethod
    def check_cmd_exit_error(command):
        command.wait()


@pytest.fixture
def helpers():
    return Helpers
