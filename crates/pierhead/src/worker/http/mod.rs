//! HTTP/1.1 as a worker needs it: one request at a time on a blocking connection, few bytes of memory, every
//! byte from the socket counted.
//!
//! Not the client of `remote`: that is async and asks registries of the internet; this one asks the one server
//! that its user named, beside threads that decode and write.

mod body;
mod connection;
mod login;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use pierhead_oci::{ErrorBody, ErrorCode};
use zeroize::Zeroizing;

use super::{Error, Url, pull};
pub(crate) use body::{Body, Slot};
pub(crate) use connection::Connection;
pub(crate) use login::login;
pub(crate) use tls::Trust;

/// An error's body is read up to here.
const MAX_REFUSAL: usize = 64 << 10;

/// The other end, and all that its connections share.
#[derive(Clone)]
pub(crate) struct Server {
    url: Url,
    tls: Arc<rustls::ClientConfig>,
    /// As whom nobody knows us.
    elsewhere: Arc<rustls::ClientConfig>,
    /// The value of an `Authorization` header.
    login: Option<Arc<Zeroizing<String>>>,
    received: Arc<AtomicU64>,
}

impl Server {
    /// Connects to nothing yet.
    pub(crate) fn new(url: Url, trust: Trust, login: Option<Zeroizing<String>>) -> Self {
        Self {
            url,
            tls: trust.named,
            elsewhere: trust.elsewhere,
            login: login.map(Arc::new),
            received: Arc::default(),
        }
    }

    /// Another server that this one sent us to: it is not told who we are.
    pub(crate) fn elsewhere(&self, url: Url) -> Self {
        Self {
            url,
            tls: Arc::clone(&self.elsewhere),
            login: None,
            ..self.clone()
        }
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// Bytes that came over all its connections so far: TLS and HTTP heads included.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// What is asked.
pub(crate) struct Request<'a> {
    /// `GET` or `POST`.
    pub(crate) method: &'static str,
    /// Path and query.
    pub(crate) path: &'a str,
    /// Beside those that every request has.
    pub(crate) headers: &'a [(&'static str, String)],
    /// Sent whole, with its length; of a GET empty and not mentioned.
    pub(crate) body: &'a [u8],
    /// Of the body.
    pub(crate) media_type: &'static str,
}

impl<'a> Request<'a> {
    /// Without a body.
    pub(crate) fn get(path: &'a str, headers: &'a [(&'static str, String)]) -> Self {
        Self {
            method: "GET",
            path,
            headers,
            body: &[],
            media_type: "",
        }
    }

    /// A document.
    pub(crate) fn post(path: &'a str, media_type: &'static str, body: &'a [u8]) -> Self {
        Self {
            method: "POST",
            path,
            headers: &[],
            body,
            media_type,
        }
    }
}

/// The head of an answer, and what follows it.
pub(crate) struct Answer {
    /// Of HTTP.
    pub(crate) status: StatusCode,
    /// As sent.
    pub(crate) headers: HeaderMap,
    /// Still on the wire.
    pub(crate) body: Body,
}

impl Answer {
    /// The text of a header, if it has one that is text.
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// A no as an error that says what to do about it; reads the body.
    pub(crate) fn refusal(self, server: &Server, what: &str) -> Error {
        let status = self.status;
        let retry_after = self
            .header(header::RETRY_AFTER)
            .and_then(|text| text.parse().ok())
            .map(Duration::from_secs);
        let bytes = self.body.all(MAX_REFUSAL).unwrap_or_default();
        let mut code = None;
        let said = ErrorBody::parse(&bytes).map(|body| {
            code = body.errors.first().map(|entry| entry.code);
            let all: Vec<_> = body.errors.into_iter().map(|entry| entry.message).collect();
            all.join("; ")
        });
        let said = said.filter(|said| !said.is_empty());
        let url = server.url();
        let logged_in = server.login.is_some();
        let mend = match status {
            StatusCode::UNAUTHORIZED if logged_in => {
                "; the login is wrong: see --user and --password-file"
            }
            StatusCode::UNAUTHORIZED => {
                "; log in with --user and --password-file, or `docker login`"
            }
            StatusCode::FORBIDDEN if logged_in => "; this login may not pull it",
            StatusCode::NOT_FOUND if code != Some(ErrorCode::Unsupported) => {
                "; see its name and tag"
            }
            _ => "",
        };
        let said = match said {
            Some(said) => format!("{url} refuses {what}: {said} ({status}){mend}"),
            None => format!("{url} refuses {what}: {status}{mend}"),
        };
        Error::Refused {
            status,
            message: said,
            retry_after,
            detail: pull::progress(&bytes),
            code,
        }
    }
}
