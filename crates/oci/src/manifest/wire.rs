//! Parses the JSON form of manifests and indexes. The parser enforces limits of size and number
//! while it reads.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::Manifest;
use crate::{Descriptor, MediaType, Platform};

/// Maximum number of quote characters in a manifest. Each string has two quote characters, so this
/// limits the number of strings. The limit is needed, because each string uses more memory than its
/// own bytes. A manifest with 4,096 entries that have a dozen annotations each is below the limit.
const MAX_QUOTES: usize = 1 << 18;

/// The fields of manifests and indexes. The parser skips all other fields without storing them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    schema_version: u32,
    pub(super) media_type: Option<String>,
    #[serde(default, deserialize_with = "one")]
    pub(super) config: Option<Descriptor>,
    #[serde(default, deserialize_with = "many")]
    pub(super) layers: Option<Vec<Descriptor>>,
    #[serde(default, deserialize_with = "many")]
    pub(super) manifests: Option<Vec<Descriptor>>,
    #[serde(default, deserialize_with = "one")]
    pub(super) subject: Option<Descriptor>,
}

impl Document {
    /// Parses a document. `serde_json` limits the nesting to 128 levels.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > Manifest::MAX_SIZE {
            return Err(format!(
                "{} bytes, more than {}",
                bytes.len(),
                Manifest::MAX_SIZE
            ));
        }
        if bytes.iter().filter(|byte| **byte == b'"').count() > MAX_QUOTES {
            return Err("too many strings in it".into());
        }
        // The error message may quote the document, so its length is limited.
        let document: Self = serde_json::from_slice(bytes)
            .map_err(|e| e.to_string().chars().take(200).collect::<String>())?;
        if document.schema_version != 2 {
            return Err(format!(
                "schema version {}, only 2 is supported",
                document.schema_version
            ));
        }
        Ok(document)
    }
}

/// Converts a descriptor of `oci-spec` into a [`Descriptor`].
fn convert(wire: oci_spec::image::Descriptor) -> Result<Descriptor, String> {
    if wire.size() > Manifest::MAX_BLOB {
        return Err(format!(
            "a descriptor claims {} bytes, more than {}",
            wire.size(),
            Manifest::MAX_BLOB
        ));
    }
    let platform = wire.platform().as_ref().map(|platform| Platform {
        os: platform.os().to_string(),
        architecture: platform.architecture().to_string(),
        variant: platform
            .variant()
            .clone()
            .filter(|variant| !variant.is_empty()),
    });
    Ok(Descriptor {
        media_type: MediaType::new(wire.media_type().as_ref())
            .ok_or("a descriptor's media type is malformed")?,
        digest: wire
            .digest()
            .as_ref()
            .parse()
            .map_err(|e| format!("in a descriptor: {e}"))?,
        size: wire.size(),
        platform,
    })
}

fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Descriptor>, D::Error> {
    let wire = Option::<oci_spec::image::Descriptor>::deserialize(deserializer)?;
    wire.map(|wire| convert(wire).map_err(de::Error::custom))
        .transpose()
}

/// Parses a list. `null` counts as absent, because some tools write `null` for an empty list.
fn many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Descriptor>>, D::Error> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Option<Vec<Descriptor>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of descriptors")
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(wire) = sequence.next_element()? {
                if entries.len() == Manifest::MAX_ENTRIES {
                    return Err(de::Error::custom(format!(
                        "over {} entries",
                        Manifest::MAX_ENTRIES
                    )));
                }
                entries.push(convert(wire).map_err(de::Error::custom)?);
            }
            Ok(Some(entries))
        }
    }

    deserializer.deserialize_any(Entries)
}
