//! Reads the two documents of an image, its manifest and its config, from the cache.

use std::io;

use pierhead_oci::{Body, Digest, Manifest, MediaType};
use serde::Deserialize;

use crate::Error;
use crate::plan::Start;
use pierhead_toc::Blobs;

/// Maximum size of a config in bytes. The header of a bundle contains the config.
const MAX_CONFIG: u64 = 4 << 20;

/// The manifest and the config of one image.
pub(super) struct Documents {
    pub(super) media_type: MediaType,
    pub(super) manifest: Vec<u8>,
    pub(super) config_digest: Digest,
    pub(super) config: Vec<u8>,
    pub(super) layers: Vec<Layer>,
    /// What a container start of the image runs.
    pub(super) start: Start,
}

/// One layer, as the manifest and the config describe it.
pub(super) struct Layer {
    pub(super) blob: Digest,
    pub(super) media_type: String,
    pub(super) diff_id: Digest,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
    #[serde(default)]
    config: Option<Run>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Run {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
}

impl Run {
    /// Returns the arguments, the environment and the working folder of a container start.
    fn start(self) -> Start {
        let arguments = [self.entrypoint, self.cmd].into_iter().flatten().flatten();
        let environment = self.env.into_iter().flatten();
        Start {
            arguments: arguments.map(String::into_bytes).collect(),
            environment: environment.map(String::into_bytes).collect(),
            folder: self.working_dir.unwrap_or_default().into_bytes(),
        }
    }
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

impl Documents {
    /// Reads manifest and config from the cache.
    pub(super) fn read(blobs: &dyn Blobs, manifest: &Digest) -> Result<Self, Error> {
        let bytes = all(blobs, manifest, Manifest::MAX_SIZE as u64)?;
        let refused = |why: &str| Error::Image(why.to_owned());
        let parsed = Manifest::parse(bytes.clone().into(), None);
        let parsed = parsed.map_err(|error| Error::Image(error.to_string()))?;
        let Body::Image { config, layers, .. } = &parsed.body else {
            return Err(refused("its manifest is an index"));
        };
        let config_bytes = all(blobs, &config.digest, MAX_CONFIG)?;
        let read: Config = serde_json::from_slice(&config_bytes)
            .map_err(|_| refused("its config has no rootfs, so it is no container image"))?;
        if read.rootfs.diff_ids.len() != layers.len() {
            return Err(refused(
                "manifest and config differ in the number of layers",
            ));
        }
        let layers = layers.iter().zip(read.rootfs.diff_ids);
        let layers = layers.map(|(layer, diff_id)| {
            let media_type = layer.media_type.as_str();
            if media_type.contains(".nondistributable.") || media_type.contains(".foreign.") {
                return Err(refused("it has a non-distributable layer"));
            }
            Ok(Layer {
                blob: layer.digest,
                media_type: media_type.to_owned(),
                diff_id,
            })
        });
        Ok(Self {
            start: read.config.unwrap_or_default().start(),
            config_digest: config.digest,
            layers: layers.collect::<Result<_, _>>()?,
            media_type: parsed.media_type,
            manifest: bytes,
            config: config_bytes,
        })
    }

    /// Returns the digests of the config and of the layers, in this order.
    pub(super) fn blobs(&self) -> Vec<Digest> {
        let layers = self.layers.iter().map(|layer| layer.blob);
        std::iter::once(self.config_digest).chain(layers).collect()
    }
}

/// Reads a whole blob. If the blob has more than `most` bytes, returns an error.
fn all(blobs: &dyn Blobs, digest: &Digest, most: u64) -> Result<Vec<u8>, Error> {
    let failed = |error: io::Error| match error.kind() {
        // The blob was damaged, and the cache has deleted it.
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            Error::Missing(digest.to_string())
        }
        _ => Error::io(format!("read {digest}"), error),
    };
    let blob = blobs.open(digest).map_err(failed)?;
    let blob = blob.ok_or_else(|| Error::Missing(digest.to_string()))?;
    if blob.size() > most {
        return Err(Error::Image(format!(
            "{digest} is longer than {most} bytes"
        )));
    }
    let mut bytes = vec![0; usize::try_from(blob.size()).unwrap_or(0)];
    blob.read_at(0, &mut bytes).map_err(failed)?;
    Ok(bytes)
}
