//! Handles SIGHUP: reads the configuration again, and applies every change that needs no restart.

use pierhead_cache::Cache;
use pierhead_proxy::Proxy;
use pierhead_remote::{Client, Prepared};
use tokio::sync::watch;

use super::components::capacity;
use super::logging::Level;
use crate::admin::HostResourceMetrics;
use crate::cli::serve::ServeArgs;
use crate::config::crate_configs;
use crate::config::environment::Environment;
use crate::config::{self, Config, Reloaded};

/// The components that a reload changes.
pub(super) struct DaemonState {
    pub(super) config: Config,
    pub(super) environment: Environment,
    pub(super) client: Client,
    pub(super) cache: Cache,
    pub(super) proxy: Proxy,
    pub(super) level: Level,
    pub(super) host_resources: HostResourceMetrics,
    /// The configuration in effect, without secrets, for the admin listener.
    pub(super) effective: watch::Sender<String>,
}

impl DaemonState {
    /// Applies the new configuration. If the new configuration has any problem, nothing changes.
    pub(super) async fn reload(&mut self, args: &ServeArgs) {
        match self.try_reload(args).await {
            Ok(changed) => tracing::info!("configuration reloaded: {changed}"),
            Err(error) => tracing::error!("the configuration stays as it was: {error:#}"),
        }
    }

    async fn try_reload(&mut self, args: &ServeArgs) -> anyhow::Result<String> {
        // Reads the files on a blocking thread, since the disk may hang.
        let prepare = {
            let (args, old, environment) =
                (args.clone(), self.config.clone(), self.environment.clone());
            let (client, cache) = (self.client.clone(), self.cache.clone());
            move || prepare(&args, &old, &environment, &client, &cache)
        };
        // All steps that can fail come first. The steps that can fail change nothing.
        let (new, remote, capacity) = tokio::task::spawn_blocking(prepare).await??;
        let (proxy, settings) = (self.proxy.clone(), crate_configs::proxy(&new));
        tokio::task::spawn_blocking(move || proxy.reload(settings, remote)).await?;
        self.level.set(&new.log);
        self.host_resources.update(&new);
        let before = self.cache.eviction().evictions;
        self.cache.set_capacity(capacity).await;
        let evicted = self.cache.eviction().evictions - before;
        let eviction = crate_configs::eviction(&new, capacity);
        self.cache.set_eviction(eviction).await;
        let changed = config::changes(&self.config, &new);
        self.effective.send_replace(config::show(&new));
        self.config = new;
        Ok(describe(&changed, evicted, self.cache.stat().blobs))
    }
}

/// Reads the new configuration. Returns the new configuration, the settings of the registry client
/// and the capacity of the cache. Blocks the thread.
fn prepare(
    args: &ServeArgs,
    old: &Config,
    environment: &Environment,
    client: &Client,
    cache: &Cache,
) -> anyhow::Result<(Config, Prepared, u64)> {
    if let Some(path) = &args.config {
        config::check_rereadable(path).map_err(anyhow::Error::msg)?;
    }
    let (file, overrides) = (args.config.as_deref(), args.overrides());
    let (data, machine) = (&environment.default_data, &environment.machine);
    let Reloaded {
        after_restart,
        without_restart: mut new,
    } = config::load_for_reload(old, file, &overrides, data, machine)?;
    keep_restart_keys(old, &after_restart, &mut new)?;
    let remote = crate_configs::remote(&new, environment).map_err(anyhow::Error::msg)?;
    let remote = client.prepare(remote)?;
    let capacity = capacity(cache, &new)?;
    Ok((new, remote, capacity))
}

/// Describes the changes for the log. `blobs` is the number of cached blobs with which a new
/// eviction policy starts.
fn describe(changes: &[(String, String)], evicted: u64, blobs: u64) -> String {
    if changes.is_empty() {
        return "no key changed that takes effect without a restart; secrets and other named files were read again".to_owned();
    }
    let one = |(key, change): &(String, String)| match key.as_str() {
        "eviction.policy" => format!("{key} {change}, {blobs} blobs taken over"),
        "cache.size" => format!("{key} {change}, {evicted} blobs evicted"),
        _ => format!("{key} {change}"),
    };
    changes.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Gives `new` the old values of keys that need a restart, and validates the result. It is not
/// enough that the file alone is valid: `listen` or `tls.client_ca` of the file may differ from the
/// values of the open listeners. `after_restart` is the configuration that a restart would read
/// from the same file.
fn keep_restart_keys(old: &Config, after_restart: &Config, new: &mut Config) -> anyhow::Result<()> {
    let waiting = config::keep_until_restart(old, after_restart, new);
    for key in &waiting {
        tracing::warn!(
            "{} changed in the configuration: the change needs a restart",
            after_restart.key_locations.describe(key)
        );
    }
    let contradiction = config::auth(new)
        .into_iter()
        .map(|(_, message)| message)
        .next();
    match contradiction.or_else(|| config::open_proxy(new)) {
        // The new file alone is valid. So the problem is that the file contradicts a key that keeps
        // its old value until the restart.
        Some(message) if !waiting.is_empty() => Err(anyhow::anyhow!(
            "this change needs a restart: until then {} keeps its old value, and with that: {message}",
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
    fn the_log_line_of_a_reload_names_each_changed_key() {
        let old = listening("127.0.0.1:5000");
        let unchanged = config::changes(&old, &old.clone());
        assert!(describe(&unchanged, 0, 9).starts_with("no key changed"));
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

    /// Calls the function of the same name with an unchanged `after_restart`, that is, with the new
    /// configuration.
    fn keep_restart_keys(old: &Config, new: &mut Config) -> anyhow::Result<()> {
        super::keep_restart_keys(old, &new.clone(), new)
    }

    #[test]
    fn a_reload_gives_no_credentials_to_an_open_listener() {
        let old = listening("0.0.0.0:5000");
        let with_login = |mut config: Config| {
            config.docker_config = Some("config.json".into());
            config
        };
        let mut elsewhere = with_login(listening("127.0.0.1:5000"));
        assert!(keep_restart_keys(&old, &mut elsewhere).is_err());
        let mut certified = with_login(listening("0.0.0.0:5000"));
        certified.tls.client_ca = Some("ca.pem".into());
        assert!(keep_restart_keys(&old, &mut certified).is_err());
        assert!(keep_restart_keys(&old, &mut listening("127.0.0.1:5000")).is_ok());
        let mut mutual = listening("127.0.0.1:5000");
        mutual.tls.client_ca = Some("ca.pem".into());
        mutual.auth.mode = AuthMode::Mtls;
        let output = keep_restart_keys(&listening("127.0.0.1:5000"), &mut mutual).unwrap_err();
        let output = output.to_string();
        assert!(
            output.starts_with("this change needs a restart: until then tls.client_ca keeps"),
            "{output}"
        );
        let closed = listening("127.0.0.1:5000");
        assert!(keep_restart_keys(&closed, &mut with_login(closed.clone())).is_ok());
    }
}
