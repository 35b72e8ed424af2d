//! Keys of `[eviction]` and `[trace]`.

use pierhead_eviction::Named;
use pierhead_eviction::admission::NamedAdmission;
use pierhead_oci::units::exact_bytes;

use super::{Key, quote, quote_path};
use crate::config::Config;
use crate::config::nearest::nearest;

pub(super) static KEYS: &[Key<Config>] = &[
    Key {
        section: "eviction",
        name: "policy",
        doc: "What leaves first when room is needed; docs/eviction.md compares them. A change feeds the new one all blobs\nin the order of their last use.",
        example: "\"size-split\"",
        set: |config, value| {
            let known = Named::ALL.iter().map(|named| named.name());
            let name = one_of(value.text()?, "eviction policy", known)?;
            config.eviction.policy = name.parse().map_err(|error| format!("{error}"))?;
            Ok(())
        },
        show: |config| Some(quote(config.eviction.policy.name())),
    },
    Key {
        section: "eviction",
        name: "admission",
        doc: "What of that which comes is kept: \"always\" all, \"second-hit\" what was asked for before, \"size-aware\" the\nlarger the less likely, \"tinylfu\" what was asked for often lately. Blobs up to 64KiB, manifests, and what is pinned or\nwarmed is kept in any case.",
        example: "\"always\"",
        set: |config, value| {
            let known = NamedAdmission::ALL.iter().map(|named| named.name());
            let name = one_of(value.text()?, "admission", known)?;
            config.eviction.admission = name.parse().map_err(|error| format!("{error}"))?;
            Ok(())
        },
        show: |config| Some(quote(config.eviction.admission.name())),
    },
    Key {
        section: "eviction",
        name: "max_written_per_day",
        doc: "Most bytes written to the disk from midnight to midnight (UTC), for flash that wears out; 0 is no limit. Counted\nare blobs, manifests and all that is made for bundles: packs, better packs, indexes, tables, plans and patches; not the\ncatalogue, the directory of packs, tags, ranks and traces. A blob beyond it is passed on and not stored, an image not\nbundled before the next day; blobs up to 64KiB, manifests and bundles that a worker asks for may take a sixteenth more.\nThe count is saved every five minutes and at a clean stop: a crash or `kill -9` forgets what came since.",
        example: "\"0\"",
        set: |config, value| {
            value
                .bytes()
                .map(|it| config.eviction.max_written_per_day = it)
        },
        show: |config| Some(quote(&exact_bytes(config.eviction.max_written_per_day))),
    },
    Key {
        section: "trace",
        name: "file",
        doc: "Where to, or \"off\". A line is a time, a hash of the digest with a secret of this data folder, size, cost and\noutcome: no names, no clients (docs/formats/trace.md). At 32MiB it becomes FILE.1, and a new one begins.",
        example: "\"/var/lib/pierhead/pulls.trace\"",
        set: |config, value| value.optional_path().map(|it| config.trace.file = it),
        show: |config| config.trace.file.as_deref().map(quote_path),
    },
];

/// `name` if it is known, else what there is to choose from.
fn one_of<'a>(
    name: &'a str,
    what: &str,
    known: impl Iterator<Item = &'static str> + Clone,
) -> Result<&'a str, String> {
    if known.clone().any(|it| it == name) {
        return Ok(name);
    }
    let hint = match nearest(name, known.clone().map(str::to_owned)) {
        Some(near) => format!(" (did you mean {near:?}?)"),
        None => String::new(),
    };
    let known: Vec<_> = known.map(|it| format!("{it:?}")).collect();
    Err(format!(
        "{name:?} is no {what}{hint}: write {}",
        known.join(", ")
    ))
}
