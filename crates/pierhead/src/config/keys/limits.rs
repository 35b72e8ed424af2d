//! Keys of `[limits]`.

use std::time::Duration;

use pierhead_oci::units::exact_bytes;

use super::key::{HOUR, Key, MILLISECOND, Reload, quote, quote_duration, quote_rate};
use super::kind::Kind;
use crate::config::Config;
use pierhead_host::pressure::Resource;

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "limits",
        name: "connections",
        help: "Client connections at a time. One client (an IPv4 address or an IPv6 /64) gets an eighth of them: write eight \
               times what you need where many hosts share one address. When all are in use, a new connection replaces an \
               idle one of the client that has most, or gets 503.",
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
        help: "Bytes per second over all downloads. Set it to leave some of the uplink to others.",
        kind: Kind::Rate,
        example: "\"100MB/s\"",
        reload: Reload::Live,
        set: |config, value| value.rate().map(|it| config.limits.upstream_bandwidth = it),
        show: |config| quote_rate(config.limits.upstream_bandwidth),
    },
    Key {
        section: "limits",
        name: "downloads",
        help: "Downloads of blobs at a time over all upstreams; more wait. One client gets half of them, and 503 when four \
               times as many of its downloads run or wait. One registry gets three quarters. A quarter is reserved for \
               registries that this file names, an eighth for clients that have less than an eighth.",
        kind: Kind::Count { min: 1, max: 4096 },
        example: "32",
        reload: Reload::Live,
        set: |config, value| value.count().map(|it| config.limits.downloads = it),
        show: |config| Some(config.limits.downloads.to_string()),
    },
    Key {
        section: "limits",
        name: "response_timeout",
        help: "Within this time a client gets data, stale data or an error.",
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
        help: "A download that receives nothing for this long, or less than 10KiB/s on average, is cancelled and resumed. \
               Connecting to an upstream (DNS, TCP and TLS) takes at most 3s of it, and the response headers 4s.",
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
        help: "How long pierhead finishes responses after SIGTERM, and then copies to the disk what only a volatile tier has. \
               Both together get at least five seconds. The service manager must wait longer.",
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
        help: "Memory that pierhead plans with. The defaults of bundle.size, bundle.workers and limits.connections follow from \
               it, and the memory for responses (128MiB without it) and for small blobs (4MiB without it). A quarter of it is \
               left to the page cache and the sockets.",
        kind: Kind::BytesOrOff {
            min: 128 << 20,
            max: 1 << 44,
        },
        example: "\"off\"",
        reload: Reload::Restart(|new, old| new.limits.memory = old.limits.memory),
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
        help: "CPUs that pierhead runs on: \"all\" that it may use, the \"last 4\" of these, or numbers such as \"4-7\". Each gets \
               a thread, up to 16 and no more than the CPU quota of the cgroup keeps busy.",
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
        help: "Under pressure on any of these resources, of the host or of the cgroup, pierhead pauses background work. \
               Under pressure on memory, a fast tier in memory shrinks, too. [] watches nothing (docs/explanation/profiles.md).",
        kind: Kind::Choices {
            noun: "resource with pressure figures",
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
