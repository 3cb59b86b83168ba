"""Confine processes that parse the files of strangers, by what Linux offers without privileges.

| what | since | what it does here |
|---|---|---|
| PR_SET_DUMPABLE | 2.4 | other processes of the user cannot read the variables and the memory of this one |
| PR_SET_NO_NEW_PRIVS | 3.5 | no program that is started gets more rights (setuid); the next two need it |
| seccomp | 3.5 | system calls that no decoder makes fail with EPERM |
| Landlock | 5.13 | files, and later TCP and signals, are refused except for those of a list |

Numbers are from the kernel's headers: linux/prctl.h, linux/seccomp.h, linux/landlock.h, linux/audit.h, asm/unistd_64.h
(x86-64) and asm-generic/unistd.h (ARM). Old kernels, gVisor and containers lack some of it: what cannot be had is left
out, and nothing fails. The variable VOXBATCH_CONFINEMENT=off leaves all of it out.

Restrictions are those of a thread and of what it starts, and they cannot be lifted. `confined` therefore starts a
program in a thread of its own, and no code runs between fork and exec, where threads of this process may hold locks.

Libraries were looked at: see benchmarks/results/packages.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

SWITCH = "VOXBATCH_CONFINEMENT"
"""Environment variable that leaves the confinement out with the value OFF. With ON, nobody tries whether ffmpeg runs
confined."""
ON, OFF = "on", "off"

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 1 << 2
"""The flag keeps the kernel from slowing the process down by a mitigation of Spectre, which only untrusted code in the
same process would call for (the default before Linux 5.16)."""
_RET_ALLOW, _RET_EPERM = 0x7FFF0000, 0x00050000 | errno.EPERM
_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
"""Rights of Landlock on files (LANDLOCK_ACCESS_FS_…). READ_DIR lists a folder."""
_RIGHTS_OF_VERSION = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights on files by the version of Landlock that brought them: the first 13 end with symbolic links; then moves to
another folder, truncation, and ioctl of devices."""
_CHANGES = (1 << 15) - 1 & ~(EXECUTE | READ_FILE | READ_DIR)
"""Rights that change a file system."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 a folder of the system, in which nothing is created here
_NET_VERSION, _NET = 4, 0b11
"""To bind and to connect TCP sockets."""
_SCOPE_VERSION, _SCOPE = 6, 0b11
"""Abstract Unix sockets and signals stay inside."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
"""Number of the system call seccomp."""
_X32 = 0x40000000
"""Bit of the calls of another ABI of x86-64, which have the same numbers."""
_CALLS = {
    "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "kcmp": (312, 272), "io_uring_setup": (425, 425),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "mount": (165, 40), "umount2": (166, 39),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "sethostname": (170, 161),
}  # fmt: skip
"""System calls that are refused, with their numbers on x86-64 and on ARM: those that reach into other processes, the
kernel and the machine. io_uring could make the others unseen. Only programs without a network are refused sockets."""

_libc = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Confinement:
    """The restrictions that the kernel has granted."""

    landlock: int = 0
    """Version of Landlock; 0 without it."""
    seccomp: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The rights of a confined thread and of the programs that it starts."""

    rules: tuple[tuple[int | str, int], ...]
    """Files or folders, as paths or open descriptors, and the rights on them and on all below them."""
    handled: int = -1
    """The rights that are refused elsewhere. -1 means all, the network and signals included."""


def is_switched_off() -> bool:
    """Return whether the environment leaves the confinement out."""
    return os.environ.get(SWITCH, "").lower() == OFF


def hide_memory() -> None:
    """Keep other processes of this user from reading the variables and the memory of this one. It then leaves no core
    dump, and only root can attach a debugger or a profiler."""
    if not is_switched_off():
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def restrictions(pid: int) -> tuple[str, ...]:
    """Return how a process is confined, as far as /proc tells it: two processes without limits of their own are equal,
    and nothing that a process of `confine` starts can become equal to them.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/status") as file:
        return tuple(line for line in file if line.startswith(("NoNewPrivs", "Seccomp")))


@functools.cache
def landlock_version() -> int:
    """Return the version of Landlock's interface; 0 if the kernel has none, or has it switched off."""
    with contextlib.suppress(OSError):
        return _call(_LANDLOCK_CREATE, 0, 0, _LANDLOCK_VERSION)
    return 0


