//! Keys of the limits.

use std::time::Duration;

use pierhead_oci::units::exact_bytes;

use super::{HOUR, Key, MILLISECOND, SECOND, quote, quote_duration};
use crate::config::Config;
use crate::pressure::Resource;

/// A number of bytes that fits into memory.
fn quote_bytes(bytes: usize) -> String {
    quote(&exact_bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// By the kernel's names, each once.
fn resources(names: &[String]) -> Result<Vec<Resource>, String> {
    let mut resources = Vec::new();
    for name in names {
        let found = Resource::ALL.into_iter().find(|it| it.name() == name);
        match found {
            Some(resource) if !resources.contains(&resource) => resources.push(resource),
            Some(_) => return Err(format!("{name:?} is named twice: keep one")),
            None => {
                return Err(format!(
                    "{name:?} is nothing that pressure is counted of: write \"memory\", \"cpu\" or \"io\""
                ));
            }
        }
    }
    Ok(resources)
}

/// What `[limits]` may hold.
pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "limits",
        name: "connections",
        doc: "Connections of clients at once. When all are in use, a newcomer gets the place of an idle connection of\n\
              the client that has most; without one, it is answered 503.",
        example: "4096",
        set: |config, value| {
            value
                .count(1, 1_000_000)
                .map(|it| config.limits.connections = it)
        },
        show: |config| Some(config.limits.connections.to_string()),
    },
    Key {
        section: "limits",
        name: "connections_per_client",
        doc: "Connections of one client at once (an IPv4 address, an IPv6 /64). For one more, its longest idle one is\n\
              closed; without one, it is answered 503. By default an eighth of `connections`: raise it where many\n\
              machines share one address.",
        example: "512",
        set: |config, value| {
            value
                .count(1, 1_000_000)
                .map(|it| config.limits.connections_per_client = it)
        },
        show: |config| Some(config.limits.connections_per_client.to_string()),
    },
    Key {
        section: "limits",
        name: "upstream_bandwidth",
        doc: "Bytes a second over all downloads, or \"off\".",
        example: "\"100MB/s\"",
        set: |config, value| value.rate().map(|it| config.limits.upstream_bandwidth = it),
        show: |config| {
            Some(config.limits.upstream_bandwidth.map_or_else(
                || quote("off"),
                |it| quote(&format!("{}/s", exact_bytes(it))),
            ))
        },
    },
    Key {
        section: "limits",
        name: "upstream_fetches",
        doc: "Downloads of blobs at once, over all upstreams; more wait. A quarter is kept for registries that this file\n\
              names. An eighth of all, and of those that other registries may use, is kept for clients that have less\n\
              than an eighth. One registry gets three quarters.",
        example: "32",
        set: |config, value| {
            value
                .count(1, 4096)
                .map(|it| config.limits.upstream_fetches = it)
        },
        show: |config| Some(config.limits.upstream_fetches.to_string()),
    },
    Key {
        section: "limits",
        name: "upstream_fetches_per_client",
        doc: "Of these for one client. Four times as many may be under way or wait; more are answered 503.",
        example: "16",
        set: |config, value| {
            value
                .count(1, 4096)
                .map(|it| config.limits.fetches_per_client = it)
        },
        show: |config| Some(config.limits.fetches_per_client.to_string()),
    },
    Key {
        section: "limits",
        name: "answer_memory",
        doc: "Memory for answers on their way, until clients have taken them; more are answered 503. Bodies of requests\n\
              count as they arrive. An eighth is kept for clients that have less than an eighth. One client gets half.",
        example: "\"128MiB\"",
        set: |config, value| {
            value
                .memory(1 << 20, 1 << 40)
                .map(|it| config.limits.answer_memory = it)
        },
        show: |config| Some(quote_bytes(config.limits.answer_memory)),
    },
    Key {
        section: "limits",
        name: "answer_within",
        doc: "A client gets data, stale data or an error within this time.",
        example: "\"5s\"",
        set: |config, value| {
            value
                .duration(100 * MILLISECOND, 60 * SECOND)
                .map(|it| config.limits.answer_within = it)
        },
        show: |config| quote_duration(config.limits.answer_within),
    },
    Key {
        section: "limits",
        name: "connect_timeout",
        doc: "For reaching an upstream: DNS, TCP and TLS together.",
        example: "\"3s\"",
        set: |config, value| {
            value
                .duration(MILLISECOND, HOUR)
                .map(|it| config.limits.connect_timeout = it)
        },
        show: |config| quote_duration(config.limits.connect_timeout),
    },
    Key {
        section: "limits",
        name: "header_timeout",
        doc: "From a request to an upstream to the head of its answer.",
        example: "\"4s\"",
        set: |config, value| {
            value
                .duration(MILLISECOND, HOUR)
                .map(|it| config.limits.header_timeout = it)
        },
        show: |config| quote_duration(config.limits.header_timeout),
    },
    Key {
        section: "limits",
        name: "stall_timeout",
        doc: "A download that brings nothing for so long, or less than 10KiB/s on average, is cut and resumed.",
        example: "\"15s\"",
        set: |config, value| {
            value
                .duration(MILLISECOND, HOUR)
                .map(|it| config.limits.stall_timeout = it)
        },
        show: |config| quote_duration(config.limits.stall_timeout),
    },
    Key {
        section: "limits",
        name: "client_stall",
        doc: "A client that takes nothing of its answer for so long is cut.",
        example: "\"30s\"",
        set: |config, value| {
            let duration = value.duration(SECOND, HOUR);
            duration.map(|it| config.limits.client_stall = it)
        },
        show: |config| quote_duration(config.limits.client_stall),
    },
    Key {
        section: "limits",
        name: "drain",
        doc: "After SIGTERM, answers under way may take so long, and then what a volatile tier has and the disk lacks is copied.\nFive seconds at least for both.",
        example: "\"30s\"",
        set: |config, value| {
            value
                .duration(Duration::ZERO, HOUR)
                .map(|it| config.limits.drain = it)
        },
        show: |config| quote_duration(config.limits.drain),
    },
    Key {
        section: "limits",
        name: "memory",
        doc: "Memory that pierhead plans with, or \"off\": what bundle.enabled, bundle.workers, connections and answer_memory are not\nset to follows from it, and the memory for small blobs (4MiB without it). Of it a quarter is left to the page cache and the sockets. Needs a restart to change.",
        example: "\"off\"",
        set: |config, value| {
            config.limits.memory = match value.is_off() {
                true => None,
                false => Some(value.memory(128 << 20, 1 << 44)?)
                    .and_then(|bytes| u64::try_from(bytes).ok()),
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
        doc: "Processors that it runs on: \"all\" that it may, the \"last 4\" of these, or their numbers such as \"4-7\".\nEach gets a worker thread, as far as the quota of the control group keeps them busy, up to 16. Needs a restart to change.",
        example: "\"all\"",
        set: |config, value| {
            config.limits.cores = value.text()?.parse()?;
            Ok(())
        },
        show: |config| Some(quote(&config.limits.cores.to_string())),
    },
    Key {
        section: "limits",
        name: "rest_under",
        doc: "What the machine, or our control group, may be short of before work in the background rests: \"memory\", \"cpu\", \"io\"; []\nis nothing (docs/profiles.md). Needs a restart to change.",
        example: "[\"memory\", \"cpu\"]",
        set: |config, value| resources(&value.names()?).map(|it| config.limits.rest_under = it),
        show: |config| {
            let under = config.limits.rest_under.iter();
            let names: Vec<_> = under.map(|it| quote(it.name())).collect();
            Some(format!("[{}]", names.join(", ")))
        },
    },
];
