//! Defines the command `pierhead serve`: flags, help texts and examples.

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
  pierhead serve --upstream docker.io=https://mirror.example \\
      --upstream registry.lab=http://10.0.0.5:5000
  pierhead serve --config /etc/pierhead/pierhead.toml
  pierhead serve --profile bluefield2

Flags take precedence over the configuration file. SIGHUP reads the file again
and keeps all connections. SIGTERM or SIGINT shuts pierhead down after responses
in progress; a second one aborts them.";

/// The flags of `pierhead serve`. If a flag is repeated, its last value counts, so that a script
/// can append flags to a given command line.
#[derive(Args, Clone)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct ServeArgs {
    /// Configuration file in TOML [default: none; `pierhead config show --default` prints the
    /// defaults]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Preset for the share of the host's CPU, memory and disk that pierhead takes: small,
    /// bluefield2, bluefield3, server or none [default: none]
    #[arg(long, value_name = "NAME", value_parser = parse_profile)]
    profile: Option<ProfileName>,

    /// Address that pierhead listens on for clients; repeatable [default: 0.0.0.0:5000]
    #[arg(long, value_name = "IP:PORT", value_parser = config::parse_address)]
    listen: Vec<SocketAddr>,

    /// Folder of the cache [default: /var/lib/pierhead for root, else ~/.local/share/pierhead]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Maximum size of the cache: bytes (such as 50GiB), a share of the file system (such as 80%)
    /// or "auto" [default: auto]
    #[arg(long, value_name = "SIZE", value_parser = parse_cache_size)]
    cache_size: Option<Size>,

    /// Address of the registry NAME, if different from https://NAME, such as the address of a
    /// mirror; repeatable [default: none]
    #[arg(long = "upstream", value_name = "NAME=URL", value_parser = config::parse_upstream)]
    upstreams: Vec<(Registry, String)>,

    /// Address of the admin listener (metrics, health, `pierhead cache`), or "off" [default:
    /// 127.0.0.1:5001]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_admin)]
    admin: Option<Admin>,

    /// Log level: error, warn, info, debug or trace, also per module, such as
    /// info,pierhead_remote=debug [default: info]
    #[arg(long = "log", value_name = "LEVEL", value_parser = config::check_level)]
    log_level: Option<String>,

    /// Format of the log: text for people, json for log collectors [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// File to which pierhead writes its addresses as {"listen":[…],"admin":…} when it is ready
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

/// The value of `--profile`; `None` for `none`. The value has its own type, because clap interprets
/// a nested `Option` as an optional flag.
#[derive(Clone, Copy)]
pub(crate) struct ProfileName(pub(super) Option<&'static Profile>);

pub(super) fn parse_profile(text: &str) -> Result<ProfileName, String> {
    match text {
        "none" => Ok(ProfileName(None)),
        name => crate::config::profile_named(name).map(|profile| ProfileName(Some(profile))),
    }
}

/// The value of `--admin`; `None` for `off`. The value has its own type, because clap interprets a
/// nested `Option` as an optional flag.
#[derive(Clone, Copy)]
struct Admin(Option<SocketAddr>);

/// Parses the value of `--admin`: `IP:PORT`, `off`, or `http://IP:PORT`, the form of `pierhead
/// cache --admin`.
fn parse_admin(text: &str) -> Result<Admin, String> {
    let bare = text.strip_prefix("http://");
    let bare = bare.map_or(text, |text| text.trim_end_matches('/'));
    config::parse_admin(bare).map(Admin)
}

fn parse_cache_size(text: &str) -> Result<Size, String> {
    text.parse::<Size>()?.of_a_cache()
}

impl ServeArgs {
    /// Returns the values of the flags, which take precedence over the configuration file.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            listen: self.listen.clone(),
            data: self.data.clone(),
            profile: self.profile.map(|profile| profile.0),
            admin: self.admin.map(|admin| admin.0),
            cache_size: self.cache_size,
            upstreams: self.upstreams.clone(),
            log_level: self.log_level.clone().or_else(|| {
                // `--quiet` is a flag as well, so its log level takes precedence over the level in
                // the configuration file.
                super::verbosity::is_quiet().then(|| "warn".to_owned())
            }),
            log_format: self.log_format,
        }
    }
}
