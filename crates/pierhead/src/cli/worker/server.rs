//! Turns the flags `--via`, `--ca`, `--user` and `--platform` of `pierhead pull`, `trace`,
//! `inspect` and `diff` into a server and a platform.

use pierhead_oci::Platform;
use pierhead_worker::{Server, TlsConfigs, Url};

use super::args::LoginArgs;
use super::login;
use crate::cli::exit_code::CommandError;
use crate::config::crate_configs;
use crate::config::environment::Environment;

/// Returns the server that `--via` names, with TLS settings and credentials. Opens no connection.
pub(super) fn server(
    via: &Url,
    args: &LoginArgs,
    environment: &Environment,
) -> Result<Server, CommandError> {
    let identity = args.cert.as_deref().zip(args.key.as_deref());
    let tls = TlsConfigs::new(crate_configs::trusted_roots, args.ca.as_deref(), identity)?;
    let login = login::login(args, via, environment.docker_config.as_deref());
    let login = login.map_err(CommandError::Usage)?;
    Ok(Server::new(via.clone(), tls, login))
}

/// Returns the platform of `--platform`, or else the platform of this host.
pub(super) fn platform(named: Option<&Platform>) -> Platform {
    named.cloned().unwrap_or_else(|| {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Platform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }
    })
}
