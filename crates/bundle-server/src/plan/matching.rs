//! Lists the contents that a worker lacks, and finds the old version of each: by path, by name, or
//! by similar bytes.

use std::collections::{BTreeMap, HashMap};
use std::io;

use crate::Error;
use pierhead_bundle::patch::{Sampler, Sketch};
use pierhead_toc::Tree;
use pierhead_toc::{FileDigest, Source};

/// A file content that the worker (the client that rebuilds images) lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Number of the content in the TOC of the wanted image.
    pub(crate) content: u32,
    /// The position in the tree of the first file with this content; `None` for extras, which a
    /// worker needs only to rebuild layers.
    pub(crate) file: Option<usize>,
    /// Size of the content in bytes.
    pub(crate) size: u64,
    /// Number of the old version in the TOC of the base image.
    pub(crate) base: Option<u32>,
}

/// A function that planning calls with the number of bytes that it has read or compressed. The
/// function may sleep. If the function returns an error, the work ends.
pub(crate) type Pause<'a> = dyn FnMut(u64) -> Result<(), Error> + 'a;

/// Minimum size in bytes at which a content is read to find similar contents. Smaller contents
/// compress equally well together with the other contents of their group.
const MIN_SKETCHED: u64 = 2 << 10;

/// Minimum number of hashes that two contents have in common to count as similar. A share of 3 of
/// 24 hashes means about one eighth of the bytes.
const MIN_SHARED_HASHES: usize = 3;

/// Maximum bytes that are read of a content for its sketch (a set of hashes).
const MAX_SKETCHED_BYTES: u64 = 8 << 20;

/// Maximum number of removed contents with the same name. A name that is more frequent identifies
/// no content.
const MAX_NAMESAKES: usize = 64;

/// Maximum ratio of the sizes of two versions, unless their paths are equal.
const MAX_SIZE_RATIO: u64 = 8;

/// Returns the contents that `want` has and `base_image` lacks, in the path order of their first
/// file, with extras last. Each content has its old version, if path or name identify one. Empty
/// contents are never in the list.
pub(crate) fn missing(want: &Tree<'_>, base_image: &Tree<'_>) -> Vec<Missing> {
    let wanted = want.image().lacking(&[*base_image.image()]);
    let mut seen = vec![false; wanted.len()];
    let mut lacks = |number: u32| {
        let at = usize::try_from(number).ok()?;
        let first = !std::mem::replace(seen.get_mut(at)?, true);
        (first && *wanted.get(at)?).then(|| want.content(number))?
    };
    let removed = RemovedContents::new(base_image, &base_image.image().lacking(&[*want.image()]));
    let mut missing = Vec::new();
    for (at, number) in want.files() {
        if let Some((_, size)) = lacks(number) {
            let path = want.path(at);
            let usable = |number: &u32| {
                base_image
                    .content(*number)
                    .is_some_and(|(_, size)| size > 0)
            };
            missing.push(Missing {
                content: number,
                file: Some(at),
                size,
                base: base_image
                    .file(path)
                    .filter(usable)
                    .or_else(|| removed.namesake(path, size)),
            });
        }
    }
    for number in want.image().toc.visible()..want.image().contents {
        if let Some((_, size)) = lacks(number) {
            missing.push(Missing {
                content: number,
                file: None,
                size,
                base: None,
            });
        }
    }
    missing
}

/// Finds old versions by similarity, for missing contents whose path and name identify no old
/// version. Reads these contents and all removed contents once, at most [`MAX_SKETCHED_BYTES`] of
/// each.
pub(crate) fn match_similar(
    want: &Tree<'_>,
    base_image: &Tree<'_>,
    missing: &mut [Missing],
    source: &dyn Source,
    pause: &mut Pause<'_>,
) -> Result<(), Error> {
    if !missing.iter().any(needs_sketch) {
        return Ok(());
    }
    let removed = base_image.image().lacking(&[*want.image()]);
    let mut by_hash: HashMap<u64, Vec<u32>> = HashMap::new();
    for ((number, (content, size)), removed) in (0..)
        .zip(base_image.image().toc.contents().iter())
        .zip(removed)
    {
        if size >= MIN_SKETCHED && removed {
            for hash in sketch(content, size, source, pause)?.hashes() {
                by_hash.entry(hash).or_default().push(number);
            }
        }
    }
    for one in missing.iter_mut() {
        let Some((content, size)) = want.content(one.content) else {
            continue;
        };
        if !needs_sketch(one) {
            continue;
        }
        let mut shared: BTreeMap<u32, usize> = BTreeMap::new();
        for hash in sketch(content, size, source, pause)?.hashes() {
            for number in by_hash.get(&hash).into_iter().flatten().take(MAX_NAMESAKES) {
                *shared.entry(*number).or_default() += 1;
            }
        }
        one.base = shared
            .into_iter()
            .filter(|(_, count)| *count >= MIN_SHARED_HASHES)
            .max_by_key(|(number, count)| (*count, std::cmp::Reverse(*number)))
            .map(|(number, _)| number);
    }
    Ok(())
}

/// Returns the number of bytes that [`match_similar`] reads.
pub(crate) fn similar_work(want: &Tree<'_>, base_image: &Tree<'_>, missing: &[Missing]) -> u64 {
    let sketched = missing.iter().filter(|one| needs_sketch(one));
    let sketched: u64 = sketched.map(|one| one.size.min(MAX_SKETCHED_BYTES)).sum();
    if sketched == 0 {
        return 0;
    }
    let removed = base_image.image().lacking(&[*want.image()]);
    let sizes = base_image.image().toc.contents().iter().zip(removed);
    let removed = sizes.filter(|((_, size), removed)| *size >= MIN_SKETCHED && *removed);
    let removed = removed.map(|((_, size), _)| size.min(MAX_SKETCHED_BYTES));
    removed.fold(sketched, u64::saturating_add)
}

