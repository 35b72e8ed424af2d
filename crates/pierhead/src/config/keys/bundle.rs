//! Keys of `[bundle]`.

use super::{Key, quote};
use crate::config::Config;

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "bundle",
        name: "enabled",
        doc: "Whether images are indexed in the background and bundles are served.",
        example: "true",
        set: |config, value| value.boolean().map(|it| config.bundle.enabled = it),
        show: |config| Some(config.bundle.enabled.to_string()),
    },
    Key {
        section: "bundle",
        name: "size",
        doc: "Bytes of packs and plans on disk, besides cache.size: bytes, a share of the file system, or \"auto\": a tenth of\nwhat is free or taken by them already, at least 256MiB, at most 100GiB. Indexes and tables take about a hundredth of the\nlayers besides, and go with them.",
        example: "\"auto\"",
        set: |config, value| match value.size()? {
            super::super::Size::Bytes(bytes) if bytes < MIN_SIZE => {
                Err("less than 64MiB holds no image: write more, or enabled = false".to_owned())
            }
            size => {
                config.bundle.size = size;
                Ok(())
            }
        },
        show: |config| Some(quote(&config.bundle.size.to_string())),
    },
    Key {
        section: "bundle",
        name: "workers",
        doc: "Threads that make images ready, and as many at the lowest priority that make patches and pack better, and rest while an\nimage is made ready. Each of the former takes up to 60MB of memory while it works, of the latter up to 150MB. Each takes half of a core at most, or what\nthe profile says, but for an image that a request waits for.",
        example: "1",
        set: |config, value| value.count(1, 64).map(|it| config.bundle.workers = it),
        show: |config| Some(config.bundle.workers.to_string()),
    },
    Key {
        section: "bundle",
        name: "pairs",
        doc: "Older versions of a repository that patches to a new one are made from ahead of time; 0 is none.",
        example: "2",
        set: |config, value| value.count(0, 100).map(|it| config.bundle.pairs = it),
        show: |config| Some(config.bundle.pairs.to_string()),
    },
];

/// Of packs and plans.
const MIN_SIZE: u64 = 64 << 20;
