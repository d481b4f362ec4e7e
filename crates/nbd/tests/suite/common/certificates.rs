//! Certificates for a test, made by openssl: a folder as QEMU, nbdkit and libnbd want it, for both
//! sides.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder; removed with it.
pub struct Certificates(PathBuf);

impl Certificates {
    /// An authority, and a server and a client that it has signed.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-tls-{}-{n}", std::process::id());
        let made = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&made.0).unwrap();
        let text = "[req]\ndistinguished_name=dn\n[dn]\n[ca]\nbasicConstraints=critical,CA:TRUE\n\
                    keyUsage=keyCertSign\n[server]\nbasicConstraints=CA:FALSE\n\
                    subjectAltName=DNS:localhost,IP:127.0.0.1\n[client]\n\
                    basicConstraints=CA:FALSE\nsubjectAltName=DNS:client\n";
        std::fs::write(made.0.join("config"), text).unwrap();
        made.sign("ca", &[]);
        for who in ["server", "client"] {
            made.sign(who, &["-CA", "ca-cert.pem", "-CAkey", "ca-key.pem"]);
        }
        made
    }

    fn sign(&self, who: &str, by: &[&str]) {
        let (key, cert) = (format!("{who}-key.pem"), format!("{who}-cert.pem"));
        let subject = format!("/CN=forebay test {who}");
        let fixed = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
        let more = ["-nodes", "-days", "2", "-config", "config", "-extensions", who];
        let mut command = Command::new("openssl");
        command.current_dir(&self.0).args(fixed).args(more).args(by);
        command.args(["-subj", &subject, "-keyout", &key, "-out", &cert]);
        let output = command.output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