/// Whether the old version of a content must be searched by similarity: path and name identify
/// none, and the size of the content allows this search.
fn needs_sketch(one: &Missing) -> bool {
    one.base.is_none() && one.size >= MIN_SKETCHED
}

/// Reads a content, and computes its sketch (a set of hashes).
fn sketch(
    content: FileDigest,
    size: u64,
    source: &dyn Source,
    pause: &mut Pause<'_>,
) -> Result<Sketch, Error> {
    let mut sampler = Sampler::new(7);
    let mut sketch = Sketch::default();
    let part = 0..size.min(MAX_SKETCHED_BYTES);
    each_piece(source, content, part, pause, |piece| {
        sampler.feed(piece, |anchor| sketch.add(anchor));
    })?;
    Ok(sketch)
}

/// Reads a range of a content in pieces of 256 KiB.
pub(crate) fn each_piece(
    source: &dyn Source,
    content: FileDigest,
    range: std::ops::Range<u64>,
    pause: &mut Pause<'_>,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let mut piece = vec![0; 256 << 10];
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).map_or(piece.len(), |len| len.min(piece.len()));
        read(source, content, at, &mut piece[..len])?;
        each(&piece[..len]);
        pause(len as u64)?;
        at += len as u64;
    }
    Ok(())
}

/// Reads a range of a content. Turns `NotFound` into [`Error::Missing`].
pub(crate) fn read(
    source: &dyn Source,
    content: FileDigest,
    offset: u64,
    buf: &mut [u8],
) -> Result<(), Error> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Error::Missing(content.to_string()),
        _ => Error::io(format!("read {content}"), error),
    };
    source.read_at(&content, offset, buf).map_err(failed)
}

/// Contents of the old image that the new image lacks, by their names without version numbers.
struct RemovedContents<'a> {
    base_image: &'a Tree<'a>,
    by_path: HashMap<Vec<u8>, Vec<u32>>,
    by_name: HashMap<Vec<u8>, Vec<u32>>,
}

impl<'a> RemovedContents<'a> {
    /// Collects the removed contents. `removed` says for each content number of `base_image`
    /// whether the new image lacks it.
    fn new(base_image: &'a Tree<'a>, removed: &[bool]) -> Self {
        let mut contents = Self {
            base_image,
            by_path: HashMap::new(),
            by_name: HashMap::new(),
        };
        for (at, number) in base_image.files() {
            if usize::try_from(number).is_ok_and(|at| removed.get(at) == Some(&true)) {
                let path = versionless(base_image.path(at));
                let name = name(&path).to_vec();
                contents.by_name.entry(name).or_default().push(number);
                contents.by_path.entry(path).or_default().push(number);
            }
        }
        contents
    }

    /// Returns the removed content with the same path, or else with the same name; version numbers
    /// in path and name are ignored. If several contents match, returns the content with the
    /// nearest size.
    fn namesake(&self, path: &[u8], size: u64) -> Option<u32> {
        let path = versionless(path);
        let named = || self.by_name.get(name(&path));
        let near = |numbers: &Vec<u32>| self.nearest(numbers, size);
        self.by_path
            .get(&path)
            .and_then(near)
            .or_else(|| named().and_then(near))
    }

    fn nearest(&self, numbers: &[u32], size: u64) -> Option<u32> {
        let sized = |number: &u32| Some((*number, self.base_image.content(*number)?.1));
        let is_near = |(_, old): &(u32, u64)| {
            *old <= size.saturating_mul(MAX_SIZE_RATIO)
                && size <= old.saturating_mul(MAX_SIZE_RATIO)
        };
        if numbers.len() > MAX_NAMESAKES {
            return None;
        }
        numbers
            .iter()
            .filter_map(sized)
            .filter(is_near)
            .min_by_key(|(number, old)| (old.abs_diff(size), *number))
            .map(|(number, _)| number)
    }
}

/// Replaces each version number in a path (a run of digits and dots that has a digit) by one `0`.
/// So `libz.so.1.2.13` equals `libz.so.1.3`, and `flask-2.3.2.dist-info` equals
/// `flask-3.0.0.dist-info`. File names with hashes often stay different.
fn versionless(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        if !first.is_ascii_digit() {
            out.push(*first);
            rest = behind;
            continue;
        }
        let run = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'.')
            .unwrap_or(rest.len());
        // A dot before letters belongs to a file name extension, and not to a version number.
        let dots = rest[..run]
            .iter()
            .rev()
            .take_while(|byte| **byte == b'.')
            .count();
        out.push(b'0');
        rest = &rest[run - dots..];
    }
    out
}

fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_versions_and_keep_their_extensions() {
        let pairs: [(&str, &str); 6] = [
            ("lib/libz.so.1.2.13", "lib/libz.so.0"),
            ("lib/libz.so.1.3", "lib/libz.so.0"),
            (
                "a/flask-2.3.2.dist-info/RECORD",
                "a/flask-0.dist-info/RECORD",
            ),
            ("python3.11/os.py", "python0/os.py"),
            ("jar/kafka_2.13-3.6.1.jar", "jar/kafka_0-0.jar"),
            ("etc/passwd", "etc/passwd"),
        ];
        for (path, expected) in pairs {
            assert_eq!(versionless(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }
}
