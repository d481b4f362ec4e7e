"""A user who wants root's files, on a mount: `other_users.py ROLE DIR SECRET SOCKET...`.

Roles: `user` drops to uid 1000 and opens, creates, renames and removes names of DIR by chance; `root` makes,
renames and chmods files of its own there, none of which anyone else may open. Both go on until standard input
is closed. NAMES in the environment is the number of names. Then they print their counts as JSON.
"""
import errno, fcntl, json, os, random, select, socket, struct, sys

role, folder, secret, sockets = sys.argv[1], sys.argv[2], sys.argv[3].encode(), sys.argv[4:]
NAMES = [f"{folder}/f{n}" for n in range(int(os.environ["NAMES"]))]
OWN = 1000
SET_MODE, SET_TREE_MODE = 0x4004FB01, 0x4004FB03
count = {}


def note(what):
    count[what] = count.get(what, 0) + 1


def attempt(what, act):
    """The result, or None and the error is counted."""
    try:
        return act()
    except OSError as e:
        note(f"{what} {errno.errorcode[e.errno]}")


def goes_on():
    return not select.select([0], [], [], 0)[0]


def check(fd):
    """A descriptor must be of an own file, with nothing of root's in it."""
    stat = os.fstat(fd)
    if stat.st_uid != OWN:
        note("violations")
        print(f"a descriptor of a file of {stat.st_uid}, mode {stat.st_mode:o}", file=sys.stderr)
    if secret in (attempt("read", lambda: os.pread(fd, 4096, 0)) or b""):
        note("violations")
        print("root's content in an own file", file=sys.stderr)


def user():
    os.setgroups([])
    os.setgid(OWN)
    os.setuid(OWN)
    for path in sockets:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(path)
            note("violations")
            print(f"{path} lets others in", file=sys.stderr)
        except PermissionError:
            note("sockets refused")
        link.close()
    base = os.open(folder, os.O_RDONLY)
    ways = [os.O_RDWR, os.O_RDONLY, os.O_CREAT | os.O_RDWR | os.O_EXCL, os.O_CREAT | os.O_RDWR | os.O_TRUNC]
    ways += [os.O_CREAT | os.O_RDWR] * 4
    held = []
    while goes_on():
        for _ in range(64):
            name, how = random.choice(NAMES), random.choice(ways)
            removed = random.random() < 0.7 and attempt("unlink", lambda: os.unlink(name) or True)
            note("opens")
            before = count.get("open EACCES", 0)
            fd = attempt("open", lambda: os.open(name, how, 0o600))
            if removed and how & os.O_CREAT and count.get("open EACCES", 0) > before:
                note("races")  # The name was free, and was root's when it was created.
            if fd is None:
                continue
            note("opened")
            check(fd)
            attempt("ioctl", lambda: fcntl.ioctl(fd, SET_MODE, struct.pack("I", random.randrange(3))))
            if how & os.O_ACCMODE == os.O_RDWR:
                attempt("write", lambda: os.pwrite(fd, b"own", 0))
            held.append(fd)
            if len(held) > 24:
                fd = held.pop(random.randrange(len(held)))
                check(fd)
                os.close(fd)
            if random.random() < 0.2:
                attempt("rename", lambda: os.rename(name, random.choice(NAMES)))
            if random.random() < 0.02:
                attempt("tree", lambda: fcntl.ioctl(base, SET_TREE_MODE, struct.pack("I", 1)))
    for fd in held:
        check(fd)


def root():
    os.umask(0)
    while goes_on():
        for n in range(64):
            own = f"{folder}/root-{os.getpid()}-{n}"
            fd = attempt("make", lambda: os.open(own, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            if fd is None:
                attempt("unlink", lambda: os.unlink(own))
                continue
            os.write(fd, secret)
            attempt("rename", lambda: os.rename(own, random.choice(NAMES)))
            os.fchmod(fd, random.choice([0, 0o400, 0o600, 0o700, 0o4700]))
            os.close(fd)
            note("made")


{"user": user, "root": root}[role]()
print(json.dumps(count))
