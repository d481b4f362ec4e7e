//! Parses requests and writes the heads of answers. No I/O here.
//!
//! Invariants: H1 only GET and HEAD are accepted, and they change nothing. H2 the `Host` of a
//! request names this server by number or as `localhost`. Other names are refused, because anyone
//! can point a name at this machine and so make another site's page count as ours. The `Origin`, if
//! there is one, names this server too. H3 each answer forbids the browser to guess another content
//! type, to show it inside another page, and to load anything from elsewhere.

use std::net::{IpAddr, SocketAddr};

/// Longest request line with all headers, bytes.
pub const HEAD_MAX: usize = 8 << 10;
/// Most headers.
pub const HEADERS_MAX: usize = 64;

/// The resources of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// `/`
    Page,
    /// `/live.json`
    View,
    /// `/history.json`
    History,
    /// `/metrics`
    Metrics,
    /// `/healthz`
    Health,
}

/// An accepted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The resource.
    pub resource: Resource,
    /// HEAD: the answer has no content.
    pub head_only: bool,
}

/// The result of parsing a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// The head is not complete yet.
    Partial,
    /// A complete, accepted request.
    Request(Request),
    /// A refused request: status and reason.
    Refused(u16, &'static str),
}

/// Parses the head of a request that arrived at the address `own`.
pub fn parse(bytes: &[u8], own: SocketAddr) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() >= HEAD_MAX => {
            return Parsed::Refused(431, "the head of the request is too long");
        }
        Ok(httparse::Status::Partial) => return Parsed::Partial,
        Err(httparse::Error::TooManyHeaders) => return Parsed::Refused(431, "too many headers"),
        Err(_) => return Parsed::Refused(400, "this is no HTTP request"),
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Parsed::Refused(405, "GET and HEAD only: nothing can be changed here"),
    };
    if let Err(why) = check_sender(request.headers, own) {
        return Parsed::Refused(403, why);
    }
    let path = request.path.unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let resource = match path {
        "/" | "/index.html" => Resource::Page,
        "/live.json" => Resource::View,
        "/history.json" => Resource::History,
        "/metrics" => Resource::Metrics,
        "/healthz" => Resource::Health,
        _ => {
            return Parsed::Refused(
                404,
                "there are /, /live.json, /history.json, /metrics, /healthz",
            );
        }
    };
    Parsed::Request(Request { resource, head_only })
}

fn check_sender(headers: &[httparse::Header<'_>], own: SocketAddr) -> Result<(), &'static str> {
    let all =
        |name: &'static str| headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name));
    let mut hosts = all("host");
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err("a request has one Host header");
    };
    let host = std::str::from_utf8(host.value).map_err(|_| "a Host that is no text")?;
    if !is_own_host(host, own) {
        return Err("this Host is not here: use the address itself, or localhost");
    }
    for origin in all("origin") {
        let same = std::str::from_utf8(origin.value)
            .ok()
            .and_then(|origin| origin.strip_prefix("http://"))
            .is_some_and(|origin| origin.eq_ignore_ascii_case(host));
        if !same {
            return Err("a page from elsewhere may not ask");
        }
    }
    Ok(())
}

/// Whether the client's `host` is an address of this server: `localhost` or a number, with its
/// port. A server that listens on loopback accepts only numbers of loopback, any other server each
/// number.
fn is_own_host(host: &str, own: SocketAddr) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        // Within brackets the colons are of the address.
        Some((name, port)) if !port.contains(']') => (name, port.parse().ok()),
        _ => (host, Some(80)),
    };
    if port != Some(own.port()) {
        return false;
    }
    if name.eq_ignore_ascii_case("localhost") {
        return own.ip().is_loopback() || own.ip().is_unspecified();
    }
    let number = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    let Ok(ip) = number.parse::<IpAddr>() else { return false };
    match own.ip().is_loopback() {
        true => ip.is_loopback(),
        false => true,
    }
}

