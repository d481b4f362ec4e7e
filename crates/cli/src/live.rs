//! The live view of a running process: the page of `--http`, and what `forebay top` asks for.

use crate::control::proto::Refusal;
use crate::failure::{Failure, Outcome};
use clap::Args;
use forebay::Cache;
use forebay_live::{Bound, Collector, Options, Server};
use serde_json::Value;
use std::sync::Arc;

/// Options of `export` and `mount`.
#[derive(Args, Debug, Clone, Default)]
pub struct LiveArgs {
    /// Serve a page to watch the cache, metrics and a health answer; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<String>,
    /// Allow an --http address that others can reach: they see names of files and how they are used
    #[arg(long)]
    pub http_insecure: bool,
}

impl LiveArgs {
    /// These options; each one that is not set is taken from `other`.
    pub fn or(&self, other: Self) -> Self {
        Self {
            http: self.http.clone().or(other.http),
            http_insecure: self.http_insecure || other.http_insecure,
        }
    }
}

/// Checks the options before anything is opened.
pub fn options(args: &LiveArgs) -> Outcome<Option<Options>> {
    let Some(text) = &args.http else {
        return match args.http_insecure {
            true => Err(Failure::usage("--http-insecure without an address")
                .hint("`--http ADDRESS:PORT`, in fstab `http=`")),
            false => Ok(None),
        };
    };
    let options = Options::parse(text, args.http_insecure).map_err(|e| {
        Failure::usage(format!("--{e}"))
            .hint("an address as 127.0.0.1:8080; or `--http-insecure` if others shall watch")
    })?;
    Ok(Some(options))
}

/// Binds the address, if one is given: before anything is served, so that an address in use ends
/// the command early.
pub fn bind(args: &LiveArgs) -> Outcome<Option<Bound>> {
    Ok(options(args)?.map(|options| Bound::new(&options)).transpose()?)
}

/// Serves on the bound address. The page's memory is shown with the cache's.
pub fn serve(
    cache: &Cache,
    collector: &Arc<Collector>,
    bound: Option<Bound>,
) -> Outcome<Option<Server>> {
    let Some(bound) = bound else { return Ok(None) };
    let page = bound.serve(collector)?;
    cache.add_rows(Arc::new(page.memory_rows()));
    Ok(Some(page))
}

/// Where the page is.
pub fn uri(server: &Server) -> String {
    format!("http://{}/", server.address())
}

/// The answer to a request on the control socket.
pub fn answer(collector: &Collector) -> Result<Value, Refusal> {
    let text = collector.view().ok_or_else(|| Refusal::new("failed", "this process is ending"))?;
    serde_json::from_str(&text).map_err(|e| Refusal::new("failed", e.to_string()))
}

/// The metrics, for `stat --prometheus`.
pub fn metrics(collector: &Collector) -> Result<Value, Refusal> {
    let text = collector.metrics();
    text.map(Value::from).ok_or_else(|| Refusal::new("failed", "this process is ending"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::status;

    fn args(http: Option<&str>, http_insecure: bool) -> LiveArgs {
        LiveArgs { http: http.map(str::to_string), http_insecure }
    }

    /// The story: the word `http_insecure` of fstab was dropped if `--http` was given, and was not
    /// refused without an address.
    #[test]
    fn each_is_taken_from_where_it_is_said() {
        let (ours, theirs) = (Some("0.0.0.0:1"), Some("0.0.0.0:2"));
        for (line, words, wanted) in [
            (args(ours, false), args(None, true), args(ours, true)),
            (args(None, true), args(theirs, false), args(theirs, true)),
            (args(ours, false), args(theirs, false), args(ours, false)),
            (args(None, false), args(theirs, true), args(theirs, true)),
        ] {
            let both = line.or(words);
            assert_eq!((&both.http, both.http_insecure), (&wanted.http, wanted.http_insecure));
            assert_eq!(options(&both).is_ok(), wanted.http_insecure, "{both:?}");
        }
        assert!(options(&args(None, false)).unwrap().is_none());
        assert_eq!(options(&args(None, true)).unwrap_err().status, status::USAGE);
    }
}
