//! Keys of `[tier]`.

use pierhead_cache::staging::Weights;
use pierhead_oci::units::exact_bytes;

use super::{Key, quote, quote_path};
use crate::config::{Config, TierKind};

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "tier",
        name: "kind",
        doc: "\"off\"; \"pmem\": a file on a DAX file system, refused where that is no persistent memory; \"file\": a file\nanywhere, on a small fast disk or in memory.",
        example: "\"off\"",
        set: |config, value| {
            config.tier.kind = match value.text()? {
                "off" => TierKind::Off,
                "pmem" => TierKind::Pmem,
                "file" => TierKind::File,
                other => {
                    return Err(format!(
                        "{other:?} is no kind of tier: write \"off\", \"pmem\" or \"file\""
                    ));
                }
            };
            Ok(())
        },
        show: |config| Some(quote(config.tier.kind.as_str())),
    },
    Key {
        section: "tier",
        name: "path",
        doc: "The file; made when it is missing. One process at a time. What is in it is lost when it is deleted, which is no\nharm but to what the disk did not have yet.",
        example: "\"/mnt/pmem0/pierhead.tier\"",
        set: |config, value| value.optional_path().map(|it| config.tier.path = it),
        show: |config| config.tier.path.as_deref().map(quote_path),
    },
    Key {
        section: "tier",
        name: "size",
        doc: "Bytes of the file, from 32MiB on. One that was made with another size is refused: delete it first.",
        example: "\"1GiB\"",
        set: |config, value| match value.bytes()? {
            bytes if bytes < MIN_SIZE => Err("at least 32MiB".to_owned()),
            bytes => {
                config.tier.size = bytes;
                Ok(())
            }
        },
        show: |config| Some(quote(&exact_bytes(config.tier.size))),
    },
    Key {
        section: "tier",
        name: "limit",
        doc: "Most bytes of blobs in it; 0 is as many as fit. `pierhead cache tier set-limit` changes it while running.",
        example: "\"0\"",
        set: |config, value| value.bytes().map(|it| config.tier.limit = it),
        show: |config| Some(quote(&exact_bytes(config.tier.limit))),
    },
    Key {
        section: "tier",
        name: "follow_pressure",
        doc: "Whether the limit shrinks while this machine is short of memory and comes back afterwards (docs/staging.md): for a tier\nthat lies in memory.",
        example: "false",
        set: |config, value| value.boolean().map(|it| config.tier.follow_pressure = it),
        show: |config| Some(config.tier.follow_pressure.to_string()),
    },
    Key {
        section: "tier",
        name: "rules",
        doc: "What goes there and what stays: names of rules with their weights (docs/staging.md). A rule that is not named\ncounts for nothing.",
        example: "\"layer-aware=1 hot-files=1 value=1\"",
        set: |config, value| parse_rules(value.text()?).map(|it| config.tier.rules = it),
        show: |config| Some(quote(&show_rules(&config.tier.rules))),
    },
    Key {
        section: "tier",
        name: "drain",
        doc: "Bytes a second that are copied to the disk behind, or \"off\": as fast as it takes them.",
        example: "\"off\"",
        set: |config, value| value.rate().map(|it| config.tier.drain = it),
        show: |config| {
            Some(config.tier.drain.map_or_else(
                || quote("off"),
                |it| quote(&format!("{}/s", exact_bytes(it))),
            ))
        },
    },
];

/// A log needs some segments.
const MIN_SIZE: u64 = 32 << 20;

/// The weight of each rule, by its name.
fn named(weights: &mut Weights) -> [(&'static str, &mut f64); 4] {
    [
        ("layer-aware", &mut weights.layer_aware),
        ("hot-files", &mut weights.hot_files),
        ("value", &mut weights.value),
        ("sharing-runs", &mut weights.sharing_runs),
    ]
}

fn parse_rules(text: &str) -> Result<Weights, String> {
    let mut weights = Weights::NONE;
    for rule in text.split_whitespace() {
        let (name, weight) = rule.split_once('=').unwrap_or((rule, "1"));
        let weight: f64 = match weight.parse() {
            Ok(weight) if (0.0..=1e6).contains(&weight) => weight,
            _ => return Err(format!("{weight:?} is no weight: write 0 to 1000000")),
        };
        let known = named(&mut weights);
        match known.into_iter().find(|(known, _)| *known == name) {
            Some((_, of)) => *of = weight,
            None => {
                return Err(format!(
                    "{name:?} is no rule: write layer-aware, hot-files, value, sharing-runs"
                ));
            }
        }
    }
    if weights == Weights::NONE {
        return Err("no rule has a weight: with kind = \"off\" there is no tier".to_owned());
    }
    Ok(weights)
}

fn show_rules(weights: &Weights) -> String {
    let mut weights = *weights;
    let rules = named(&mut weights).map(|(name, weight)| (name, *weight));
    let rules = rules.into_iter().filter(|(_, weight)| *weight > 0.0);
    let shown: Vec<_> = rules
        .map(|(name, weight)| format!("{name}={weight}"))
        .collect();
    shown.join(" ")
}
