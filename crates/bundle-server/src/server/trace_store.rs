//! Stores the traces of images: the orders in which container starts opened files, as clients
//! reported these orders. Each image has one file, which contains one order per client.
//!
//! The orders are not in the image database (sled), because an order has up to 1 MiB, and clients
//! may send orders often. sled stores such a large value in a separate file, and does not delete
//! that file when the value is replaced.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use pierhead_atomic_file::open_regular;
use pierhead_host::ClientKey;
use pierhead_oci::Digest;
use serde::{Deserialize, Serialize};

use super::paths::{Paths, remove};
use crate::Error;
use crate::clock;
use pierhead_bundle::api::MAX_DOCUMENT;
use pierhead_toc::FileDigest;

/// The name of the format of trace files, for error messages.
const FORMAT_NAME: &str = "trace";

/// Maximum number of clients whose order the server stores for one image. Each client has one vote:
/// its order. At the maximum, the vote of a new client replaces the oldest vote.
const MAX_CLIENTS: usize = 16;
/// Maximum age of a vote (the order of one client). An upload of a trace removes older votes of
/// other clients for the image.
const MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// What the server did with the trace of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedTrace {
    /// Number of distinct entries of the trace that are regular files of the image. If this number
    /// is 0, nothing was recorded.
    pub matched: usize,
    /// Number of clients with a recorded order for the image.
    pub clients: usize,
    /// Whether the trace has changed the merged order of the image.
    pub is_new: bool,
}

/// The orders that clients sent for one image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Votes {
    /// All paths that the votes name, without duplicates.
    paths: Vec<String>,
    votes: Vec<Vote>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Vote {
    /// Number that identifies the client.
    client: u64,
    /// Time of the upload, in seconds since 1970.
    at: u64,
    /// The opened files as indexes into [`Votes::paths`], in the order in which each file was first
    /// opened.
    files: Vec<u32>,
}

impl Votes {
    fn files<'a>(&'a self, vote: &'a Vote) -> impl Iterator<Item = &'a String> {
        let path = |at: &u32| self.paths.get(usize::try_from(*at).ok()?);
        vote.files.iter().filter_map(path)
    }

    /// Returns the merged order of all votes. Files are sorted by the number of clients that opened
    /// the file, and then by average position. So a single client never delays files that two other
    /// clients opened.
    fn merged(&self) -> Vec<String> {
        let mut seen: HashMap<&String, (usize, usize)> = HashMap::new();
        for vote in &self.votes {
            for (position, path) in self.files(vote).enumerate() {
                let (count, sum) = seen.entry(path).or_default();
                *count += 1;
                *sum += position;
            }
        }
        let mut order: Vec<_> = seen.into_iter().collect();
        order.sort_unstable_by(|(a, (a_count, a_sum)), (b, (b_count, b_sum))| {
            let by_position = || (a_sum * b_count).cmp(&(b_sum * a_count));
            let by_count = b_count.cmp(a_count);
            by_count.then_with(by_position).then_with(|| a.cmp(b))
        });
        order.into_iter().map(|(path, _)| path.clone()).collect()
    }

    /// Replaces the vote of a client, and removes expired votes.
    fn put(&mut self, client: u64, now: u64, order: Vec<String>) {
        let mut orders: Vec<(u64, u64, Vec<String>)> = self
            .votes
            .iter()
            .filter(|vote| vote.client != client)
            .filter(|vote| now.saturating_sub(vote.at) <= MAX_AGE.as_secs())
            .map(|vote| (vote.client, vote.at, self.files(vote).cloned().collect()))
            .collect();
        orders.sort_by_key(|(_, at, _)| std::cmp::Reverse(*at));
        orders.truncate(MAX_CLIENTS - 1);
        orders.insert(0, (client, now, order));
        *self = Self::default();
        let (mut numbers, mut bytes) = (HashMap::new(), 0);
        for (client, at, order) in orders {
            let before = self.paths.len();
            let mut files = Vec::with_capacity(order.len());
            for path in order {
                bytes += 4;
                if !numbers.contains_key(&path) {
                    bytes += path.len() + 4;
                    let number = u32::try_from(self.paths.len()).unwrap_or(u32::MAX);
                    numbers.insert(path.clone(), number);
                    self.paths.push(path.clone());
                }
                files.extend(numbers.get(&path));
            }
            // Keeps the newest votes that fit into the file. One vote always fits, since an order
            // is smaller than the limit of a request body.
            if bytes > MAX_BYTES - 64 * MAX_CLIENTS && !self.votes.is_empty() {
                self.paths.truncate(before);
                break;
            }
            self.votes.push(Vote { client, at, files });
        }
    }
}

/// Maximum size of the file of one image: enough for four orders of maximum length without common
/// files, or 16 orders of usual length.
const MAX_BYTES: usize = 4 * MAX_DOCUMENT;

/// The files of traces, one for each image.
pub(super) struct TraceStore {
    paths: Paths,
    /// The lock for an update, which reads, changes and writes a file.
    update: Mutex<()>,
}

impl TraceStore {
    pub(super) fn new(paths: Paths) -> Self {
        Self {
            paths,
            update: Mutex::default(),
        }
    }

    /// Whether the server has a trace of the image.
    pub(super) fn has(&self, image: &Digest) -> bool {
        self.paths.trace(image).exists()
    }

