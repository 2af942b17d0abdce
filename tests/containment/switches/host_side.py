"""Protections that are not about what a command can reach, but about what the host does with what it left.

No attack of the catalogue meets them: each has tests of its own elsewhere, which are named here
and have to fail without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import Edit

_COMMIT = "tests/unit/layers/test_commit.py"


@dataclass(frozen=True)
class HostSwitch:
    """What is taken away, and a test, as pytest names it, that must notice; `-k` chooses in its file."""

    edit: Edit
    file: str
    keyword: str
    #: It starts a sandbox: who runs it may matter.
    starts: bool = False
    #: Only an ordinary user's sandbox needs it.
    only: str = ""


HOST_SWITCHES: dict[str, HostSwitch] = {
    # In a container whose /proc lists processes outside, of the same user.
    "read-only /proc of a container": HostSwitch(
        Edit("mounts/builder.py", "mounts.ATTR_NOEXEC | _RDONLY)", "mounts.ATTR_NOEXEC)"),
        "tests/kernel/test_containers.py",
        "opens_no_process_outside",
        starts=True,
        only="root",  # starts a container
    ),
    # A directory that a shell kept open leads by ".." to where old trees are set aside.
    "cover of the place aside": HostSwitch(
        Edit(
            "inside/agent/mount_swap.py",
            "            os.close(self._mount_read_only(_COVER, self._places_aside))\n",
            "",
        ),
        "tests/kernel/test_frozen_layers.py",
        "kept_directory",
        starts=True,
        only="user",  # as root the place belongs to the fork server, whom nobody is inside
    ),
    "masks that go with the tree they are in": HostSwitch(
        Edit(
            "inside/agent/mount_swap.py",
            "(not self._hiding or self._take_away_whole())",
            "(True or self._take_away_whole())",
        ),
        "tests/kernel/test_frozen_layers.py",
        "denied_stays_so",
        starts=True,
    ),
    # Root inside could put a link where the agent is going to look for a mount.
    "pins on the way to a mount in the root": HostSwitch(
        Edit("inside/agent/root_swap.py", "pins = _pinned(tree, inner)", "pins: dict[bytes, str] = {}"),
        "tests/kernel/test_sandbox_top.py",
        "moved_away_or_replaced",
        starts=True,
    ),
    "pipe of sudo that no command can read": HostSwitch(
        Edit("inside/agent/sudo.py", "os.chmod(PIPE, 0o222", "os.chmod(PIPE, 0o666"),
        "tests/kernel/test_sandbox_sudo.py",
        "read_nothing",
        starts=True,
    ),
    "no sudo for processes of the agent's own": HostSwitch(
        Edit("inside/agent/sudo.py", "if pid <= 1 or self._is_ours(pid):", "if pid <= 1:"),
        "tests/unit/inside/test_sudo.py",
        "of_our_own",
    ),
    "refusal of a pause that a timer undoes": HostSwitch(
        Edit("sandbox/open_sandbox.py", "if mark >= 0 and not timers:", "if True:"),
        "tests/kernel/test_sandbox_limits.py",
        "continues_itself_is_held",
        starts=True,
        only="user",  # root's sandboxes are in groups that the kernel freezes
    ),
    # Descriptors in flight count against all processes of a user.
    "lower limit of open files in a sandbox": HostSwitch(
        Edit("inside/confine.py", "return open_files or fewer_files()", "return open_files"),
        "tests/kernel/test_in_flight.py",
        "in_flight",
        starts=True,
        only="root",  # takes a user of its own for it
    ),
    "higher limit of open files for a message": HostSwitch(
        Edit("linux/process.py", 'struct.pack("QQ", hard, hard)', 'struct.pack("QQ", soft, hard)'),
        "tests/kernel/test_in_flight.py",
        "in_flight",
        starts=True,
        only="root",
    ),
    "count of what waits in sockets": HostSwitch(
        Edit("limits/supervisor.py", "            if self._counts_sockets:", "            if False:"),
        "tests/kernel/test_sandbox_limits.py",
        "waits_in_sockets",
        starts=True,
        only="user",  # the kernel counts for root's groups
    ),
    "count of memory files in flight": HostSwitch(
        Edit(
            "limits/unnamed_files.py",
            "        self._seen.add(inode)\n",
            "        os.close(descriptor)\n        return\n",
        ),
        "tests/kernel/test_sandbox_limits.py",
        "nothing_seems and stream",
        starts=True,
        only="user",  # the kernel counts for root's groups
    ),
    "count of files that a thread of its own has open": HostSwitch(
        Edit("limits/unnamed_files.py", "    if len(threads) == 1:\n", "    if True:\n"),
        "tests/kernel/test_sandbox_limits.py",
        "nothing_seems and thread",
        starts=True,
        only="user",
    ),
    "count of deleted files": HostSwitch(
        Edit(
            "sandbox/open/disk_quota.py",
            "total, count = deleted = self._deleted()",
            "total, count = deleted = 0, 0",
        ),
        "tests/kernel/test_sandbox_limits.py",
        "deleted_files_that",
        starts=True,
    ),
    "no real-time scheduling inside": HostSwitch(
        Edit("linux/process.py", "in (os.SCHED_FIFO, os.SCHED_RR)", "in ()"),
        "tests/kernel/test_sandbox_limits.py",
        "real_time",
        starts=True,
        only="root",  # an ordinary user's programs are no real-time processes
    ),
    "nothing looks into the starter of programs": HostSwitch(
        Edit(
            "inside/agent/starter.py",
            "    process.dumpable(False)  # a change of user may have reset it\n",
            "    process.dumpable(True)\n",
        ),
        "tests/kernel/test_programs_ahead.py",
        "looks_into_it",
        starts=True,
        only="user",  # root's starter has an id of its own
    ),
    "processors that stand in for a limit: no others": HostSwitch(
        Edit("linux/seccomp/__init__.py", " + whole if keeps_processors else whole", " and whole"),
        "tests/kernel/test_cpu_affinity.py",
        "a_command_stays",
        starts=True,
    ),
    "processors that stand in for a limit: on landlock, not all": HostSwitch(
        Edit("inside/confine.py", "    if spec.processors:\n", "    if False:\n"),
        "tests/kernel/test_cpu_affinity.py",
        "a_command_stays and landlock",
        starts=True,
    ),
    "default limit on memory": HostSwitch(
        Edit("limits/enforced.py", 'if "memory" in limits.defaults:', "if False:"),
        "tests/kernel/test_default_limits.py",
        "memory_of_a_session",
        starts=True,
    ),
    "default limit on processes": HostSwitch(
        Edit(
            "limits/enforced.py", 'if "processes" in limits.defaults and not means', "if False and not means"
        ),
        "tests/kernel/test_default_limits.py",
        "test_processes",
        starts=True,
        only="user",  # root's sandboxes are in groups
    ),
    "default limit on disk": HostSwitch(
        Edit("limits/enforced.py", 'if "disk" in limits.defaults and store:', "if False:"),
        "tests/kernel/test_default_limits.py",
        "test_disk",
        starts=True,
    ),
    "budget of layers in memory": HostSwitch(
        Edit("layers/store.py", "used <= left // MEMORY_PART", "True"),
        "tests/unit/layers/test_store.py",
        "budget",
    ),
    "count of layers that an open snapshot holds": HostSwitch(
        Edit(
            "sandbox/workspace/trees.py",
            "return layer.users > 1 + ours + self.squash.holds(layer)",
            "return False",
        ),
        "tests/kernel/test_sandbox_limits.py",
        "open_snapshot_has_count",
        starts=True,
    ),
    # A sandbox that is opened in advance has the policy, the view and the directory that are asked for.
    "no next sandbox with another policy": HostSwitch(
        Edit("sandbox/open/next_sandbox.py", "and decided.plan == before.plan", "and True"),
        "tests/kernel/test_next_sandbox.py",
        "another_policy",
    ),
    "no next sandbox where files are hidden": HostSwitch(
        Edit("sandbox/open/next_sandbox.py", "        and hides_nothing(decided.plan, decided.bash)\n", ""),
        "tests/kernel/test_next_sandbox.py",
        "is_hidden",
    ),
    "no next sandbox for another directory": HostSwitch(
        Edit(
            "sandbox/open/next_sandbox.py",
            "        or _state(settings.workspace) != found.state\n",
            "",
        ),
        "tests/kernel/test_next_sandbox.py",
        "has_changed",
    ),
    "denied paths are not copied below layers": HostSwitch(
        Edit(
            "layers/frozen_base.py",
            "without=Selection(hidden) if hidden else None,\n"
            "                    owner=store.owner,\n                )\n"
            "                _put_places(host, layer.upper, hidden)",
            "owner=store.owner,\n                )",
        ),
        "tests/kernel/test_frozen_base.py",
        "denied_paths_are_not_copied",
        starts=True,
    ),
    "mounts in a directory are not copied": HostSwitch(
        Edit(
            "layers/frozen_base.py",
            "if any(_plain(point).startswith(within) for point in points):",
            "if False:",
        ),
        "tests/kernel/test_frozen_base.py",
        "something_mounted",
        starts=True,
        only="root",
    ),
    "conflicts of a frozen sandbox": HostSwitch(
        Edit(
            "layers/baseline.py",
            "if copied is not None:\n                mark",
            "if False:\n                mark",
        ),
        "tests/kernel/test_frozen_base.py",
        "host_changed_too_is_a_conflict",
        starts=True,
    ),
    "bounds of a saved copy": HostSwitch(
        Edit("sandbox/workspace/snapshot_file.py", "progress=progress, whole=bounds)", "progress=progress)"),
        "tests/kernel/test_frozen_saving.py",
        "too_much_in_it",
        starts=True,
    ),
    "review of renames that complete a repository": HostSwitch(
        Edit(
            "layers/review.py",
            '_BRINGING = frozenset(("added", "renamed", "type", "link"))',
            '_BRINGING = ("added",)',
        ),
        _COMMIT,
        "rename_completes",
    ),
    "review of what git is in the middle of": HostSwitch(
        Edit(
            "hostinfo/protected.py",
            '    ".git/rebase-merge",\n    ".git/rebase-apply",\n    ".git/sequencer",\n)',
            ")",
        ),
        _COMMIT,
        "in_the_middle_of",
    ),
    "review of names that other programs obey": HostSwitch(
        Edit(
            "layers/review.py", "        if name:\n            yield", "        if False:\n            yield"
        ),
        _COMMIT,
        "names_that_other_programs_obey",
    ),
    "review of links that lead out": HostSwitch(
        Edit("layers/review.py", "elif target := names.leads_out(item):", 'elif target := "":'),
        _COMMIT,
        "links_that_lead_out",
    ),
    "review of links at the beginning of a protected name": HostSwitch(
        Edit("layers/review.py", "if is_link and (begun :=", "if False and (begun :="),
        _COMMIT,
        "beginning_of_a_protected_name",
    ),
    "review of links of the host with a protected name": HostSwitch(
        Edit(
            "layers/review.py",
            " or itself or self._through_a_link(path)",
            " or itself",
        ),
        _COMMIT,
        "link_of_the_host",
    ),
    "review of new executables": HostSwitch(
        Edit("layers/review.py", "elif _can_be_run(item.new) and not _can_be_run(item.old):", "elif False:"),
        _COMMIT,
        "new_executables",
    ),
    "bound of depth": HostSwitch(
        Edit("layers/differences.py", 'if prefix.count("/") > MOST_DEPTH:', "if False:"),
        _COMMIT,
        "too_deep",
    ),
    "links that lead out of an environment": HostSwitch(
        Edit(
            "environment/command_layer.py", "                    or _leading_out(names.leads_out(item))\n", ""
        ),
        "tests/kernel/test_environment_layers.py",
        "taken_as_links",
        starts=True,
    ),
    "what a link in an environment leads to": HostSwitch(
        Edit(
            "environment/local.py",
            "        self._refuse_hidden(name)  # a link may name what is hidden\n",
            "",
        ),
        "tests/unit/environment/test_local.py",
        "link_to_what_is_denied",
    ),
    "denied paths are not in a command's copy": HostSwitch(
        Edit(
            "environment/command_layer.py",
            "without = Selection(self._hidden) if self._hidden else None",
            "without = None",
        ),
        "tests/kernel/test_container_environment.py",
        "denied_is_not_in_the_copy",
        starts=True,
        only="root",
    ),
    "no rights in a command's network": HostSwitch(
        Edit("inside/forwarder.py", "    process.drop_capabilities()\n", ""),
        "tests/kernel/test_wrap_connect.py",
        "has_no_capability",
        starts=True,
    ),
    "no set-user-ID bit from root without rights": HostSwitch(
        Edit(
            "backends/landlock/__init__.py",
            "filter=seccomp.program(_profile(plan, found)",
            "filter=seccomp.program(landlock_profile(plan)",
        ),
        "tests/kernel/test_root_without_rights.py",
        "root_by_name_only",
        starts=True,
        only="root",
    ),
    "doubt about a virtual environment of the workspace": HostSwitch(
        Edit("hostinfo/toolchains.py", "is_python = has_library and any(", "is_python = True or any("),
        "tests/unit/hostinfo/test_toolchains.py",
        "environment_of_the_workspace",
    ),
    "parts of an interpreter, not all beside it": HostSwitch(
        Edit(
            "hostinfo/toolchains.py",
            'self._grant_parts(root, layouts.INTERPRETER, "python", ',
            'self._grant(root, "python", ',
        ),
        "tests/unit/hostinfo/test_toolchains.py",
        "environment_of_the_workspace",
    ),
    "the unspecified address on landlock": HostSwitch(
        Edit(
            "inside/landlock/connections.py",
            "meant = (address,) if any(address) else",
            "meant = (address,) if True else",
        ),
        "tests/unit/inside/landlock/test_destinations.py",
        "unspecified_address",
    ),
    "Internet sockets that listen on landlock": HostSwitch(
        Edit("inside/landlock/connections.py", "if socket.family != AF_UNIX:", "if False:"),
        "tests/kernel/test_landlock_network.py",
        "own_unix_sockets_listen",
        starts=True,
    ),
    "records before the opening of TLS": HostSwitch(
        Edit("network/rules/sniff.py", "if data[0] in _RECORDS:", "if data[0] == _HANDSHAKE:"),
        "tests/unit/network/rules/test_sniff.py",
        "after_another_record",
    ),
    "requests without a version": HostSwitch(
        Edit("network/rules/sniff.py", "words[0].upper() in _METHODS and", "False and"),
        "tests/unit/network/rules/test_sniff.py",
        "without_a_version",
    ),
    "aliases that are refused": HostSwitch(
        Edit(
            "network/gateway/connection.py",
            "for address in () if refused is not None else addresses:",
            "for address in addresses:",
        ),
        "tests/kernel/test_network_names.py",
        "alias_of_a_refused_name",
        starts=True,
    ),
    "addresses of the host itself": HostSwitch(
        Edit(
            "network/gateway/context.py",
            "own = any(self._routes.is_own(each.packed) for",
            "own = any(False for",
        ),
        "tests/kernel/test_network_clients.py",
        "address_of_the_host",
        starts=True,
    ),
    "rules that were set, in a gateway that is started again": HostSwitch(
        Edit(
            "sandbox/open/network.py",
            "            self._settings = network, asks\n",
            "",
        ),
        "tests/kernel/test_sandbox_network.py",
        "network_that_was_set",
        starts=True,
    ),
    "platform addresses of clouds": HostSwitch(
        Edit("hostnames.py", '        ("168.63.129.16/32", "the metadata service of cloud machines"),\n', ""),
        "tests/unit/network/rules/test_rules.py",
        "168.63.129.16",
    ),
}

#: Not switched off by themselves, and why no test could notice.
HOST_ALONE = {
    "read-only holder of the place aside": "its root lies past the cover, which nobody inside may enter",
}
