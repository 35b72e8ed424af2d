//! Keys of `[bundle]`.

use super::{HOUR, Key, SECOND, quote, quote_duration};
use crate::config::Config;
use crate::config::units::exact_bytes;

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
        doc: "Threads that make images ready, and as many at the lowest priority that make patches and pack better, and rest while an\nimage is made ready. Each of the former takes up to 60MB of memory while it works, of the latter up to 150MB.",
        example: "1",
        set: |config, value| value.count(1, 64).map(|it| config.bundle.workers = it),
        show: |config| Some(config.bundle.workers.to_string()),
    },
    Key {
        section: "bundle",
        name: "cpu",
        doc: "Percent of one core that each of them takes at most, 1 to 100. Not bounded by it is an image that a request waits for.",
        example: "50",
        set: |config, value| value.count(1, 100).map(|it| config.bundle.cpu = it),
        show: |config| Some(config.bundle.cpu.to_string()),
    },
    Key {
        section: "bundle",
        name: "level",
        doc: "Level of zstd for packs, 1 to 19. An image is packed at level 3 first, which makes it ready, and at this level later.",
        example: "18",
        set: |config, value| value.count(1, 19).map(|it| config.bundle.level = it),
        show: |config| Some(config.bundle.level.to_string()),
    },
    Key {
        section: "bundle",
        name: "pairs",
        doc: "Older versions of a repository that patches to a new one are made from ahead of time; 0 is none.",
        example: "2",
        set: |config, value| value.count(0, 100).map(|it| config.bundle.pairs = it),
        show: |config| Some(config.bundle.pairs.to_string()),
    },
    Key {
        section: "bundle",
        name: "apart",
        doc: "Bytes that are decoded and compressed again for one update that no patches were made for, while its client waits; beyond\nit whole frames are sent. 256MiB are about a second of one core.",
        example: "\"256MiB\"",
        set: |config, value| value.bytes().map(|it| config.bundle.apart = it),
        show: |config| Some(quote(&exact_bytes(config.bundle.apart))),
    },
    Key {
        section: "bundle",
        name: "earlier",
        doc: "How long a bundle that was cut can be gone on with once the same question has another answer, and the packs that it is\nmade of stay.",
        example: "\"15m\"",
        set: |config, value| {
            value
                .duration(SECOND, 24 * HOUR)
                .map(|it| config.bundle.earlier = it)
        },
        show: |config| quote_duration(config.bundle.earlier),
    },
    Key {
        section: "bundle",
        name: "max_layer",
        doc: "A layer of more bytes, unpacked, is not indexed, and its images are not bundled.",
        example: "\"64GiB\"",
        set: |config, value| value.bytes().map(|it| config.bundle.max_layer = it),
        show: |config| Some(quote(&exact_bytes(config.bundle.max_layer))),
    },
    Key {
        section: "bundle",
        name: "max_ratio",
        doc: "Nor is a layer that unpacks to more than so many times its own bytes, beyond 64MiB.",
        example: "200",
        set: |config, value| {
            value
                .count(1, 1_000_000)
                .map(|it| config.bundle.max_ratio = it)
        },
        show: |config| Some(config.bundle.max_ratio.to_string()),
    },
];

/// Of packs and plans.
const MIN_SIZE: u64 = 64 << 20;
