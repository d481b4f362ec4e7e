"""What programs expect of a file system in addition to reading and writing: locks of three kinds
between processes, flags changed by fcntl, maps, attributes, what is refused. usage: manners.py DIR,
as root."""
import ctypes, errno, fcntl, mmap, os, struct, subprocess, sys

root = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
OFD_SETLK, OFD_GETLK = 37, 36


def path(name, data=b""):
    name = os.path.join(root, name)
    with open(name, "wb") as file:
        file.write(data)
    return name


def refused(number, what, *words):
    try:
        what(*words)
    except OSError as e:
        assert e.errno == number, f"{what.__name__}: {e}, expected {errno.errorcode[number]}"
    else:
        raise AssertionError(f"{what.__name__}: no {errno.errorcode[number]}")


def other(code, *words):
    """Another process: what it says."""
    done = subprocess.run([sys.executable, "-c", "import fcntl,os,struct,sys\n" + code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def lock(kind, start=0, length=0):
    return struct.pack("hhqqi4x", kind, 0, start, length, 0)


def locks():
    name = path("locked", b"x" * 100)
    attempt = "try:\n {}\n print('got')\nexcept BlockingIOError:\n print('held')"
    by_flock = attempt.format("fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)")
    by_posix = attempt.format("fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)")
    by_ofd = attempt.format(
        "fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), 37, struct.pack('hhqqi4x', 1, 0, 20, 10, 0))")
    fd = os.open(name, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert other(by_flock, name) == "held" and other(by_posix, name) == "got"
    fcntl.flock(fd, fcntl.LOCK_UN)
    assert other(by_flock, name) == "got"
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
    assert other(by_posix, name) == "held" and other(by_ofd, name) == "held" and other(by_flock, name) == "got"
    # Any close by its process releases a POSIX lock, the last close of its own opening an OFD lock.
    os.close(os.open(name, os.O_RDONLY))
    assert other(by_posix, name) == "got"
    fcntl.fcntl(fd, OFD_SETLK, lock(fcntl.F_WRLCK, 20, 5))
    os.close(os.open(name, os.O_RDONLY))
    assert other(by_ofd, name) == "held" and other(by_posix, name) == "held"
    second = os.open(name, os.O_RDWR)
    refused(errno.EAGAIN, fcntl.fcntl, second, OFD_SETLK, lock(fcntl.F_WRLCK, 24, 1))
    found = struct.unpack("hhqqi4x", fcntl.fcntl(second, OFD_GETLK, lock(fcntl.F_WRLCK, 0, 0)))
    assert found[:4] == (fcntl.F_WRLCK, 0, 20, 5), found
    os.close(fd)
    assert other(by_ofd, name) == "got"
    os.close(second)


def flags_by_fcntl():
    name = path("flags", b"a" * 8192)
    fd = os.open(name, os.O_RDWR)
    memory = mmap.mmap(-1, 8192)
    for turn in range(4):
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) ^ os.O_DIRECT)
        assert bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT) == (turn % 2 == 0)
        memory[:] = bytes([turn]) * 8192
        assert os.pwritev(fd, [memory], 0) == 8192
        memory[:] = b"\xff" * 8192
        assert os.preadv(fd, [memory], 0) == 8192 and memory[:] == bytes([turn]) * 8192
        with open(name, "rb") as file:
            assert file.read() == bytes([turn]) * 8192
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.write(fd, b"end")
    assert os.path.getsize(name) == 8195
    os.close(fd)


def maps():
    name = path("mapped", b"." * 10000)
    fd = os.open(name, os.O_RDWR)
    with mmap.mmap(fd, 10000) as one, mmap.mmap(fd, 10000) as two:
        one[5000:5005] = b"hello"
        assert two[5000:5005] == b"hello" and os.pread(fd, 5, 5000) == b"hello", "shared, and with read(2)"
        os.pwrite(fd, b"HELLO", 9000)
        assert one[9000:9005] == b"HELLO"
        one.flush()
        assert other("print(os.pread(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), 5, 5000))", name) == "b'hello'"
    with mmap.mmap(fd, 4096, mmap.MAP_PRIVATE) as private:
        private[:5] = b"MINE!"
        assert os.pread(fd, 5, 0) == b"....."
    os.close(fd)


