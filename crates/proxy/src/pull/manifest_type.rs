//! The media type of a manifest, from its own fields.

use bytes::Bytes;
use pierhead_oci::{Manifest, MediaType};
use serde::Deserialize;

use crate::error::Error;

/// The fields of a manifest that tell what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    schema_version: Option<u32>,
    media_type: Option<String>,
}

/// Of which media type a manifest is: what it says itself, whoever sent it; only when it says nothing, what its
/// sender said and its form bears out. One digest has one type then, and no registry can give the content of
/// another a type of its choice.
///
/// # Errors
/// It is no manifest: not of the form that its type asks for, or nothing about it says that it is one.
pub(crate) fn manifest_media_type(bytes: &Bytes, sent: MediaType) -> Result<MediaType, Error> {
    let refused = |why: String| Error::Document(format!("what came as a manifest is none: {why}"));
    // A struct could be read from a list, too.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(refused("it is no JSON object".into()));
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| {
        // It can quote the document.
        refused(error.to_string().chars().take(200).collect())
    })?;
    let own = match head.media_type.as_deref() {
        None | Some("") => None,
        Some(text) => {
            Some(MediaType::new(text).ok_or_else(|| refused("its mediaType is malformed".into()))?)
        }
    };
    let says_so = own.is_some() || head.schema_version.is_some();
    let media_type = own.unwrap_or(sent);
    let is_known = media_type.is_manifest() || media_type.is_index();
    let parsed = Manifest::parse(bytes.clone(), is_known.then(|| media_type.as_str()));
    match parsed {
        Ok(manifest) if head.media_type.is_none_or(|own| own.is_empty()) => Ok(manifest.media_type),
        Ok(_) => Ok(media_type),
        Err(error) if is_known => Err(refused(error.to_string())),
        // Of another kind: schema 1, an artifact manifest.
        Err(_) if says_so => Ok(media_type),
        Err(_) => Err(refused("neither a mediaType nor a schemaVersion".into())),
    }
}
