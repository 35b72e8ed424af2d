//! The commands of a machine that runs images: `pull`, `trace`, `inspect`, `diff`.

mod error;
mod http;
mod interrupt;
mod names;
mod pull;
mod session;
mod trace;
mod url;

use std::fmt::Display;

use crate::cli::worker::{DiffArgs, InspectArgs, LoginArgs};
use crate::environment::Environment;
use crate::failure::Failure;
use error::Error;
use http::Server;
pub(crate) use pull::run as pull;
pub(crate) use trace::run as trace;
pub(crate) use url::Url;

/// `pierhead inspect`.
pub(crate) fn inspect(_: &InspectArgs, _: &Environment) -> Result<(), Failure> {
    Err(failed("inspect comes with the store"))
}

/// `pierhead diff`.
pub(crate) fn diff(_: &DiffArgs, _: &Environment) -> Result<(), Failure> {
    Err(failed("diff comes with the store"))
}

/// The other end, with whom we trust and as whom we ask; asks nothing yet.
fn server(via: &Url, args: &LoginArgs, environment: &Environment) -> Result<Server, Failure> {
    let tls = http::trust(args.ca.as_deref()).map_err(Failure::Refused)?;
    let login = http::login(args, via, environment).map_err(Failure::Refused)?;
    Ok(Server::new(via.clone(), tls, login))
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
