"""The system calls that a program in a sandbox may make; all others fail as if they did not exist.

A program may use the calls that Python needs to compute: memory, files, clocks, locks and threads.
It may not use sockets, new processes and programs, signals, tracing, mounts and namespaces. It may
not use io_uring either, because io_uring can do the same things without these calls. Shared memory
is not allowed, because no limit counts it.
"""

from __future__ import annotations

import errno
import tempfile

_ALWAYS = """
access alarm arch_prctl brk chdir clock_getres clock_gettime clock_nanosleep close close_range dup
dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
exit exit_group faccessat faccessat2 fadvise64 fchdir fdatasync fstat fstatfs fsync futex
futex_waitv getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpgid
getpgrp getpid getppid getrandom getresgid getresuid getrlimit getrusage getsid gettid gettimeofday
getuid lseek lstat madvise membarrier mincore mmap mprotect mremap munmap nanosleep newfstatat open
openat pause pipe pipe2 poll ppoll pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read
readlink readlinkat readv restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_getaffinity sched_getparam sched_getscheduler
sched_yield select set_robust_list set_tid_address setitimer sigaltstack stat statfs statx sysinfo
time timer_create timer_delete timer_gettime timer_settime times umask uname wait4 waitid write
writev
"""
# These calls are allowed only if the sandbox has its own file system, because Landlock does not
# control all of them.
_WRITING = """
chmod copy_file_range creat fallocate fchmod fchmodat flock ftruncate link linkat mkdir mkdirat
rename renameat renameat2 rmdir symlink symlinkat truncate unlink unlinkat utime utimensat utimes
"""
_CLONE_THREAD = 0x10000
_AF_UNIX = 1
_PR_SET_NAME = 15
# F_DUPFD to F_SETLKW, F_DUPFD_CLOEXEC and F_GETPIPE_SZ. F_SETOWN is not allowed, because it can
# send signals.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX. FIOSETOWN is not allowed, because it
# does the same as F_SETOWN.
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


def compiled(*, threads: bool, own_files: bool) -> bytes:
    """Return the filter in the kernel's format (classic BPF).

    Args:
      threads: whether the program may start threads. Allow this only if their number is limited.
      own_files: whether the program has its own file system, to which it may write.

    Raises:
      RuntimeError: pyseccomp or libseccomp is missing.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise RuntimeError(
            f"no system call filter: {error}. Install the Python package pyseccomp and the "
            "library libseccomp (Debian and Ubuntu: libseccomp2)."
        ) from error
    allow = pyseccomp.ALLOW
    equal = pyseccomp.EQ
    rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.ENOSYS))

    def permit(name: str, *conditions: object) -> None:
        # A number below 0 means that this architecture does not have the call.
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) >= 0:
            rules.add_rule(allow, name, *conditions)

    for name in (_ALWAYS + (_WRITING if own_files else "")).split():
        permit(name)
    for command in _FCNTL:
        permit("fcntl", pyseccomp.Arg(1, equal, command))
    for command in _IOCTL:
        permit("ioctl", pyseccomp.Arg(1, equal, command))
    permit("prctl", pyseccomp.Arg(0, equal, _PR_SET_NAME))
    # The program may change its own limits, but not the limits of other processes.
    permit("prlimit64", pyseccomp.Arg(0, equal, 0))
    # asyncio wakes itself up with a pair of sockets. Without an address and flags, data can be sent
    # only to the other socket of the pair.
    permit("socketpair", pyseccomp.Arg(0, equal, _AF_UNIX))
    for name in ("sendto", "recvfrom"):
        permit(name, pyseccomp.Arg(3, equal, 0), pyseccomp.Arg(4, equal, 0))
    if threads:
        permit("clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
