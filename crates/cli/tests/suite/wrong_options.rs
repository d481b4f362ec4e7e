//! A wrong command line gives one clear line that names the thing, and a status that fits.

use crate::common::{Folder, stderr};

#[test]
fn each_names_the_thing() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    std::fs::write(folder.path("file"), "no socket").unwrap();
    for (line, status, word) in [
        ("export nothere.img -U s", 3, "nothere.img"),
        ("export run -U s", 1, "run: a folder"),
        ("export disk.img", 2, "--unix"),
        ("export disk.img -U file", 1, "not a socket"),
        ("export disk.img -U no/such/folder", 3, "no/such/folder"),
        ("export disk.img -U s --cache-size 1k", 2, "--cache-size"),
        ("export disk.img -U s --cache-size 12q", 2, "12q"),
        ("export disk.img -U s --mode sometimes", 2, "sometimes"),
        ("export disk.img -U s --direct-io maybe", 2, "maybe"),
        ("export disk.img -U s --aio magic", 2, "magic"),
        ("export disk.img -U s --folio-size 5k", 2, "--folio-size"),
        ("export disk.img -U s --block-size 8k", 2, "--block-size"),
        ("export disk.img -U s --threads 0", 2, "--threads"),
        ("export disk.img -U s --threads 64", 2, "--threads"),
        ("export a=disk.img a=disk.img -U s", 2, "`a`"),
        ("export a= -U s", 2, "`a`"),
        ("export disk.img a=disk.img -U s --offset 4k", 2, "--offset"),
        ("export disk.img -U s --offset 2M", 2, "disk.img"),
        ("export disk.img --bind ::1", 2, "--port"),
        ("export disk.img -p 0 --bind 0.0.0.0", 2, "--insecure"),
        ("export disk.img -p 0 --bind ::", 2, "--insecure"),
        ("export disk.img -p 0 --insecure", 2, "--bind"),
        ("export disk.img -U s --tls require", 2, "--tls-certificates"),
        ("export disk.img -U s --tls-certificates nowhere", 2, "server-cert.pem"),
        ("export disk.img -p 0 --bind 0.0.0.0 --tls on --tls-certificates run", 2, "--insecure"),
        ("export disk.img -U s --control file", 1, "control socket"),
        ("export disk.img -U s --http-insecure", 2, "without an address"),
        ("mount disk.img run -o http_insecure", 2, "without an address"),
        ("mount disk.img run --http-insecure", 2, "without an address"),
        ("mount disk.img /", 2, "not on the root directory"),
        ("stat run --pid 1", 2, "--pid in addition to run"),
        ("stat run --control s", 2, "--control or --pid"),
        ("tune run --pid 1", 2, "--pid in addition to run"),
        ("tune run --control s a=1", 2, "--control or --pid"),
        ("fincore disk.img --kernel --pid 1", 2, "--pid"),
        ("fincore disk.img --kernel --control s", 2, "--control"),
        ("stat", 3, "no running"),
        ("stat --pid 1", 3, "process 1"),
        ("stat --control nothere", 3, "nothere"),
        ("tune x", 2, "NAME=VALUE"),
        ("fincore nothere.img", 3, "nothere.img"),
        ("fincore disk.img", 3, "disk.img"),
        ("doctor nothere.img", 1, "problem"),
        ("explode", 2, "explode"),
    ] {
        let mut words: Vec<&str> = line.split(' ').collect();
        if words[0] == "export" && !line.contains("--cache-size") {
            words.extend(["--cache-size", "16M"]);
        }
        let output = folder.forebay(&words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{line}: {text}");
        assert!(text.contains(word), "{line}: `{word}` is not in: {text}");
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("forebay: "), "{line}: {text}");
        assert!(text.lines().count() <= 2, "{line}: {text}");
    }
}
