"""A user who wants root's files, on a mount: `other_users.py ROLE DIR SECRET SOCKET...`.

Roles: `user` drops to uid 1000 and opens, creates, renames and removes names of DIR by chance;
`remover` drops to uid 1000, too, makes files in DIR, which has the sticky bit, and removes, renames
and replaces them; `root` makes, renames and chmods files of its own there, none of which anyone
else may open; `linker` drops to uid 1000, renames the sockets away, connects to them, and puts hard
links to DIR/victim in their places. All go on until standard input is closed. NAMES in the
environment is the number of names. Then they print their counts as JSON. Before that they print a
line for each race: a name that was the user's, or free, was root's in the next call.
"""
import ctypes, errno, fcntl, json, os, random, select, socket, stat, struct, sys

role, folder, secret, sockets = sys.argv[1], sys.argv[2], sys.argv[3].encode(), sys.argv[4:]
NAMES = [f"{folder}/f{n}" for n in range(int(os.environ["NAMES"]))]
OWN = 1000
SET_MODE, SET_TREE_MODE = 0x4004FB01, 0x4004FB03
LIBC = ctypes.CDLL(None, use_errno=True)
count = {}


def note(what):
    count[what] = count.get(what, 0) + 1


def race():
    note("races")
    print("race", flush=True)


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
    of = os.fstat(fd)
    if of.st_uid != OWN:
        note("violations")
        print(f"a descriptor of a file of {of.st_uid}, mode {of.st_mode:o}", file=sys.stderr)
    if secret in (attempt("read", lambda: os.pread(fd, 4096, 0)) or b""):
        note("violations")
        print("root's content in an own file", file=sys.stderr)


def become_user():
    os.setgroups([])
    os.setgid(OWN)
    os.setuid(OWN)


def user():
    become_user()
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
                race()
            if fd is None:
                continue
            note("opened")
            check(fd)
            mode = struct.pack("I", random.randrange(3))
            attempt("ioctl", lambda: fcntl.ioctl(fd, SET_MODE, mode) and note("modes set"))
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
                tree = struct.pack("I", 1)
                attempt("tree", lambda: fcntl.ioctl(base, SET_TREE_MODE, tree) and note("trees set"))
    for fd in held:
        check(fd)


def exchange(one, other):
    """renameat2(2) with RENAME_EXCHANGE."""
    if LIBC.renameat2(-100, one.encode(), -100, other.encode(), 2) != 0:
        raise OSError(ctypes.get_errno(), "exchange")


def remover():
    become_user()
    mine, seen = f"{folder}/own-{os.getpid()}", {errno.EPERM, errno.EACCES, errno.ESTALE}

    def touch(name):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    acts = {
        "unlink": os.unlink,
        "rename away": lambda name: os.rename(name, mine),
        "rename over": lambda name: os.rename(mine, name),
        "exchange": lambda name: exchange(mine, name),
        "rmdir": os.rmdir,
    }
    while goes_on():
        for _ in range(64):
            name, (what, act) = random.choice(NAMES), random.choice(list(acts.items()))
            attempt("make own", lambda: os.path.lexists(mine) or touch(mine))
            make = os.mkdir if what == "rmdir" else touch
            is_own = attempt("make", lambda: make(name) or True)
            try:
                act(name)
                note(what)
            except OSError as e:
                note(f"{what} {errno.errorcode[e.errno]}")
                if is_own and e.errno in seen:
                    race()
            # What is left of the own ones: root's stay.
            for left in (name, mine):
                try:
                    os.rmdir(left) if os.path.isdir(left) else os.unlink(left)
                except OSError:
                    pass


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


def linker():
    become_user()
    victim, own, link = f"{folder}/victim", f"{folder}/own", f"{folder}/link"
    expected = os.stat(victim).st_mode

    def connect(path):
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(path)
            note("violations")
            print(f"{path} lets others in", file=sys.stderr)
        finally:
            end.close()

    while goes_on():
        for path in sockets * 32:
            attempt("link", lambda: os.path.lexists(link) or os.link(victim, link))
            # A quick one meets the moment between the steps of a server that starts.
            try:
                os.rename(path, own)
            except OSError:
                continue
            attempt("replace", lambda: os.rename(link, path))
            if stat.S_ISSOCK(os.lstat(own).st_mode):
                race()
                for _ in range(20):
                    attempt("connect", lambda: connect(own))
            attempt("unlink", lambda: os.unlink(path))
            os.unlink(own)
            if os.stat(victim).st_mode != expected:
                note("violations")
                print(f"the victim has mode {os.stat(victim).st_mode:o}", file=sys.stderr)
                return


{"user": user, "remover": remover, "linker": linker, "root": root}[role]()
print(json.dumps(count))
