//! The check behind `/readyz`: a small read from the data folder, on the threads that read blobs
//! for clients.

#![expect(
    clippy::disallowed_types,
    reason = "concurrent probes wait for the holder of the lock, which awaits the read"
)]

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit of the disk read that `/readyz` makes, below 1 s, the default timeout of Kubernetes
/// probes.
const READ_TIMEOUT: Duration = Duration::from_millis(900);

/// Alignment and size in bytes of a read with `O_DIRECT`. No common disk has larger blocks.
const BLOCK_BYTES: usize = 4096;

/// The readiness check. Concurrent probes share one read, even if this read hangs.
pub(super) struct Readiness {
    file: PathBuf,
    timeout: Duration,
    running: Arc<Mutex<Option<JoinHandle<io::Result<()>>>>>,
}

impl Readiness {
    /// Creates a readiness check that reads from this data folder.
    pub(super) fn new(data: &Path) -> Self {
        Self {
            file: data.join("version"),
            timeout: READ_TIMEOUT,
            running: Arc::default(),
        }
    }

    /// Checks whether this process can serve its cache. Returns the reason if it cannot. Takes at
    /// most [`READ_TIMEOUT`].
    pub(super) async fn check(&self) -> Result<(), String> {
        let probe = async {
            let mut running = self.running.lock().await;
            let read = running.get_or_insert_with(|| {
                let file = self.file.clone();
                tokio::task::spawn_blocking(move || read_directly(&file))
            });
            let ended = read.await;
            *running = None;
            ended
        };
        let (file, limit) = (self.file.display(), self.timeout);
        match timeout(limit, probe).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(format!("the data folder cannot be read: {file}: {error}")),
            Ok(Err(error)) => Err(format!("the read of {file} was aborted: {error}")),
            Err(_) => Err(format!(
                "a read from the disk did not end within {limit:?}: the disk or all reading threads hang"
            )),
        }
    }
}

/// Reads one block of a file from the disk. Bypasses the page cache where the file system supports
/// this (`O_DIRECT`).
fn read_directly(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut buffer = vec![0; 2 * BLOCK_BYTES];
    let start = buffer.as_ptr().align_offset(BLOCK_BYTES);
    let block = buffer
        .get_mut(start..)
        .and_then(|rest| rest.get_mut(..BLOCK_BYTES))
        .ok_or(io::ErrorKind::OutOfMemory)?;
    let direct = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty());
    let direct = direct.map(|file| File::from(file).read(block));
    match direct {
        Ok(Ok(_)) => Ok(()),
        // The file system supports no direct reads, like some file systems in memory or on the
        // network.
        Ok(Err(_)) | Err(rustix::io::Errno::INVAL) => {
            let file = rustix::fs::open(path, flags, Mode::empty())?;
            File::from(file).read(block).map(drop)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn readiness(folder: &tempfile::TempDir, timeout: Duration) -> Readiness {
        std::fs::write(folder.path().join("version"), "1\n").expect("written");
        Readiness {
            timeout,
            ..Readiness::new(folder.path())
        }
    }

    #[test]
    fn the_check_fails_while_all_reading_threads_are_busy() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let impatient = readiness(&folder, Duration::from_millis(50));
            assert_eq!(
                readiness(&folder, Duration::from_secs(60)).check().await,
                Ok(())
            );
            let (free, wait) = mpsc::channel::<()>();
            let taken = tokio::task::spawn_blocking(move || wait.recv());
            for _ in 0..3 {
                let why = impatient.check().await.expect_err("no thread");
                assert!(why.contains("did not end"), "{why}");
            }
            assert!(
                impatient.running.lock().await.is_some(),
                "the first read still waits"
            );
            drop(free);
            let _ = taken.await.expect("it ends");
            let patient = Readiness {
                timeout: Duration::from_secs(60),
                ..impatient
            };
            assert_eq!(patient.check().await, Ok(()));
        });
    }

    #[tokio::test]
    async fn the_check_fails_if_the_data_folder_is_unreadable() {
        let folder = tempfile::tempdir().expect("a folder");
        let readiness = readiness(&folder, Duration::from_secs(60));
        assert_eq!(readiness.check().await, Ok(()));
        std::fs::remove_file(folder.path().join("version")).expect("removed");
        let why = readiness.check().await.expect_err("no file");
        assert!(why.contains("cannot be read"), "{why}");
    }
}