/// Status line and headers of an answer. `nonce` marks the page's own style and script.
pub fn head(status: u16, kind: &str, length: usize, nonce: &str) -> String {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}\
         Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
         Content-Security-Policy: default-src 'none'; connect-src 'self'; img-src 'self' data:; \
         style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> SocketAddr {
        "127.0.0.1:8080".parse().unwrap()
    }

    fn get(target: &str, headers: &str) -> Parsed {
        parse(format!("GET {target} HTTP/1.1\r\n{headers}\r\n").as_bytes(), own())
    }

    #[test]
    fn h1_only_get_and_head_are_accepted() {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "get", "TRACE"] {
            let text = format!("{method} / HTTP/1.1\r\nHost: localhost:8080\r\n\r\n");
            assert!(matches!(parse(text.as_bytes(), own()), Parsed::Refused(405, _)), "{method}");
        }
        let host = "Host: localhost:8080\r\n";
        for (path, resource) in [
            ("/", Resource::Page),
            ("/?x=1", Resource::Page),
            ("/live.json", Resource::View),
            ("/history.json", Resource::History),
            ("/metrics", Resource::Metrics),
            ("/healthz", Resource::Health),
        ] {
            let want = Parsed::Request(Request { resource, head_only: false });
            assert_eq!(get(path, host), want, "{path}");
        }
        for path in ["/x", "//", "/../etc/passwd", "/metrics/", "*", "http://localhost:8080/"] {
            assert!(matches!(get(path, host), Parsed::Refused(404, _)), "{path}");
        }
    }

    #[test]
    fn h2_foreign_hosts_and_origins_are_refused() {
        for host in
            ["localhost:8080", "LocalHost:8080", "127.0.0.1:8080", "[::1]:8080", "127.9.9.9:8080"]
        {
            assert!(matches!(get("/", &format!("Host: {host}\r\n")), Parsed::Request(_)), "{host}");
        }
        for host in [
            "",
            "localhost",
            "localhost:80",
            "evil.example:8080",
            "localhost.evil.example:8080",
            "evil.example",
            "192.168.1.7:8080",
            "127.0.0.1:8080.evil.example",
            "0x7f000001:8080",
            "[::1:8080",
            "a@localhost:8080",
        ] {
            let parsed = get("/", &format!("Host: {host}\r\n"));
            assert!(matches!(parsed, Parsed::Refused(403, _)), "{host}: {parsed:?}");
        }
        assert!(matches!(get("/", ""), Parsed::Refused(403, _)), "no Host");
        let two = "Host: localhost:8080\r\nHost: evil.example\r\n";
        assert!(matches!(get("/", two), Parsed::Refused(403, _)), "two Hosts");
        for (origin, fine) in [
            ("http://localhost:8080", true),
            ("http://evil.example", false),
            ("null", false),
            ("https://localhost:8080", false),
            ("http://localhost:8081", false),
        ] {
            let parsed = get("/", &format!("Host: localhost:8080\r\nOrigin: {origin}\r\n"));
            assert_eq!(matches!(parsed, Parsed::Request(_)), fine, "{origin}");
        }
    }

    /// On an address that is not loopback, clients name the server by number.
    #[test]
    fn h2_beyond_loopback_a_host_is_a_number() {
        let own: SocketAddr = "0.0.0.0:8080".parse().unwrap();
        assert!(is_own_host("192.168.1.7:8080", own) && is_own_host("localhost:8080", own));
        assert!(!is_own_host("server.example:8080", own));
        let own: SocketAddr = "192.168.1.7:80".parse().unwrap();
        assert!(is_own_host("192.168.1.7", own) && !is_own_host("localhost", own));
    }

    #[test]
    fn long_or_invalid_request_is_refused() {
        assert_eq!(parse(b"GET / HT", own()), Parsed::Partial);
        assert_eq!(parse(b"", own()), Parsed::Partial);
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_MAX));
        assert!(matches!(parse(long.as_bytes(), own()), Parsed::Refused(431, _)));
        let many = "A: b\r\n".repeat(HEADERS_MAX + 1);
        assert!(matches!(get("/", &many), Parsed::Refused(431, _)));
        for garbage in [
            "\u{0}\u{1}\u{2}\r\n\r\n",
            "GET\r\n\r\n",
            "GET / HTTP/3.7\r\n\r\n",
            "GET / HTTP/1.1\r\na b: c\r\n\r\n",
        ] {
            assert!(
                matches!(parse(garbage.as_bytes(), own()), Parsed::Refused(400, _)),
                "{garbage:?}"
            );
        }
    }

    #[test]
    fn h3_every_answer_forbids_foreign_content() {
        for status in [200, 403, 405, 503] {
            let head = head(status, "text/plain", 3, "abc");
            for line in
                ["nosniff", "frame-ancestors 'none'", "default-src 'none'", "Connection: close"]
            {
                assert!(head.contains(line), "{line} in {head}");
            }
            assert!(head.ends_with("\r\n\r\n") && head.matches("\r\n\r\n").count() == 1);
        }
    }
}