    /// Returns the merged order of the image. Returns `None` when the image has no trace, and also
    /// when the file of its traces cannot be read. Deletes a damaged file.
    ///
    /// # Errors
    /// `Io` when file descriptors or memory are used up. With `None` in place of this error, the
    /// server would store a plan without this order.
    pub(super) fn merged(&self, image: &Digest) -> Result<Option<Vec<String>>, Error> {
        match self.votes(image) {
            // Any other error of the file system means that the image has no usable trace.
            Err(error @ Error::Io { .. }) if !error.is_exhausted() => {
                tracing::debug!(%error, %image, "a trace cannot be read");
                Ok(None)
            }
            votes => Ok(votes?.map(|votes| votes.merged())),
        }
    }

    /// Returns the number of clients that sent an order for the image.
    pub(super) fn clients(&self, image: &Digest) -> Result<u32, Error> {
        let votes = self.votes(image)?.map_or(0, |votes| votes.votes.len());
        Ok(u32::try_from(votes).unwrap_or(u32::MAX))
    }

    fn votes(&self, image: &Digest) -> Result<Option<Votes>, Error> {
        let path = self.paths.trace(image);
        match read(&path) {
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, %image, "a recorded trace is damaged; pierhead deletes it");
                remove(&path);
                Ok(None)
            }
            found => found,
        }
    }

    /// Records an order as the vote of the client that sent it. `files` are regular files of the
    /// image, without duplicates.
    pub(super) fn record(
        &self,
        client: ClientKey,
        image: &Digest,
        files: Vec<String>,
    ) -> Result<RecordedTrace, Error> {
        let matched = files.len();
        // Only one upload runs at a time, so that concurrent uploads do not overwrite each other's
        // votes.
        let _update = self.update.lock();
        let mut votes = self.votes(image)?.unwrap_or_default();
        let before = votes.merged();
        if matched > 0 {
            votes.put(id(client), clock::unix_seconds(), files);
            write(&self.paths.trace(image), &votes)?;
        }
        Ok(RecordedTrace {
            matched,
            clients: votes.votes.len(),
            // If a vote does not change the merged order, the image needs no new bundle plans.
            is_new: votes.merged() != before,
        })
    }
}

/// Returns the number that identifies a client in the file. The number is the same after a restart,
/// since the file outlives the process.
fn id(client: ClientKey) -> u64 {
    let hash = FileDigest::of(format!("{client:?}").as_bytes());
    let bytes = hash.as_bytes().first_chunk();
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn write(path: &Path, votes: &Votes) -> Result<(), Error> {
    let failed = |error| Error::io("write a trace", io::Error::other(error));
    let bytes = postcard::to_stdvec(votes).map_err(failed)?;
    let written = pierhead_atomic_file::Options::new().write_with(path, |file| {
        file.write_all(&crc32c::crc32c(&bytes).to_le_bytes())?;
        file.write_all(&bytes)
    });
    written.map_err(|error| Error::io(format!("write {}", path.display()), error))
}

fn read(path: &Path) -> Result<Option<Votes>, Error> {
    let wrong = |why: &str| Error::malformed(FORMAT_NAME, why);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => wrong("another kind of file is in its place"),
        _ => Error::io(format!("read {}", path.display()), error),
    };
    let file = match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() > MAX_BYTES {
        return Err(wrong("it is too long"));
    }
    let (sum, bytes) = bytes
        .split_first_chunk()
        .ok_or_else(|| wrong("it ends too early"))?;
    if crc32c::crc32c(bytes).to_le_bytes() != *sum {
        return Err(wrong("its checksum does not match"));
    }
    postcard::from_bytes(bytes)
        .map(Some)
        .map_err(|_| wrong("it cannot be decoded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    fn merged(votes: &Votes) -> String {
        votes.merged().concat()
    }

    #[test]
    fn each_client_has_one_vote() {
        let mut votes = Votes::default();
        votes.put(1, 0, order("abcd"));
        assert_eq!(merged(&votes), "abcd");
        votes.put(2, 1, order("abcd"));
        // A client that uploads its order repeatedly never outvotes two clients whose orders agree.
        for now in 2..20 {
            votes.put(3, now, order("xyda"));
        }
        assert_eq!(merged(&votes), "adbcxy");
        assert_eq!(votes.votes.len(), 3);
        votes.put(3, 20, order("abcd"));
        assert_eq!(merged(&votes), "abcd");
    }

    #[test]
    fn expired_votes_and_votes_beyond_the_maximum_are_removed() {
        let mut votes = Votes::default();
        for client in 0..100 {
            votes.put(client, client, order("ab"));
        }
        assert_eq!(votes.votes.len(), MAX_CLIENTS);
        assert!(votes.votes.iter().all(|vote| vote.client >= 84));
        votes.put(7, 200 + MAX_AGE.as_secs(), order("ba"));
        assert_eq!((merged(&votes), votes.votes.len()), ("ba".into(), 1));
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("trace");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        // Opening the pipe must not wait for a writer.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(read(&pipe).map(drop)));
        let read = receiver.recv_timeout(Duration::from_secs(10));
        let read = read.expect("no wait for a writer");
        assert!(matches!(read, Err(Error::Malformed { .. })), "{read:?}");
    }

    #[test]
    fn the_file_of_an_image_is_bounded() {
        let mut votes = Votes::default();
        for client in 0..20 {
            let long = |nth| format!("{client}/{nth}/{}", "x".repeat(1000));
            votes.put(client, client, (0..900).map(long).collect());
        }
        let len = postcard::to_stdvec(&votes).unwrap().len();
        assert!(len + 4 <= MAX_BYTES, "{len}");
        assert!(votes.votes.len() > 1 && votes.votes[0].client == 19);
    }
}
