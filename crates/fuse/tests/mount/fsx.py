"""Random operations on one file of a mount, by several openings in different modes and by shared
maps, compared with a bytearray. usage: fsx.py FILE SEED OPERATIONS [mode=MODE] [SOCKET]. MODE is
mixed, or one way alone: buffered, direct, aio, uring, mmap, reopen (a new opening for each
operation), subpage. By the socket others in the process of the mount are asked to read, write,
append, cut and punch the same file: `WHO OP OFFSET LENGTH` and the bytes of a write are answered by
a number and the bytes of a read. Says what differs and the last operations, with status 1."""
import ctypes, fcntl, mmap, os, random, socket, struct, sys

path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
mode = next((word[5:] for word in sys.argv[4:] if word.startswith("mode=")), "mixed")
sockets = [word for word in sys.argv[4:] if not word.startswith("mode=")]
rng = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
LARGEST, BLOCK = 300_000, 4096
SET_MODE = 0x4004FB01
model, log = bytearray(), []
memory = mmap.mmap(-1, 1 << 20)  # aligned, for O_DIRECT
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
PIECES = 4


def system(number, *words):
    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(word) for word in words])
    if done < 0:
        fail(f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return done


class Aio:
    """io_submit: several requests at a time."""

    def __init__(self):
        self.context = ctypes.c_ulong(0)
        system(206, 16, ctypes.addressof(self.context))

    def run(self, fd, is_write, pieces):
        blocks = [ctypes.create_string_buffer(
            struct.pack("<QIIHhIQQqQII", n, 0, 0, int(is_write), 0, fd, address + at, length, offset, 0, 0, 0), 64)
            for n, (at, length, offset) in enumerate(pieces)]
        pointers = (ctypes.c_void_p * len(blocks))(*[ctypes.addressof(block) for block in blocks])
        if system(209, self.context.value, len(blocks), ctypes.addressof(pointers)) != len(blocks):
            fail("io_submit took a part")
        events = ctypes.create_string_buffer(32 * len(blocks))
        system(208, self.context.value, len(blocks), len(blocks), ctypes.addressof(events), 0)
        found = [struct.unpack_from("<QQqq", events, 32 * n) for n in range(len(blocks))]
        return {event[0]: event[2] for event in found}


class Uring:
    """io_uring: several requests at a time."""

    def __init__(self):
        params = ctypes.create_string_buffer(120)
        self.fd = system(425, 16, ctypes.addressof(params))
        words = struct.unpack_from("<10I8IQ8IQ", params)
        sq, cq = words[10:18], words[19:27]
        length = max(sq[6] + words[0] * 4, cq[5] + words[1] * 16)
        self.ring = mmap.mmap(self.fd, length)
        self.entries = mmap.mmap(self.fd, words[0] * 64, offset=0x10000000)
        self.sq, self.cq, self.mask, self.cq_mask = sq, cq, words[0] - 1, words[1] - 1

    def word(self, at):
        return struct.unpack_from("<I", self.ring, at)[0]

    def run(self, fd, is_write, pieces):
        tail = self.word(self.sq[1])
        for n, (at, length, offset) in enumerate(pieces):
            slot = tail + n & self.mask
            self.entries[slot * 64 : slot * 64 + 64] = struct.pack(
                "<BBHiQQIIQ24x", 23 if is_write else 22, 0, 0, fd, offset, address + at, length, 0, n)
            struct.pack_into("<I", self.ring, self.sq[6] + slot * 4, slot)
        struct.pack_into("<I", self.ring, self.sq[1], tail + len(pieces))
        system(426, self.fd, len(pieces), len(pieces), 1, 0, 0)
        found, head = {}, self.word(self.cq[0])
        while head != self.word(self.cq[1]):
            number, result = struct.unpack_from("<Qi", self.ring, self.cq[5] + (head & self.cq_mask) * 16)
            found[number], head = result, head + 1
        struct.pack_into("<I", self.ring, self.cq[0], head)
        return found


queue = None


def transfer(fd, is_write, length, offset):
    """The beginning of `memory` from or to a file: how many bytes."""
    global queue
    if mode not in ("aio", "uring"):
        view = [memoryview(memory)[:length]]
        return os.pwritev(fd, view, offset) if is_write else os.preadv(fd, view, offset)
    queue = queue or (Aio() if mode == "aio" else Uring())
    step = max(BLOCK, (length // PIECES + BLOCK - 1) // BLOCK * BLOCK)
    if is_write and offset + length > len(model):
        step = length  # one by one where the file grows: a hole in between would be an end for others
    pieces = [(at, min(step, length - at), offset + at) for at in range(0, length, step)]
    found = queue.run(fd, is_write, pieces)
    if any(result < 0 for result in found.values()) or len(found) != len(pieces):
        fail(f"{mode}: {found}")
    return sum(found.values())


def fail(what):
    print(f"seed {seed}: {what}")
    print("\n".join(log[-25:]))
    sys.exit(1)


def flags():
    extra = {"buffered": [0], "direct": [os.O_DIRECT], "aio": [os.O_DIRECT]}.get(
        mode, [0, os.O_DIRECT, os.O_SYNC, os.O_DSYNC, os.O_DIRECT | os.O_DSYNC])
    return os.O_RDWR | rng.choice(extra)


def reopen(fds, at):
    if fds[at] is not None:
        os.close(fds[at])
    fds[at] = os.open(path, flags(), 0o600)
    if mode not in ("buffered", "direct", "aio") and rng.random() < 0.3:
        fcntl.ioctl(fds[at], SET_MODE, struct.pack("I", rng.randrange(3)))


def is_direct(fd):
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def span(limit):
    offset = rng.randrange(limit + 1)
    length = rng.choice([1, 7, 511, 512, 4096, 8192, 65536, rng.randrange(1, 20000)])
    if mode == "subpage":
        return offset, rng.randrange(1, BLOCK)
    if mode in ("direct", "aio") or rng.random() < 0.4:
        offset, length = offset // BLOCK * BLOCK, max(BLOCK, length // BLOCK * BLOCK)
    return offset, length


def grow(end):
    if end > len(model):
        model.extend(bytes(end - len(model)))


def write(fd, offset, data):
    memory[: len(data)] = data
    done = transfer(fd, True, len(data), offset)
    if done != len(data):
        fail(f"wrote {done} of {len(data)}")
    grow(offset + done)
    model[offset : offset + done] = data


def read(fd, offset, length):
    memory[:length] = b"\xee" * length
    done = transfer(fd, False, length, offset)
    expected = bytes(model[offset : offset + length])
    if memory[:done] != expected:
        here = next((n for n in range(min(done, len(expected))) if memory[n] != expected[n]), "length")
        fail(f"read {done} at {offset}, expected {len(expected)}: differs at {here}")


beside = None
if sockets:
    beside = socket.socket(socket.AF_UNIX)
    beside.connect(sockets[0])
    beside = beside.makefile("rwb")


def ask(who, op, offset, length, data=b""):
    beside.write(f"{who} {op} {offset} {length}\n".encode() + data)
    beside.flush()
    answer = beside.readline()
    if not answer.strip().isdigit():
        fail(f"{who} {op}: {answer}")
    return int(answer)


def outside(op, offset, length):
    """By the library or an export, which ends at the file's end."""
    who = rng.choice(["library", "export"])
    if op == "outread":
        length = min(length, len(model) - offset) if who == "export" else length
        done = ask(who, "read", offset, max(length, 0))
        if beside.read(done) != model[offset : offset + length]:
            fail(f"{who} read {done} at {offset}")
    elif op == "outwrite":
        if who == "export":
            length = min(length, len(model) - offset)
        if length > 0:
            data = rng.randbytes(length)
            if ask(who, "write", offset, length, data) != length:
                fail("a short write")
            grow(offset + length)
            model[offset : offset + length] = data
    elif op == "outappend" and len(model) < LARGEST:
        data = rng.randbytes(min(length, 5000))
        if ask("library", "append", 0, len(data), data) != len(data):
            fail("a short append")
        model.extend(data)
    elif op == "outcut":
        size = rng.choice([offset, offset // BLOCK * BLOCK, len(model)])
        ask("library", "cut", size, 0)
        del model[size:]
        grow(size)
    elif op == "outpunch":
        length = min(length, len(model) - offset) if who == "export" else length
        if length > 0:
            ask(who, "punch", offset, length)
            end = min(offset + length, len(model))
            if end > offset:
                model[offset:end] = bytes(end - offset)


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
    ops = ("write write write read read read mapread mapwrite truncate punch zero falloc copy append "
           "reopen sync setfl check seek")
    if beside:
        ops += " outread outread outread outwrite outwrite outwrite outappend outcut outpunch"
    if mode in ("buffered", "direct", "aio", "uring"):
        ops = "write write write write read read read read truncate punch zero falloc sync check reopen"
    elif mode == "mmap":
        ops = "mapread mapread mapread mapwrite mapwrite mapwrite mapwrite write truncate punch check sync"
    op = rng.choice(ops.split())
    if mode == "reopen":
        reopen(fds, fds.index(fd))
        fd = rng.choice(fds)
    offset, length = span(min(len(model) + 5000, LARGEST))
    length = min(length, LARGEST + 70000 - offset)
    log.append(f"{step}: {op} fd {fd} direct {is_direct(fd)} {offset}+{length} of {len(model)}")
    if op == "write":
        write(fd, offset, rng.randbytes(length))
    elif op == "read":
        read(fd, offset, length)
    elif op.startswith("out"):
        outside(op, offset, length)
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
        how = {"punch": 3, "zero": 0x10 | rng.randrange(2), "falloc": rng.randrange(2)}[op]
        if libc.fallocate(fd, how, offset, length) != 0:
            fail(f"fallocate: {os.strerror(ctypes.get_errno())}")
        if not how & 1:
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
