"""Operations on a tree by several processes at once, each with a model of its own part, and all of
them on a part that they share. usage: tree.py DIR SEED PROCESSES OPERATIONS. At the end the tree is
what the models say, and `tree.py DIR check FILE` says so again, from what the first run printed
into FILE."""
import hashlib, json, multiprocessing, os, random, sys


def content(rng):
    return rng.randbytes(rng.choice([0, 1, 100, 4096, 5000, rng.randrange(60000)]))


def work(root, seed, number, count):
    """Files and folders of its own: path to what it is."""
    rng = random.Random(f"{seed} {number}")
    mine, model = f"own-{number}", {}
    os.mkdir(f"{root}/{mine}")
    model[mine] = "dir"
    files = lambda: [path for path, what in model.items() if what != "dir"]
    folders = lambda: [path for path, what in model.items() if what == "dir"]
    for step in range(count):
        op = rng.choice("make make make over link rename rename unlink mkdir mkdir rmdir movedir shared list".split())
        new = f"{rng.choice(folders())}/n{step}"
        some = files()
        if op == "make" or (op == "over" and not some):
            data = content(rng)
            with open(f"{root}/{new}", "wb") as file:
                file.write(data)
                if rng.random() < 0.1:
                    os.fsync(file.fileno())
            model[new] = hashlib.sha256(data).hexdigest()
        elif op == "over":
            path, data = rng.choice(some), content(rng)
            # By another name, so that links of it stay what they are.
            with open(f"{root}/{new}", "wb") as file:
                file.write(data)
            os.rename(f"{root}/{new}", f"{root}/{path}")
            model[path] = hashlib.sha256(data).hexdigest()
        elif op == "link" and some:
            path = rng.choice(some)
            os.link(f"{root}/{path}", f"{root}/{new}")
            model[new] = model[path]
        elif op == "rename" and some:
            path = rng.choice(some)
            to = rng.choice(some) if rng.random() < 0.3 else new
            same = os.path.samefile(f"{root}/{path}", f"{root}/{to}") if to in model else False
            os.rename(f"{root}/{path}", f"{root}/{to}")
            if not same:
                model[to] = model.pop(path)
        elif op == "unlink" and some:
            path = rng.choice(some)
            os.unlink(f"{root}/{path}")
            del model[path]
        elif op == "mkdir":
            os.mkdir(f"{root}/{new}")
            model[new] = "dir"
        elif op == "rmdir":
            path = rng.choice(folders())
            empty = not any(other.startswith(path + "/") for other in model)
            try:
                os.rmdir(f"{root}/{path}") if path != mine else None
                if path != mine:
                    assert empty, f"{path} was removed with what is in it"
                    del model[path]
            except OSError as e:
                assert not empty, f"rmdir {path}: {e}"
        elif op == "movedir":
            path, to = rng.choice(folders()), rng.choice(folders())
            if path == mine or (to + "/").startswith(path + "/"):
                continue
            to = f"{to}/m{step}"
            os.rename(f"{root}/{path}", f"{root}/{to}")
            for other in [p for p in model if p == path or p.startswith(path + "/")]:
                model[to + other[len(path):]] = model.pop(other)
        elif op == "shared":
            name = f"{root}/shared/s{rng.randrange(8)}"
            try:
                rng.choice([
                    lambda: os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
                    lambda: os.unlink(name),
                    lambda: os.rename(name, f"{root}/shared/s{rng.randrange(8)}"),
                    lambda: os.link(name, f"{root}/shared/s{rng.randrange(8)}"),
                    lambda: os.listdir(f"{root}/shared"),
                ])()
            except (FileExistsError, FileNotFoundError):
                pass
        elif op == "list":
            path = rng.choice(folders())
            found = sorted(os.listdir(f"{root}/{path}"))
            expected = sorted(p[len(path) + 1 :] for p in model if os.path.dirname(p) == path)
            assert found == expected, f"{path}: {found}, expected {expected}"
    return model


def look(root):
    found = {}
    for at, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(at, name)
            short = os.path.relpath(path, root)
            if os.path.isdir(path):
                found[short] = "dir"
            else:
                with open(path, "rb") as file:
                    found[short] = hashlib.sha256(file.read()).hexdigest()
    return found


def main():
    root = sys.argv[1]
    if sys.argv[2] == "check":
        with open(sys.argv[3]) as file:
            expected = json.load(file)
    else:
        seed, processes, count = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
        os.mkdir(f"{root}/shared")
        with multiprocessing.Pool(processes) as pool:
            parts = pool.starmap(work, [(root, seed, n, count) for n in range(processes)])
        expected = {path: what for part in parts for path, what in part.items()}
        print(json.dumps({**expected, **{path: what for path, what in look(root).items() if path.startswith("shared")}}))
    found = look(root)
    if sys.argv[2] != "check":
        found = {path: what for path, what in found.items() if not path.startswith("shared")}
    different = {path for path in {*found, *expected} if found.get(path) != expected.get(path)}
    if different:
        sys.exit(f"differs from the model: {sorted(different)[:9]}, {len(different)} of {len(expected)}")


main()