def decoder_limits() -> Limits:
    """Return the limits of a decoder: it changes files only where its libraries must (temporary files, renewed
    credentials, caches; /dev is for devices), and reads what the user can read."""
    import tempfile

    names = ("CLOUDSDK_CONFIG", "HF_HOME", "XDG_CACHE_HOME")
    folders = [_SHARED_MEMORY, *(os.path.expanduser(f"~/{name}") for name in (".aws", ".cache", ".config/gcloud"))]
    folders += [folder for name in names if (folder := os.environ.get(name))]
    with contextlib.suppress(FileNotFoundError):  # no folder can be written
        folders.append(tempfile.gettempdir())
    return Limits((("/dev", WRITE_FILE), *((folder, _CHANGES) for folder in folders)), _CHANGES)


def confine(limits: Limits) -> Confinement:
    """Confine this thread, what it starts, and other threads of the process that it starts later. This has no end."""
    if is_switched_off():
        return Confinement()
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return Confinement(_enter_landlock(limits), _enter_seccomp(has_network=limits.handled != -1))


def confined(start: Callable[[], _Result], *limits: Limits) -> _Result:
    """Call a function under limits, in a thread of its own, and return its result: the process of a program that it
    starts, for example."""
    from concurrent.futures import ThreadPoolExecutor  # every command imports this module, and few need the library

    def run() -> _Result:
        for limit in limits:
            confine(limit)
        return start()

    with ThreadPoolExecutor(1, thread_name_prefix="confined") as thread:
        return thread.submit(run).result()


def granted() -> Confinement:
    """Return what the kernel grants a program here."""
    return confined(lambda: confine(Limits(())))


def _enter_landlock(limits: Limits) -> int:
    """Return the version of Landlock that holds from now on; 0 for none."""
    if not (version := landlock_version()):
        return 0
    known = sum(rights for since, rights in _RIGHTS_OF_VERSION.items() if since <= version)
    is_all = limits.handled == -1
    attributes = struct.pack(
        "QQQ",
        known & limits.handled,
        _NET if is_all and version >= _NET_VERSION else 0,
        _SCOPE if is_all and version >= _SCOPE_VERSION else 0,
    )
    try:
        ruleset = _call(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    except OSError:
        return 0
    try:
        for place, rights in limits.rules:
            with contextlib.suppress(OSError):  # it does not exist; or it is a file in memory, which needs no rule
                _allow(ruleset, place, rights & known & limits.handled)
        _call(_LANDLOCK_RESTRICT, ruleset, 0)
    except OSError:  # for example, 16 levels are the most
        return 0
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, place: int | str, rights: int) -> None:
    fd = os.open(place, os.O_PATH | os.O_CLOEXEC) if isinstance(place, str) else place
    try:
        _call(_LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        if isinstance(place, str):
            os.close(fd)


def _enter_seccomp(has_network: bool) -> bool:
    """Refuse the system calls of `_CALLS`. Return whether the kernel does so."""
    machine = os.uname().machine
    if machine not in _AUDIT_ARCH or struct.calcsize("P") != 8:
        return False
    filters = ctypes.create_string_buffer(program := _filters(machine, has_network))
    attributes = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(filters))
    with contextlib.suppress(OSError):
        _call(_SECCOMP[machine], _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW, attributes)
        return True
    return False


@functools.cache
def _filters(machine: str, has_network: bool) -> bytes:
    """Return the steps that refuse the system calls of `_CALLS` on a machine."""
    column = list(_AUDIT_ARCH).index(machine)
    numbers = [calls[column] for name, calls in _CALLS.items() if not (has_network and name == "socket")]
    # Programs of the classic BPF (linux/bpf_common.h) on struct seccomp_data: 4 bytes of the number, 4 of the ABI.
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    steps = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[machine]), (answer, 0, 0, _RET_EPERM), (load, 0, 0, 0)]
    steps.append((at_least, len(numbers) + 1, 0, _X32))
    steps += [(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(answer, 0, 0, _RET_ALLOW), (answer, 0, 0, _RET_EPERM)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _call(number: int, *arguments: int | bytes) -> int:
    """Make a system call.

    Raises:
        OSError: the kernel refuses it.
    """
    words = [
        ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_long(argument) for argument in arguments
    ]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
