//! SIGHUP: the configuration is read again, and all that can change while running changes.

use pierhead_cache::Cache;
use pierhead_proxy::Proxy;
use pierhead_remote::{Client, Prepared};
use tokio::sync::watch;

use super::open::capacity;
use crate::admin::Share;
use crate::cli::serve::ServeArgs;
use crate::config::{self, Config};
use crate::environment::Environment;
use crate::logging::Level;
use crate::wiring;

/// What a reload touches.
pub(super) struct Running {
    pub(super) config: Config,
    pub(super) environment: Environment,
    pub(super) client: Client,
    pub(super) cache: Cache,
    pub(super) proxy: Proxy,
    pub(super) level: Level,
    pub(super) share: Share,
    /// The configuration in effect, without secrets, for the admin listener.
    pub(super) effective: watch::Sender<String>,
}

impl Running {
    /// All or nothing: a configuration with any problem changes nothing.
    pub(super) async fn reload(&mut self, args: &ServeArgs) {
        match self.try_reload(args).await {
            Ok(changed) => tracing::info!("configuration read again: {changed}"),
            Err(error) => tracing::error!("the configuration was not changed: {error:#}"),
        }
    }

    async fn try_reload(&mut self, args: &ServeArgs) -> anyhow::Result<String> {
        // It reads files, which may lie on a disk that hangs.
        let prepare = {
            let (args, old, environment) =
                (args.clone(), self.config.clone(), self.environment.clone());
            let (client, cache) = (self.client.clone(), self.cache.clone());
            move || prepare(&args, &old, &environment, &client, &cache)
        };
        // Whatever can fail comes first and changes nothing.
        let (new, remote, capacity) = tokio::task::spawn_blocking(prepare).await??;
        // Requests use the old upstream client until the proxy swaps client and access rules together.
        self.client.apply(remote);
        let (proxy, settings) = (self.proxy.clone(), wiring::proxy(&new));
        tokio::task::spawn_blocking(move || proxy.reload(settings)).await?;
        self.level.set(&new.log);
        self.share.note(&new);
        let before = self.cache.eviction().evictions;
        self.cache.set_capacity(capacity).await;
        let evicted = self.cache.eviction().evictions - before;
        let eviction = wiring::eviction(&new, capacity);
        self.cache.set_eviction(eviction).await;
        let changed = config::changes(&self.config, &new);
        self.effective.send_replace(config::show(&new));
        self.config = new;
        Ok(describe(&changed, evicted, self.cache.stat().blobs))
    }
}

/// The new configuration, what it makes of the registry client, and the cache's capacity by it. Blocks.
fn prepare(
    args: &ServeArgs,
    old: &Config,
    environment: &Environment,
    client: &Client,
    cache: &Cache,
) -> anyhow::Result<(Config, Prepared, u64)> {
    if let Some(path) = &args.config {
        config::can_be_read_again(path).map_err(anyhow::Error::msg)?;
    }
    let (file, overrides) = (args.config.as_deref(), args.overrides());
    let (data, machine) = (&environment.default_data, &environment.machine);
    // As a restart would take it, and as it can be without one.
    let asked = config::load(file, &overrides, data, machine)?;
    let mut new = config::load_under(old, file, &overrides, data, machine)?;
    settle(old, &asked, &mut new)?;
    let remote = wiring::remote(&new, environment).map_err(anyhow::Error::msg)?;
    let remote = client.prepare(remote)?;
    let capacity = capacity(cache, &new)?;
    Ok((new, remote, capacity))
}

/// What changed, for the log. `held`: blobs that another policy began with.
fn describe(changes: &[(String, String)], evicted: u64, held: u64) -> String {
    if changes.is_empty() {
        return "nothing changed that can without a restart, but for secrets and files that it names".to_owned();
    }
    let one = |(key, change): &(String, String)| match key.as_str() {
        "eviction.policy" => format!("{key} {change}, {held} blobs taken over"),
        "cache.size" => format!("{key} {change}, {evicted} blobs evicted"),
        _ => format!("{key} {change}"),
    };
    changes.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Keeps what only a restart can change, and looks again whether the whole is safe: what was checked so far
/// may listen elsewhere, or ask for certificates that the open listeners do not ask for. `asked` is what a restart would make of the file that
/// `new` is from, too.
fn settle(old: &Config, asked: &Config, new: &mut Config) -> anyhow::Result<()> {
    let waiting = config::keep_until_restart(old, asked, new);
    for key in &waiting {
        tracing::warn!(
            "{} changed in the configuration: the change needs a restart",
            asked.places.of(key)
        );
    }
    let contradiction = config::auth(new)
        .into_iter()
        .map(|(_, message)| message)
        .next();
    match contradiction.or_else(|| config::open_proxy(new)) {
        // The new file is good by itself: what contradicts it is what stays.
        Some(message) if !waiting.is_empty() => Err(anyhow::anyhow!(
            "this needs a restart: until then {} must stay as before, and with that: {message}",
            waiting.join(", ")
        )),
        Some(message) => Err(anyhow::anyhow!(message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AuthMode;

    #[test]
    fn a_reload_says_what_changed() {
        let old = listening("127.0.0.1:5000");
        let unchanged = config::changes(&old, &old.clone());
        assert!(describe(&unchanged, 0, 9).starts_with("nothing changed"));
        let mut new = old.clone();
        new.eviction.policy = pierhead_eviction::PolicyName::Lru;
        new.log.level = "debug".into();
        let output = describe(&config::changes(&old, &new), 0, 31);
        let (from, level) = (old.eviction.policy.name(), &old.log.level);
        assert_eq!(
            output,
            format!(
                "eviction.policy {from} -> lru, 31 blobs taken over; log.level {level} -> debug"
            )
        );
        let mut smaller = old.clone();
        smaller.cache.size = crate::config::Size::Bytes(8 << 20);
        let output = describe(&config::changes(&old, &smaller), 17, 31);
        assert!(output.ends_with("-> 8MiB, 17 blobs evicted"), "{output}");
    }

    fn listening(address: &str) -> Config {
        let mut config = Config::with_data("data".into());
        config.listen = vec![address.parse().unwrap()];
        config
    }

    /// As if a restart would make the same of the file.
    fn settle(old: &Config, new: &mut Config) -> anyhow::Result<()> {
        super::settle(old, &new.clone(), new)
    }

    #[test]
    fn credentials_do_not_come_to_listeners_that_stay_open() {
        let old = listening("0.0.0.0:5000");
        let with_login = |mut config: Config| {
            config.docker_config = Some("config.json".into());
            config
        };
        let mut elsewhere = with_login(listening("127.0.0.1:5000"));
        assert!(settle(&old, &mut elsewhere).is_err());
        let mut certified = with_login(listening("0.0.0.0:5000"));
        certified.tls.client_ca = Some("ca.pem".into());
        assert!(settle(&old, &mut certified).is_err());
        assert!(settle(&old, &mut listening("127.0.0.1:5000")).is_ok());
        let mut mutual = listening("127.0.0.1:5000");
        mutual.tls.client_ca = Some("ca.pem".into());
        mutual.auth.mode = AuthMode::Mtls;
        let output = settle(&listening("127.0.0.1:5000"), &mut mutual).unwrap_err();
        let output = output.to_string();
        assert!(
            output.starts_with("this needs a restart: until then tls.client_ca must stay"),
            "{output}"
        );
        let closed = listening("127.0.0.1:5000");
        assert!(settle(&closed, &mut with_login(closed.clone())).is_ok());
    }
}
