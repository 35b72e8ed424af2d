//! Gives the bundle server read access to the blobs of the cache. The bundle server's reads do not
//! count as accesses for eviction.

use std::io;
use std::sync::Arc;

use pierhead_cache::{BackgroundReader, Cache, Error};
use pierhead_oci::Digest;
use pierhead_toc::{Blob, Blobs};

/// Reads the blobs of one cache for the bundle server.
pub(crate) struct CacheBlobs(pub(crate) Cache);

struct CacheBlob(BackgroundReader);

impl Blobs for CacheBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let failed = |error| match &error {
            // The error keeps its system error code: the bundle server tells by the code whether
            // file descriptors are lacking or a file is damaged.
            Error::Io { source, .. } if let Some(code) = source.raw_os_error() => {
                io::Error::from_raw_os_error(code)
            }
            _ => io::Error::other(error),
        };
        let handle = self.0.open_for_background(digest).map_err(failed)?;
        Ok(handle.map(|handle| Arc::new(CacheBlob(handle)) as Arc<dyn Blob>))
    }
}

impl Blob for CacheBlob {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pierhead_cache::Config;
    use pierhead_oci::{Algorithm, MediaType};

    use super::*;

    #[tokio::test]
    async fn an_error_of_the_system_keeps_its_code() {
        let data = tempfile::tempdir().unwrap();
        let config = Config::new(data.path(), 1 << 20);
        let cache = Cache::open(config, Box::new(pierhead_eviction::Lru::default())).unwrap();
        // The content of the test is larger than the blobs that the cache keeps in memory.
        let content = Bytes::from(vec![7; 100_000]);
        let digest = Digest::of(Algorithm::Sha256, &content);
        let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
        drop(cache.put(&digest, &media_type, content).await.unwrap());
        let blobs = CacheBlobs(cache);
        assert!(blobs.open(&digest).unwrap().is_some());
        let file = blob_file(data.path(), &digest.to_string()[7..]).expect("a file");
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let failed = blobs.open(&digest).map(|it| it.is_some()).unwrap_err();
        let code = rustix::io::Errno::LOOP.raw_os_error();
        assert_eq!(failed.raw_os_error(), Some(code), "{failed}");
    }

    fn blob_file(folder: &std::path::Path, hex: &str) -> Option<std::path::PathBuf> {
        let mut paths = std::fs::read_dir(folder)
            .ok()?
            .flatten()
            .map(|it| it.path());
        paths.find_map(|path| match path.is_dir() {
            true => blob_file(&path, hex),
            false => path.to_string_lossy().contains(hex).then_some(path),
        })
    }
}
