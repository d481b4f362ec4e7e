# Maps a file of so many MiB and touches each page. Then other processes open it, so many times,
# each time a new one, and those that only read map it, too. The pages have to be mapped still, and
# touching them again may cost no fault.
import mmap, os, resource, sys

path, size, opens = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3])
with open(path, "wb") as file:
    for _ in range(size >> 20):
        file.write(b"x" * (1 << 20))


def mapped_kib():
    found = False
    for line in open("/proc/self/smaps"):
        if line.rstrip().endswith(path):
            found = True
        elif found and line.startswith("Rss:"):
            return int(line.split()[1])


def touch():
    before = resource.getrusage(resource.RUSAGE_SELF)
    total = 0
    for at in range(0, size, 4096):  # without a copy, whose memory would cost faults
        total += view[at]
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert total == ord("x") * (size // 4096), total
    return after.ru_minflt - before.ru_minflt + after.ru_majflt - before.ru_majflt


# Another process starts those that open the file: a fork would cost this one faults of its own.
ask, answer = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(ask[1])
    while n := os.read(ask[0], 8):
        n = int.from_bytes(n, "little")
        child = os.fork()
        if child == 0:
            flags = [os.O_RDONLY, os.O_RDWR, os.O_RDONLY | os.O_APPEND][n % 3]
            other = os.open(path, flags)
            os.pread(other, 100, 4096 * n % size)
            if n % 3 != 1:
                seen = mmap.mmap(other, size, prot=mmap.PROT_READ)
                assert seen[4096 * n % size] == ord("x")
            os.close(other)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.write(answer[1], b"x")
    os._exit(0)
os.close(answer[1])
file = open(path, "rb")
view = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
touch()
calm = touch()
kib = mapped_kib()
assert kib == size >> 10, kib
for n in range(opens):
    os.write(ask[1], n.to_bytes(8, "little"))
    assert os.read(answer[0], 1) == b"x"
    if n % 50 == 0 or n == opens - 1:
        kib = mapped_kib()
        assert kib == size >> 10, f"opening {n}: {kib} of {size >> 10} KiB are mapped still"
again = touch()
print(f"{opens} openings, {kib} KiB mapped, {again} pages refaulted (without openings {calm})")
assert again == 0 and calm == 0, f"{again} pages refaulted, without openings {calm}"