def attributes():
    name = path("attributes")
    os.setxattr(name, "user.colour", b"green")
    os.setxattr(name, "trusted.x", b"1")
    assert os.getxattr(name, "user.colour") == b"green" and sorted(os.listxattr(name)) == ["trusted.x", "user.colour"]
    os.chmod(root, 0o755)
    nobody = "os.setresgid(65534, 65534, 65534)\nos.setgroups([])\nos.setresuid(65534, 65534, 65534)\n"
    assert other(nobody + "print(os.listxattr(sys.argv[1]))", name) == "['user.colour']", "what is root's alone"
    refused(errno.EEXIST, os.setxattr, name, "user.colour", b"red", os.XATTR_CREATE)
    refused(errno.ENODATA, os.setxattr, name, "user.none", b"red", os.XATTR_REPLACE)
    refused(errno.ENODATA, os.getxattr, name, "user.none")
    os.setxattr(name, "user.large", b"y" * 60000)
    assert len(os.getxattr(name, "user.large")) == 60000
    refused(errno.E2BIG, os.setxattr, name, "user.huge", b"y" * 65537)
    os.removexattr(name, "user.large")
    acl = struct.pack("<IHHIHHIHHI", 2, 1, 6, 0xFFFFFFFF, 4, 4, 0xFFFFFFFF, 0x20, 4, 0xFFFFFFFF)
    for which in ("system.posix_acl_access", "system.posix_acl_default"):
        refused(errno.EOPNOTSUPP, os.setxattr, root if "default" in which else name, which, acl)
        refused(errno.EOPNOTSUPP, os.getxattr, name, which)


def copies():
    name = path("from", b"")
    fd, to = os.open(name, os.O_RDWR), os.open(path("to", b"z" * 10), os.O_RDWR)
    os.truncate(name, 3 << 20)
    os.pwrite(fd, b"data", 1 << 20)
    done = 0
    while done < 3 << 20:
        step = os.copy_file_range(fd, to, (3 << 20) - done, done, done)
        assert step > 0
        done += step
    assert os.fstat(to).st_size == 3 << 20 and os.pread(to, 4, 1 << 20) == b"data"
    assert os.lseek(to, 4096, os.SEEK_DATA) == 1 << 20, "holes stay holes"
    assert os.copy_file_range(fd, to, 10, 3 << 20, 0) == 0
    # Clones share blocks: that is refused by name.
    refused(errno.EOPNOTSUPP, fcntl.ioctl, to, 0x40049409, fd)
    for mode in (0x08, 0x20):  # collapse, insert
        assert libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(4096)) == -1
        assert ctypes.get_errno() == errno.EOPNOTSUPP
    os.close(fd)
    os.close(to)


def privileges():
    os.chmod(root, 0o777)
    name = path("setid", b"12345")
    for how, expected in (("write", 0o777), ("truncate", 0o777), ("direct", 0o777)):
        os.chmod(name, 0o6777)
        os.setxattr(name, "security.capability", bytes([1, 0, 0, 2, 0, 32, 0, 0]) + bytes(12))
        code = {
            "write": "os.write(os.open(sys.argv[1], os.O_WRONLY), b'x')",
            "truncate": "os.truncate(sys.argv[1], 3)",
            "direct": "os.pwrite(os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT), b'x', 1)",
        }[how]
        other("os.setresgid(65534, 65534, 65534)\nos.setgroups([])\nos.setresuid(65534, 65534, 65534)\n" + code, name)
        # The mode alone: the kernel asks for it only if it was told that it is stale.
        mode = subprocess.run(["stat", "-c", "%a", name], capture_output=True, text=True).stdout
        assert int(mode, 8) == expected, (how, mode)
        assert os.stat(name).st_mode & 0o7777 == expected, how
        assert "security.capability" not in os.listxattr(name), how
    os.chmod(name, 0o6777)
    os.chown(name, 5, 5)
    assert os.stat(name).st_mode & 0o7777 == 0o777, "chown"


for part in (locks, flags_by_fcntl, maps, attributes, copies, privileges):
    part()
    print(f"{part.__name__}: ok")
