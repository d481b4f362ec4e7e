//! TLS: the operator's configuration, and the session of one connection, without I/O.
//!
//! Invariants:
//! 1. The memory of a session is bounded by `SESSION_BYTES`: received bytes are decrypted and
//!    removed at once, and at most `OUT_BYTES` of encrypted bytes wait to be sent.
//! 2. No byte from before the session is taken for a part of it, or the other way round.

use forebay_base::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConnection};
use std::io::{ErrorKind as IoKind, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// Most encrypted bytes of a session that wait to be sent.
const OUT_BYTES: usize = 32 << 10;
/// Most memory of a session, bytes: bytes to send, incomplete records, keys.
pub(crate) const SESSION_BYTES: usize = 128 << 10;

/// Most bytes that an incomplete record of earlier receives adds to a receive.
pub(crate) const RECORD_MAX: usize = 18 << 10;

/// Whether clients may, or must, use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Clients must not use it.
    #[default]
    Off,
    /// Clients may use it.
    On,
    /// Clients must use it.
    Require,
}

/// The server's certificate and key, and the clients it accepts.
#[derive(Debug, Clone)]
pub struct TlsIdentity(Arc<rustls::ServerConfig>);

fn bad(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidInput, "read certificates", why.to_string()).with_path(path)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let all = all.map_err(|e| bad(path, e))?;
    if all.is_empty() { Err(bad(path, "no certificate in it")) } else { Ok(all) }
}

impl TlsIdentity {
    /// Reads `server-cert.pem` and `server-key.pem` from a directory, the layout of QEMU and
    /// nbdkit. With `verify_peer` clients need a certificate that one in `ca-cert.pem` has signed.
    /// `InvalidInput`: a file is missing or invalid.
    pub fn load(folder: &Path, verify_peer: bool) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(&folder.join("server-cert.pem"))?;
        let path = folder.join("server-key.pem");
        let key = PrivateKeyDer::from_pem_file(&path).map_err(|e| bad(&path, e))?;
        let verifier = if verify_peer {
            let path = folder.join("ca-cert.pem");
            let mut roots = RootCertStore::empty();
            for root in certificates(&path)? {
                roots.add(root).map_err(|e| bad(&path, e))?;
            }
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
                .build()
                .map_err(|e| bad(&path, e))?
        } else {
            Arc::new(NoClientAuth)
        };
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| bad(folder, e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|e| bad(folder, e))?;
        Ok(Self(Arc::new(config)))
    }

    /// A session for one client; `None` if it cannot be created.
    pub(crate) fn session(&self) -> Option<Session> {
        let made = ServerConnection::new(self.0.clone());
        let mut inner = made.map_err(|e| log::warn!("nbd: TLS: {e}")).ok()?;
        inner.set_buffer_limit(Some(OUT_BYTES));
        Some(Session { inner, ended: false })
    }
}

/// The TLS session of one client.
pub(crate) struct Session {
    inner: ServerConnection,
    /// The peer has ended its stream.
    ended: bool,
}

impl Session {
    /// Decrypts received bytes into the front of `plain`, which must be longer by at least
    /// [`RECORD_MAX`]. `Err`: the bytes are not TLS, or the client is not accepted.
    pub fn decrypt(
        &mut self,
        mut cipher: &[u8],
        plain: &mut [u8],
    ) -> std::result::Result<usize, rustls::Error> {
        debug_assert!(plain.len() >= cipher.len() + RECORD_MAX);
        let mut got = 0;
        while !cipher.is_empty() && !self.ended {
            // Reading from memory fails only if decrypted bytes were not removed; the loop below
            // removes them.
            let fed = self.inner.read_tls(&mut cipher).unwrap_or(0);
            let state = self.inner.process_new_packets()?;
            self.ended = state.peer_has_closed();
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                match self.inner.reader().read(&mut plain[got..]) {
                    Ok(n) if n > 0 => (got, left) = (got + n, left.saturating_sub(n)),
                    _ => break,
                }
            }
            if fed == 0 {
                return Err(rustls::Error::General("a record that cannot be".into()));
            }
        }
        Ok(got)
    }

    /// Whether the peer has ended its stream.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Encrypts bytes to send, as many as there is space for; returns their number.
    pub fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> usize {
        // Writing to memory does not fail; it takes fewer bytes when the limit is reached.
        self.inner.writer().write_vectored(slices).unwrap_or(0)
    }

    /// Whether encrypted bytes are to be sent.
    pub fn wants_send(&self) -> bool {
        self.inner.wants_write()
    }

    /// Sends encrypted bytes, as far as `wire` takes them. True: all were sent.
    pub fn send(&mut self, wire: &mut dyn Write) -> std::io::Result<bool> {
        while self.inner.wants_write() {
            match self.inner.write_tls(wire) {
                Ok(_) => {}
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) if e.kind() == IoKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Notifies the peer that the stream ends.
    pub fn close(&mut self) {
        self.inner.send_close_notify();
    }
}
