//! The configuration keys of `[tier]`, as rows of the key table.

use pierhead_oci::units::exact_bytes;

use super::key::{Key, Reload, quote, quote_path, quote_rate};
use crate::config::kind::Kind;
use crate::config::{Config, TierKind};
use pierhead_cache::Placement;

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "tier",
        name: "kind",
        help: "\"pmem\" is a file on a DAX file system, which must be persistent memory. \"file\" \
               is any other file, such as on a small fast disk or in memory (tmpfs).",
        kind: Kind::Choice {
            noun: "kind of tier",
            names: || TierKind::ALL.iter().map(|kind| kind.as_str()).collect(),
        },
        example: "\"off\"",
        reload: Reload::Restart(|new, old| new.tier.kind = old.tier.kind),
        set: |config, value| {
            let name = value.choice()?;
            let kind = TierKind::ALL.into_iter().find(|kind| kind.as_str() == name);
            config.tier.kind = kind.unwrap_or(TierKind::Off);
            Ok(())
        },
        show: |config| Some(quote(config.tier.kind.as_str())),
    },
    Key {
        section: "tier",
        name: "path",
        help: "The file of the tier; pierhead creates it. Only one process can use the file at a \
               time. If you delete the file, you lose only blobs that pierhead had not yet \
               written back to the disk.",
        kind: Kind::PathOrOff,
        example: "\"/mnt/pmem0/pierhead.tier\"",
        reload: Reload::Restart(|new, old| new.tier.path.clone_from(&old.tier.path)),
        set: |config, value| value.optional_path().map(|it| config.tier.path = it),
        show: |config| config.tier.path.as_deref().map(quote_path),
    },
    Key {
        section: "tier",
        name: "size",
        help: "Size of the file. An existing file of another size is an error: delete it first. \
               `pierhead cache tier set-limit` limits the part in use.",
        kind: Kind::Bytes {
            min: 32 << 20,
            max: None,
        },
        example: "\"1GiB\"",
        reload: Reload::Restart(|new, old| new.tier.size = old.tier.size),
        set: |config, value| value.bytes().map(|it| config.tier.size = it),
        show: |config| Some(quote(&exact_bytes(config.tier.size))),
    },
    Key {
        section: "tier",
        name: "placement",
        help: "The rule that selects blobs for the tier: \"value\" selects those with the highest \
               value per byte, \"layer-aware\" also those for which an image waits, \
               \"sharing-runs\" those that most images and most container starts (runs) share \
               (docs/explanation/tiering.md). Keep the default unless a benchmark of your images \
               shows that another rule is faster.",
        kind: Kind::Choice {
            noun: "placement",
            names: || Placement::ALL.iter().map(|it| it.as_str()).collect(),
        },
        example: "\"sharing-runs\"",
        reload: Reload::Restart(|new, old| new.tier.placement = old.tier.placement),
        set: |config, value| {
            config.tier.placement = value.choice()?.parse().unwrap_or_default();
            Ok(())
        },
        show: |config| Some(quote(config.tier.placement.as_str())),
    },
    Key {
        section: "tier",
        name: "write_back_rate",
        help: "Maximum rate of the write-back from the tier to the disk, in bytes per second; \
               \"off\" is no limit. Set this key if the writes slow down reads from the disk.",
        kind: Kind::Rate,
        example: "\"off\"",
        reload: Reload::Restart(|new, old| new.tier.write_back_rate = old.tier.write_back_rate),
        set: |config, value| value.rate().map(|it| config.tier.write_back_rate = it),
        show: |config| quote_rate(config.tier.write_back_rate),
    },
];
