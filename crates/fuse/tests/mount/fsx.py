"""Random operations on one file of a mount, by several openings in different modes and by shared maps, beside
a bytearray. usage: fsx.py FILE SEED OPERATIONS. Says what differs and the last operations, with status 1."""
import ctypes, fcntl, mmap, os, random, struct, sys

path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
LARGEST, BLOCK = 300_000, 4096
SET_MODE = 0x4004FB01
model, log = bytearray(), []
memory = mmap.mmap(-1, 1 << 20)  # aligned, for O_DIRECT


def fail(what):
    print(f"seed {seed}: {what}")
    print("\n".join(log[-25:]))
    sys.exit(1)


def flags():
    extra = [0, os.O_DIRECT, os.O_SYNC, os.O_DSYNC, os.O_DIRECT | os.O_DSYNC]
    return os.O_RDWR | rng.choice(extra)


def reopen(fds, at):
    if fds[at] is not None:
        os.close(fds[at])
    fds[at] = os.open(path, flags(), 0o600)
    if rng.random() < 0.3:
        fcntl.ioctl(fds[at], SET_MODE, struct.pack("I", rng.randrange(3)))


def is_direct(fd):
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def span(limit):
    offset = rng.randrange(limit + 1)
    length = rng.choice([1, 7, 511, 512, 4096, 8192, 65536, rng.randrange(1, 20000)])
    if rng.random() < 0.4:
        offset, length = offset // BLOCK * BLOCK, max(BLOCK, length // BLOCK * BLOCK)
    return offset, length


def grow(end):
    if end > len(model):
        model.extend(bytes(end - len(model)))


def write(fd, offset, data):
    memory[: len(data)] = data
    done = os.pwritev(fd, [memoryview(memory)[: len(data)]], offset)
    if done != len(data):
        fail(f"wrote {done} of {len(data)}")
    grow(offset + done)
    model[offset : offset + done] = data


def read(fd, offset, length):
    memory[:length] = b"\xee" * length
    done = os.preadv(fd, [memoryview(memory)[:length]], offset)
    expected = bytes(model[offset : offset + length])
    if memory[:done] != expected:
        here = next((n for n in range(min(done, len(expected))) if memory[n] != expected[n]), "length")
        fail(f"read {done} at {offset}, expected {len(expected)}: differs at {here}")


def check():
    if os.stat(path).st_size != len(model):
        fail(f"size {os.stat(path).st_size}, expected {len(model)}")
    with open(path, "rb") as file:  # opened to be read only: what the kernel may keep
        if file.read() != model:
            fail("the whole differs")


fds = [None, None, None]
open(path, "wb").close()
for at in range(3):
    reopen(fds, at)
for step in range(count):
    fd = rng.choice(fds)
    op = rng.choice("write write write read read read mapread mapwrite truncate punch zero falloc copy append "
                    "reopen sync setfl check seek".split())
    offset, length = span(min(len(model) + 5000, LARGEST))
    length = min(length, LARGEST + 70000 - offset)
    log.append(f"{step}: {op} fd {fd} direct {is_direct(fd)} {offset}+{length} of {len(model)}")
    if op == "write":
        write(fd, offset, rng.randbytes(length))
    elif op == "read":
        read(fd, offset, length)
    elif op == "append":
        held = os.open(path, os.O_WRONLY | os.O_APPEND)
        data = rng.randbytes(min(length, 5000))
        if len(model) < LARGEST:
            os.write(held, data)
            model.extend(data)
        os.close(held)
    elif op in ("mapread", "mapwrite") and len(model) > 0:
        page = offset // 4096 * 4096
        if page < len(model):
            length = min(length, len(model) - page)
            with mmap.mmap(fd, length, mmap.MAP_SHARED, offset=page) as view:
                if view[:] != model[page : page + length]:
                    fail("a map differs")
                if op == "mapwrite":
                    data = rng.randbytes(length)
                    view[:] = data
                    model[page : page + length] = data
                    if rng.random() < 0.5:
                        view.flush()
    elif op == "truncate":
        size = rng.choice([0, offset, offset // BLOCK * BLOCK, len(model)])
        os.ftruncate(fd, size)
        del model[size:]
        grow(size)
    elif op in ("punch", "zero", "falloc"):
        mode = {"punch": 3, "zero": 0x10 | rng.randrange(2), "falloc": rng.randrange(2)}[op]
        if libc.fallocate(fd, mode, offset, length) != 0:
            fail(f"fallocate: {os.strerror(ctypes.get_errno())}")
        if not mode & 1:
            grow(offset + length)
        if op != "falloc":
            end = min(offset + length, len(model))
            if end > offset:
                model[offset:end] = bytes(end - offset)
    elif op == "copy":
        to, _ = span(LARGEST)
        if abs(to - offset) >= length and offset < len(model):
            done = os.copy_file_range(fd, rng.choice(fds), length, offset, to)
            data = bytes(model[offset : offset + done])
            if done == 0 or len(data) != done:
                fail(f"copied {done}")
            grow(to + done)
            model[to : to + done] = data
    elif op == "reopen":
        reopen(fds, fds.index(fd))
    elif op == "sync":
        (os.fsync if rng.random() < 0.5 else os.fdatasync)(fd)
    elif op == "setfl":
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) ^ os.O_DIRECT)
    elif op == "seek" and offset < len(model):
        hole = os.lseek(fd, offset, os.SEEK_HOLE)
        if hole < len(model) and any(model[hole : hole + 1]):
            fail(f"a hole at {hole} has data")
    elif op == "check":
        check()
check()
