//! The configuration keys of `[limits]`, as rows of the key table.

use std::time::Duration;

use pierhead_oci::units::exact_bytes;

use super::key::{HOUR, Key, MILLISECOND, Reload, quote, quote_duration, quote_rate};
use crate::config::Config;
use crate::config::kind::Kind;
use pierhead_host::pressure::Resource;

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "limits",
        name: "connections",
        help: "Maximum number of client connections. One client (an IPv4 address or an IPv6 /64) \
               gets at most an eighth of all connections: if many hosts share one address, write \
               eight times the connections of these hosts. When all connections are in use, a new \
               connection replaces an idle one of the client with the most connections, or gets \
               503.",
        kind: Kind::Count {
            min: 1,
            max: 1_000_000,
        },
        example: "4096",
        reload: Reload::Live,
        set: |config, value| value.count().map(|it| config.limits.connections = it),
        show: |config| Some(config.limits.connections.to_string()),
    },
    Key {
        section: "limits",
        name: "upstream_bandwidth",
        help: "Maximum rate of all downloads together, in bytes per second. Set this key to leave \
               bandwidth of the uplink to other programs.",
        kind: Kind::Rate,
        example: "\"100MB/s\"",
        reload: Reload::Live,
        set: |config, value| value.rate().map(|it| config.limits.upstream_bandwidth = it),
        show: |config| quote_rate(config.limits.upstream_bandwidth),
    },
    Key {
        section: "limits",
        name: "downloads",
        help: "Maximum number of parallel downloads of blobs from all upstreams; further \
               downloads wait. One client gets at most half of these downloads, and 503 when its \
               running and waiting downloads are four times this half. One registry gets at most \
               three quarters of these downloads. One quarter of all downloads is reserved for \
               registries that the configuration file names. One eighth of all downloads is \
               reserved for clients whose running downloads are fewer than one eighth. Raise this \
               value if downloads wait while the uplink has free bandwidth.",
        kind: Kind::Count { min: 1, max: 4096 },
        example: "32",
        reload: Reload::Live,
        set: |config, value| value.count().map(|it| config.limits.downloads = it),
        show: |config| Some(config.limits.downloads.to_string()),
    },
    Key {
        section: "limits",
        name: "response_timeout",
        help: "Maximum time until a client gets the first data, stale data or an error. Raise \
               this value if slow upstreams cause errors. Lower this value if clients must try \
               another registry sooner.",
        kind: Kind::Duration {
            min: Duration::from_millis(100),
            max: Duration::from_secs(60),
        },
        example: "\"5s\"",
        reload: Reload::Live,
        set: |config, value| {
            value
                .duration()
                .map(|it| config.limits.response_timeout = it)
        },
        show: |config| quote_duration(config.limits.response_timeout),
    },
    Key {
        section: "limits",
        name: "upstream_timeout",
        help: "A download that receives nothing for this long, or less than 10KiB/s on average, \
               is cancelled and resumed. Of this time, connecting to an upstream (DNS, TCP and \
               TLS) takes at most 3s, and the response headers at most 4s. Raise this value if an \
               upstream pauses for longer during a download.",
        kind: Kind::Duration {
            min: MILLISECOND,
            max: HOUR,
        },
        example: "\"15s\"",
        reload: Reload::Live,
        set: |config, value| {
            value
                .duration()
                .map(|it| config.limits.upstream_timeout = it)
        },
        show: |config| quote_duration(config.limits.upstream_timeout),
    },
    Key {
        section: "limits",
        name: "shutdown_grace",
        help: "Maximum time after SIGTERM for responses in progress and then for the write-back \
               of a volatile fast tier; at least 5s for both together. Configure the service \
               manager to wait longer. Raise this value if a restart interrupts long pulls.",
        kind: Kind::Duration {
            min: Duration::ZERO,
            max: HOUR,
        },
        example: "\"30s\"",
        reload: Reload::Live,
        set: |config, value| value.duration().map(|it| config.limits.shutdown_grace = it),
        show: |config| quote_duration(config.limits.shutdown_grace),
    },
    Key {
        section: "limits",
        name: "memory",
        help: "Memory that pierhead may use. This key determines the defaults of bundle.size, \
               bundle.workers and limits.connections, the memory for responses (128MiB without \
               this key) and the memory for small blobs (4MiB without this key). A quarter of \
               limits.memory is reserved for the page cache and sockets. Set this key if other \
               programs on the host need memory.",
        kind: Kind::BytesOrOff {
            min: 128 << 20,
            max: 1 << 44,
        },
        example: "\"off\"",
        reload: Reload::RestartWithProfile(|new, old| new.limits.memory = old.limits.memory),
        set: |config, value| {
            config.limits.memory = match value.is_off() {
                true => None,
                false => Some(value.bytes()?),
            };
            Ok(())
        },
        show: |config| {
            let memory = config.limits.memory;
            Some(memory.map_or_else(|| quote("off"), |it| quote(&exact_bytes(it))))
        },
    },
    Key {
        section: "limits",
        name: "cores",
        help: "CPUs that pierhead runs on: \"all\" CPUs that the process may use, the \"last 4\" \
               of these CPUs, or numbers such as \"4-7\". pierhead starts one thread per CPU, at \
               most 16, and no more than the CPU quota of the cgroup keeps busy. Set this key to \
               leave CPUs to other programs.",
        kind: Kind::Text,
        example: "\"all\"",
        reload: Reload::Restart(|new, old| new.limits.cores.clone_from(&old.limits.cores)),
        set: |config, value| {
            config.limits.cores = value.text()?.parse()?;
            Ok(())
        },
        show: |config| Some(quote(&config.limits.cores.to_string())),
    },
    Key {
        section: "limits",
        name: "pause_under",
        help: "Resources whose pressure, on the host or in the cgroup, pauses background work. \
               Under pressure on memory, a fast tier in memory also shrinks. [] disables the \
               pause (docs/explanation/profiles.md). Add a resource if background work slows down \
               other programs.",
        kind: Kind::Choices {
            noun: "resource with pressure data",
            names: || Resource::ALL.iter().map(|it| it.name()).collect(),
        },
        example: "[\"memory\", \"cpu\"]",
        reload: Reload::Restart(|new, old| {
            new.limits.pause_under.clone_from(&old.limits.pause_under);
        }),
        set: |config, value| {
            let names = value.choices()?;
            let named = |it: &Resource| names.contains(&it.name());
            config.limits.pause_under = Resource::ALL.into_iter().filter(named).collect();
            Ok(())
        },
        show: |config| {
            let names = config.limits.pause_under.iter().map(|it| quote(it.name()));
            Some(format!("[{}]", names.collect::<Vec<_>>().join(", ")))
        },
    },
];
