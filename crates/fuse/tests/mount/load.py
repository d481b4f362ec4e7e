"""Writers whose mount is killed under them. usage: load.py WHAT FILE ACKNOWLEDGED, where WHAT is
`sync` (records with fsync), `dsync` (O_DSYNC, direct), `over` (a file that is there is overwritten
in no order, with fsync) or a journal mode of SQLite; what was acknowledged is written down in the
file ACKNOWLEDGED, which is elsewhere. Ends with the first error, status 0 if the mount is that of a
dead process then, and it says what such mounts say. `load.py check WHAT FILE ACKNOWLEDGED`: says
what of it is missing, with status 1."""
import mmap, os, sqlite3, struct, sys, time

SIZE = 4096


def record(n):
    return struct.pack("<Q", n) * (SIZE // 8)


def write(what, name, acknowledged):
    flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT | os.O_DSYNC if what == "dsync" else 0)
    fd = os.open(name, flags, 0o644)
    memory = mmap.mmap(-1, SIZE)
    # The name, too, is to be found again.
    folder = os.open(os.path.dirname(name), os.O_RDONLY)
    os.fsync(folder)
    n = os.fstat(fd).st_size // SIZE
    while True:
        memory[:] = record(n)
        if os.pwritev(fd, [memory], n * SIZE) != SIZE:
            sys.exit("a short write")
        if what == "sync":
            (os.fsync if n % 2 else os.fdatasync)(fd)
        acknowledged(n)
        n += 1


TOGETHER = 64  # overwrites for each fsync


def place_of(n, blocks):
    """The block that the n-th overwrite is of."""
    return n * 2654435761 % (1 << 32) * blocks >> 32


def overwrite(name, acknowledged):
    """The file has its length; what is acknowledged is the last of those that an fsync made
    durable."""
    fd = os.open(name, os.O_RDWR)
    blocks, n = os.fstat(fd).st_size // SIZE, last_of(sys.argv[3]) + 1
    while True:
        for n in range(n, n + TOGETHER):
            os.pwrite(fd, record(n), place_of(n, blocks) * SIZE)
        os.fsync(fd)
        acknowledged(n)
        n += 1


def check_overwritten(name, last):
    """Each block has what was acknowledged for it last, or something younger that is its own."""
    blocks = os.path.getsize(name) // SIZE
    want = {place_of(n, blocks): n for n in range(last + 1)}
    with open(name, "rb") as file:
        for block in range(blocks):
            data = file.read(SIZE)
            (n,) = struct.unpack_from("<Q", data)
            if data != record(n):
                sys.exit(f"over: block {block} is torn")
            # A block that was filled and not overwritten yet has 0, as the first overwrite has.
            if n < want.get(block, 0) or (n and place_of(n, blocks) != block):
                sys.exit(f"over: block {block} has {n}, {want.get(block)} of {last} was acknowledged")


def insert(mode, name, acknowledged):
    db = sqlite3.connect(name, isolation_level=None, timeout=60)
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("pragma synchronous=extra")
    db.execute("create table if not exists t(n integer primary key, b blob)")
    n = db.execute("select coalesce(max(n), -1) + 1 from t").fetchone()[0]
    while True:
        db.execute("begin immediate")
        db.execute("insert into t values (?, ?)", (n, record(n)))
        db.execute("commit")
        # SQLite takes a directory that it cannot open, because the mount is dead, for one that need
        # not be synced (unixDelete): its success counts if the mount was still there afterwards.
        os.close(os.open(os.path.dirname(name), os.O_RDONLY))
        acknowledged(n)
        n += 1


def last_of(name):
    with open(name, "rb") as file:
        data = file.read()
    return max((struct.unpack_from("<Q", data, at)[0] for at in range(0, len(data) // 8 * 8, 8)), default=-1)


def check(what, name, acknowledged):
    last = last_of(acknowledged) if os.path.exists(acknowledged) else -1
    if what in ("sync", "dsync"):
        with open(name, "rb") as file:
            for n in range(last + 1):
                if file.read(SIZE) != record(n):
                    sys.exit(f"{what}: record {n} of {last} acknowledged ones is lost")
    elif what == "over":
        check_overwritten(name, last)
    elif last >= 0 or os.path.exists(name):
        db = sqlite3.connect(name)
        said = db.execute("pragma integrity_check").fetchone()[0]
        if said != "ok":
            sys.exit(f"sqlite {what}: {said}")
        have = dict(db.execute("select n, b from t")) if last >= 0 else {}
        lost = [n for n in range(last + 1) if have.get(n) != record(n)]
        if lost:
            sys.exit(f"sqlite {what}: {lost[:5]} of {last} acknowledged ones are lost")
        db.close()
    print(last + 1)


def is_dead(name):
    """Whether no process serves the mount. Asks for a new name, to which the kernel has no cached
    answer. A request in flight when the process was killed may fail with EIO; while a process
    serves the mount, that is a failure."""
    for _ in range(500):
        try:
            os.stat(f"{name}.{os.getpid()}.{os.urandom(8).hex()}")
        except OSError as e:
            if e.errno in (2, 103, 107):
                return e.errno != 2
        time.sleep(0.01)
    return False


def main():
    if sys.argv[1] == "check":
        return check(*sys.argv[2:5])
    what, name, out = sys.argv[1:4]
    out = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        acknowledged = lambda n: os.write(out, struct.pack("<Q", n))
        if what == "over":
            overwrite(name, acknowledged)
        (write if what in ("sync", "dsync") else insert)(what, name, acknowledged)
    except sqlite3.Error as e:
        print(e)
        sys.exit(0 if is_dead(name) else f"{what}: {e}, of a mount that is served")
    except OSError as e:
        # EIO of what was under way, ECONNABORTED, ENOTCONN.
        if e.errno not in (5, 103, 107):
            sys.exit(f"{what}: {e}")
        sys.exit(0 if is_dead(name) else f"{what}: {e}, of a mount that is served")


main()
