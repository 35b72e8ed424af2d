//! Determines the media type of a manifest from the fields of the manifest. If the fields do not
//! state the type, the `Content-Type` of the response decides.

use bytes::Bytes;
use pierhead_oci::{Manifest, MediaType};
use serde::Deserialize;

use crate::error::Error;

/// The fields of a manifest that determine its type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    schema_version: Option<u32>,
    media_type: Option<String>,
}

/// Returns the media type of a manifest. The first of these sources that exists decides:
///
/// 1. The `mediaType` field of the manifest.
/// 2. The `Content-Type` of the response, if the fields of the manifest fit it.
///
/// Thus each digest has one type, and no registry can change the type of content of another
/// registry.
///
/// # Errors
/// The document is not a manifest: its fields do not fit its type, or it has neither `mediaType`
/// nor `schemaVersion`.
pub(crate) fn manifest_media_type(bytes: &Bytes, sent: MediaType) -> Result<MediaType, Error> {
    let refused = |why: String| Error::Document(format!("not a manifest: {why}"));
    // The first character is checked, because serde accepts a JSON array in place of an object.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(refused("not a JSON object".into()));
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| {
        // The message is truncated, because it may quote the document.
        refused(error.to_string().chars().take(200).collect())
    })?;
    let own = match head.media_type.as_deref() {
        None | Some("") => None,
        Some(text) => {
            Some(MediaType::new(text).ok_or_else(|| refused("its mediaType is malformed".into()))?)
        }
    };
    let has_type_field = own.is_some() || head.schema_version.is_some();
    let media_type = own.unwrap_or(sent);
    let is_known = media_type.is_manifest() || media_type.is_index();
    let parsed = Manifest::parse(bytes.clone(), is_known.then(|| media_type.as_str()));
    match parsed {
        Ok(manifest) if head.media_type.is_none_or(|own| own.is_empty()) => Ok(manifest.media_type),
        Ok(_) => Ok(media_type),
        Err(error) if is_known => Err(refused(error.to_string())),
        // The document is a manifest of another kind, such as schema 1 or an artifact manifest.
        Err(_) if has_type_field => Ok(media_type),
        Err(_) => Err(refused("neither a mediaType nor a schemaVersion".into())),
    }
}
