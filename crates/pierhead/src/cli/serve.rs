//! `pierhead serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use pierhead_oci::Registry;

use crate::config::{self, LogFormat, Overrides, Size};
use pierhead_host::profile::Profile;

const EXAMPLES: &str = "\
Examples:
  pierhead serve
  pierhead serve --listen 127.0.0.1:5000 --data /srv/pierhead --cache-size 50GiB
  pierhead serve --upstream docker.io=https://mirror.example --upstream registry.lab=http://10.0.0.5:5000
  pierhead serve --config /etc/pierhead/pierhead.toml
  pierhead serve --profile bluefield2

What the command line says wins over the file. SIGHUP reads the file again, without dropping a
connection; SIGTERM or SIGINT lets answers under way finish, a second one ends at once.";

/// Flags of `serve`.
// The last one counts, so that a script can add to a command line that somebody else made.
#[derive(Args, Clone)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct ServeArgs {
    /// TOML file; every key of it has a default (see `pierhead config show --default`)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// How much of this machine it takes: small, bluefield2, bluefield3, server, or none
    #[arg(long, value_name = "NAME", value_parser = cli_profile)]
    profile: Option<ProfileName>,

    /// Address for clients; may be given several times [default: 0.0.0.0:5000]
    #[arg(long, value_name = "IP:PORT", value_parser = config::parse_address)]
    listen: Vec<SocketAddr>,

    /// Folder of the cache [default: /var/lib/pierhead for root, else ~/.local/share/pierhead]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Bound of the cache: bytes with a unit (50GiB), a share of the file system (80%), or auto
    #[arg(long, value_name = "SIZE", value_parser = parse_cache_size)]
    cache_size: Option<Size>,

    /// Where a registry really is; may be given several times; http:// and private addresses are fine here
    #[arg(long = "upstream", value_name = "NAME=URL", value_parser = config::parse_upstream)]
    upstreams: Vec<(Registry, String)>,

    /// Address of metrics, health and the cache commands, or off [default: 127.0.0.1:5001]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_admin)]
    admin: Option<Admin>,

    /// error, warn, info, debug or trace; also by module: info,pierhead_remote=debug [default: info]
    #[arg(long = "log", value_name = "LEVEL", value_parser = config::check_level)]
    log_level: Option<String>,

    /// How log lines look [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// Write {"listen":[…],"admin":…} with the bound addresses to this file once ready; for scripts that
    /// listen on port 0
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

/// A type of its own, because clap reads meaning into nested options.
#[derive(Clone, Copy)]
pub(crate) struct ProfileName(pub(super) Option<&'static Profile>);

pub(super) fn cli_profile(text: &str) -> Result<ProfileName, String> {
    match text {
        "none" => Ok(ProfileName(None)),
        name => crate::config::profile_named(name).map(|profile| ProfileName(Some(profile))),
    }
}

/// A type of its own, because clap reads meaning into nested options.
#[derive(Clone, Copy)]
struct Admin(Option<SocketAddr>);

/// With a scheme, too, as `pierhead cache --admin` takes it.
fn parse_admin(text: &str) -> Result<Admin, String> {
    let bare = text.strip_prefix("http://");
    let bare = bare.map_or(text, |text| text.trim_end_matches('/'));
    config::parse_admin(bare).map(Admin)
}

fn parse_cache_size(text: &str) -> Result<Size, String> {
    text.parse::<Size>()?.of_a_cache()
}

impl ServeArgs {
    /// What stands over the file.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            listen: self.listen.clone(),
            data: self.data.clone(),
            profile: self.profile.map(|profile| profile.0),
            admin: self.admin.map(|admin| admin.0),
            cache_size: self.cache_size,
            upstreams: self.upstreams.clone(),
            log_level: self.log_level.clone().or_else(|| {
                // What the command line says wins over the file.
                crate::verbosity::is_quiet().then(|| "warn".to_owned())
            }),
            log_format: self.log_format,
        }
    }
}
