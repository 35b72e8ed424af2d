//! The commands of a machine that runs images: `pull`, `trace`, `inspect`, `diff`.

mod error;
mod http;
mod interrupt;
mod look;
mod names;
mod pull;
mod pulled;
mod session;
mod trace;
mod url;

use std::fmt::Display;

use crate::cli::worker::LoginArgs;
use crate::environment::Environment;
use crate::failure::Failure;
pub(crate) use error::Error;
use http::Server;
pub(crate) use look::{diff, inspect};
pub(crate) use pull::run as pull;
pub(crate) use trace::run as trace;
pub(crate) use url::Url;

/// The other end, with whom we trust and as whom we ask; asks nothing yet.
fn server(via: &Url, args: &LoginArgs, environment: &Environment) -> Result<Server, Failure> {
    let identity = args.cert.as_deref().zip(args.key.as_deref());
    let trust = http::Trust::of(args.ca.as_deref(), identity).map_err(Failure::Refused)?;
    let login = http::login(args, via, environment).map_err(Failure::Refused)?;
    Ok(Server::new(via.clone(), trust, login))
}

/// What a user reads when it did not work.
fn failed(message: impl Display) -> Failure {
    Failure::Failed(anyhow::anyhow!("{message}"))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}
