//! The keys (as rows of the key table) of the configuration tables `[cache]`, `[eviction]`,
//! `[request_log]`, `[bundle]`, `[tags]` and `[access]`.

use std::time::Duration;

use pierhead_eviction::PolicyName;
use pierhead_eviction::admission::AdmissionName;
use pierhead_oci::units::exact_bytes;

use super::key::{Key, Reload, YEAR, quote, quote_duration, quote_list, quote_path};
use crate::config::Config;
use crate::config::Size;
use crate::config::kind::Kind;

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "cache",
        name: "size",
        help: "Maximum size of all blobs, unfinished downloads included: bytes or a share of the \
               file system. \"auto\" is 80 % of the free space and the size of the cache \
               together, at least 1GiB and at most 1TiB. Set this key if the disk has too little \
               space for other programs, or if images are evicted too soon.",
        kind: Kind::Size {
            min: 1,
            max_percent: 100,
            words: &["auto"],
        },
        example: "\"auto\"",
        reload: Reload::Live,
        set: |config, value| {
            config.cache.size = value.size()?.of_a_cache()?;
            Ok(())
        },
        show: |config| Some(quote(&config.cache.size.to_string())),
    },
    Key {
        section: "cache",
        name: "min_free",
        help: "Space of the file system that pierhead leaves free. Raise this value if other \
               programs share the disk.",
        // A share of 100 % would leave no space for the cache.
        kind: Kind::Size {
            min: 0,
            max_percent: 99,
            words: &[],
        },
        example: "\"512MiB\"",
        reload: Reload::Restart(|new, old| new.cache.min_free = old.cache.min_free),
        set: |config, value| {
            match value.size()? {
            Size::Auto => Err(
                "\"auto\" is for cache.size: write bytes such as \"512MiB\", or a share such as \"5%\""
                    .to_owned(),
            ),
            size => {
                config.cache.min_free = size;
                Ok(())
            }
        }
        },
        show: |config| Some(quote(&config.cache.min_free.to_string())),
    },
    Key {
        section: "cache",
        name: "daily_write_budget",
        help: "Bytes that pierhead writes to the disk per day (UTC), for flash of limited \
               endurance; 0 is no limit. The budget covers blobs, manifests and everything that \
               bundles need; not the catalog, tags, policy state and the request log. When the \
               budget is spent, pierhead passes blobs on without storing them and prepares \
               bundles the next day. Blobs up to 64KiB, manifests and bundles that a worker waits \
               for may exceed the budget by a sixteenth. pierhead saves the count every five \
               minutes and at a clean stop.",
        kind: Kind::Bytes { min: 0, max: None },
        example: "\"0\"",
        reload: Reload::Live,
        set: |config, value| value.bytes().map(|it| config.cache.daily_write_budget = it),
        show: |config| Some(quote(&exact_bytes(config.cache.daily_write_budget))),
    },
    Key {
        section: "eviction",
        name: "policy",
        help: "The policy that selects the blobs to evict when the cache is full; \
               docs/explanation/eviction.md compares the policies. After a change, the new policy \
               receives all blobs in the order of their last use. Change this key if \
               `pierhead-replay` finds a policy that has fewer misses for your request log.",
        kind: Kind::Choice {
            noun: "eviction policy",
            names: || PolicyName::ALL.iter().map(|named| named.name()).collect(),
        },
        example: "\"size-split\"",
        reload: Reload::Live,
        set: |config, value| {
            let name = value.choice().map_err(|error| match value.text() {
                Ok(_) => format!("{error} (pierhead-replay simulates more policies)"),
                Err(_) => error,
            })?;
            config.eviction.policy = name.parse().map_err(|error| format!("{error}"))?;
            Ok(())
        },
        show: |config| Some(quote(config.eviction.policy.name())),
    },
    Key {
        section: "eviction",
        name: "admission",
        help: "Which blobs the cache admits: \"always\" all, \"second-hit\" blobs that were \
               requested before, \"size-aware\" large blobs with lower probability, \"tinylfu\" \
               blobs that were requested often of late. Blobs up to 64KiB, manifests, and pinned \
               or warmed blobs always enter. Change this key if most blobs are requested only \
               once, and `pierhead-replay` finds fewer misses.",
        kind: Kind::Choice {
            noun: "admission",
            names: || {
                AdmissionName::ALL
                    .iter()
                    .map(|named| named.name())
                    .collect()
            },
        },
        example: "\"always\"",
        reload: Reload::Live,
        set: |config, value| {
            let name = value.choice()?;
            config.eviction.admission = name.parse().map_err(|error| format!("{error}"))?;
            Ok(())
        },
        show: |config| Some(quote(config.eviction.admission.name())),
    },
    Key {
        section: "request_log",
        name: "file",
        help: "File to which pierhead logs requests. A line has a time, a keyed hash of the \
               digest, size, cost and outcome, but no names and no clients \
               (docs/formats/request-log.md). At 32MiB the file becomes FILE.1 and a new file \
               begins. Set this key to compare eviction policies with `pierhead-replay`.",
        kind: Kind::PathOrOff,
        example: "\"/var/lib/pierhead/requests.log\"",
        reload: Reload::Restart(|new, old| new.request_log.clone_from(&old.request_log)),
        set: |config, value| value.optional_path().map(|it| config.request_log.file = it),
        show: |config| config.request_log.file.as_deref().map(quote_path),
    },
    Key {
        section: "bundle",
        name: "size",
        help: "Disk space for packs and plans, in addition to cache.size. \"auto\" is a tenth of \
               the sum of the free space and the current size of packs and plans, at least 256MiB \
               and at most 100GiB. Indexes take additional space of about 1 % of the layers. \
               \"off\" disables bundles. Raise this value if pierhead_bundle_packs_evicted_total \
               rises. Write \"off\" if no worker pulls bundles.",
        kind: Kind::Size {
            min: 64 << 20,
            max_percent: 100,
            words: &["auto", "off"],
        },
        example: "\"auto\"",
        reload: Reload::Restart(|new, old| new.bundle.size = old.bundle.size),
        set: |config, value| {
            config.bundle.size = match value.is_off() {
                true => None,
                false => Some(value.size()?),
            };
            Ok(())
        },
        show: |config| {
            let size = config.bundle.size.map(|it| quote(&it.to_string()));
            Some(size.unwrap_or_else(|| quote("off")))
        },
    },
    Key {
        section: "bundle",
        name: "workers",
        help: "Threads that index images for bundles. The same number of low-priority threads \
               build patches; they pause while pierhead indexes an image. An indexing thread \
               takes up to 60MB of memory, a low-priority thread up to 150MB. Each of these \
               threads takes at most half a core, or the share that the profile sets, unless a \
               request waits for the image on which the thread works. Raise this value if \
               pierhead_bundle_images_waiting stays high.",
        kind: Kind::Count { min: 1, max: 64 },
        example: "1",
        reload: Reload::Restart(|new, old| new.bundle.workers = old.bundle.workers),
        set: |config, value| value.count().map(|it| config.bundle.workers = it),
        show: |config| Some(config.bundle.workers.to_string()),
    },
    Key {
        section: "tags",
        name: "ttl",
        help: "How long pierhead serves a tag or a list without revalidation at the upstream. \
               \"0s\" revalidates at every request, and does not cache that a tag is missing. \
               Lower this value if clients must see a moved tag sooner. Raise this value if the \
               registry limits the rate of requests.",
        kind: Kind::Duration {
            min: Duration::ZERO,
            max: YEAR,
        },
        example: "\"1m\"",
        reload: Reload::Live,
        set: |config, value| value.duration().map(|it| config.tags.ttl = it),
        show: |config| quote_duration(config.tags.ttl),
    },
    Key {
        section: "access",
        name: "allow",
        help: "Patterns of repositories that clients may pull. Without patterns, clients may pull \
               all repositories.",
        kind: Kind::Patterns,
        example: "[\"docker.io/library/*\", \"ghcr.io/owner/**\"]",
        reload: Reload::Live,
        set: |config, value| value.patterns().map(|it| config.access.allow = it),
        show: |config| quote_list(&config.access.allow),
    },
    Key {
        section: "access",
        name: "deny",
        help: "Patterns of repositories that clients may not pull: the response is 403, even if \
               allow matches and the image is cached.",
        kind: Kind::Patterns,
        example: "[\"docker.io/somebody/**\"]",
        reload: Reload::Live,
        set: |config, value| value.patterns().map(|it| config.access.deny = it),
        show: |config| quote_list(&config.access.deny),
    },
];
