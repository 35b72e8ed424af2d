//! Which old content each missing one is most likely a new version of.

use std::collections::{BTreeMap, HashMap};
use std::io;

use pierhead_bundle::patch::{Sampler, Sketch};
use pierhead_toc::Tree;
use pierhead_toc::{Error, FileDigest, Source};

/// A content that the worker lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Number in the wanted table.
    pub(crate) content: u32,
    /// The first file that has it, by its position in the tree; `None` for extras.
    pub(crate) file: Option<usize>,
    /// Bytes.
    pub(crate) size: u64,
    /// Number of the old content in the table that the worker has.
    pub(crate) base: Option<u32>,
}

/// Is told the bytes that were read or compressed; its error ends the work.
pub(crate) type Pause<'a> = dyn FnMut(u64) -> Result<(), Error> + 'a;

/// Contents below this are not worth reading to find what they are like: their group's neighbours do as well.
const SKETCHED_FROM: u64 = 2 << 10;

/// Hashes that two contents must share to be called similar: 3 of 24 is about one eighth of their bytes.
const SHARED: usize = 3;

/// Bytes that are read of a content to sketch it.
const SKETCHED_BYTES: u64 = 8 << 20;

/// A name may stand for so many gone contents; then it tells nothing.
const NAMESAKES: usize = 64;

/// An old version is at most so many times larger or smaller, unless the path is the same.
const SIZE_RATIO: u64 = 8;

/// What `have` lacks of `want`, in path order of the first file, extras last; with the old versions that paths and names tell.
/// Empty contents are never missing.
pub(crate) fn missing(want: &Tree<'_>, have: &Tree<'_>) -> Vec<Missing> {
    let wanted = want.image().lacking(&[*have.image()]);
    let mut seen = vec![false; wanted.len()];
    let mut lacks = |number: u32| {
        let at = usize::try_from(number).ok()?;
        let first = !std::mem::replace(seen.get_mut(at)?, true);
        (first && *wanted.get(at)?).then(|| want.content(number))?
    };
    let gone = Gone::new(have, &have.image().lacking(&[*want.image()]));
    let mut missing = Vec::new();
    for (at, number) in want.files() {
        if let Some((_, size)) = lacks(number) {
            let path = want.path(at);
            let usable = |number: &u32| have.content(*number).is_some_and(|(_, size)| size > 0);
            missing.push(Missing {
                content: number,
                file: Some(at),
                size,
                base: have
                    .file(path)
                    .filter(usable)
                    .or_else(|| gone.namesake(path, size)),
            });
        }
    }
    for number in want.image().table.visible()..want.image().contents {
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

/// Finds old versions by content for those that have none. Reads them, and all contents that are gone: once each,
/// at most [`SKETCHED_BYTES`] of each.
pub(crate) fn match_similar(
    want: &Tree<'_>,
    have: &Tree<'_>,
    missing: &mut [Missing],
    source: &dyn Source,
    pause: &mut Pause<'_>,
) -> Result<(), Error> {
    if !missing.iter().any(is_strange) {
        return Ok(());
    }
    let gone = have.image().lacking(&[*want.image()]);
    let mut by_hash: HashMap<u64, Vec<u32>> = HashMap::new();
    for ((number, (content, size)), gone) in
        (0..).zip(have.image().table.contents().iter()).zip(gone)
    {
        if size >= SKETCHED_FROM && gone {
            for hash in sketch(content, size, source, pause)?.hashes() {
                by_hash.entry(hash).or_default().push(number);
            }
        }
    }
    for one in missing.iter_mut() {
        let Some((content, size)) = want.content(one.content) else {
            continue;
        };
        if !is_strange(one) {
            continue;
        }
        let mut shared: BTreeMap<u32, usize> = BTreeMap::new();
        for hash in sketch(content, size, source, pause)?.hashes() {
            for number in by_hash.get(&hash).into_iter().flatten().take(NAMESAKES) {
                *shared.entry(*number).or_default() += 1;
            }
        }
        one.base = shared
            .into_iter()
            .filter(|(_, count)| *count >= SHARED)
            .max_by_key(|(number, count)| (*count, std::cmp::Reverse(*number)))
            .map(|(number, _)| number);
    }
    Ok(())
}

/// Bytes that [`match_similar`] reads.
pub(crate) fn similar_work(want: &Tree<'_>, have: &Tree<'_>, missing: &[Missing]) -> u64 {
    let strange = missing.iter().filter(|one| is_strange(one));
    let strange: u64 = strange.map(|one| one.size.min(SKETCHED_BYTES)).sum();
    if strange == 0 {
        return 0;
    }
    let gone = have.image().lacking(&[*want.image()]);
    let sizes = have.image().table.contents().iter().zip(gone);
    let gone = sizes.filter(|((_, size), gone)| *size >= SKETCHED_FROM && *gone);
    let gone = gone.map(|((_, size), _)| size.min(SKETCHED_BYTES));
    gone.fold(strange, u64::saturating_add)
}

/// Whether no name told an old version, and reading it may.
fn is_strange(one: &Missing) -> bool {
    one.base.is_none() && one.size >= SKETCHED_FROM
}

fn sketch(
    content: FileDigest,
    size: u64,
    source: &dyn Source,
    pause: &mut Pause<'_>,
) -> Result<Sketch, Error> {
    let mut sampler = Sampler::new(7);
    let mut sketch = Sketch::default();
    let part = 0..size.min(SKETCHED_BYTES);
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

/// Reads, and says what is missing by its name.
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

/// Contents of the old image that the new one no longer has, by their names without versions.
struct Gone<'a> {
    have: &'a Tree<'a>,
    by_path: HashMap<Vec<u8>, Vec<u32>>,
    by_name: HashMap<Vec<u8>, Vec<u32>>,
}

impl<'a> Gone<'a> {
    /// `gone` tells of each number of `have` whether it is.
    fn new(have: &'a Tree<'a>, gone: &[bool]) -> Self {
        let mut these = Self {
            have,
            by_path: HashMap::new(),
            by_name: HashMap::new(),
        };
        for (at, number) in have.files() {
            if usize::try_from(number).is_ok_and(|at| gone.get(at) == Some(&true)) {
                let path = versionless(have.path(at));
                let name = name(&path).to_vec();
                these.by_name.entry(name).or_default().push(number);
                these.by_path.entry(path).or_default().push(number);
            }
        }
        these
    }

    /// The same path but for versions, else the same name but for versions; the nearest in size.
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
        let sized = |number: &u32| Some((*number, self.have.content(*number)?.1));
        let alike = |(_, old): &(u32, u64)| {
            *old <= size.saturating_mul(SIZE_RATIO) && size <= old.saturating_mul(SIZE_RATIO)
        };
        if numbers.len() > NAMESAKES {
            return None;
        }
        numbers
            .iter()
            .filter_map(sized)
            .filter(alike)
            .min_by_key(|(number, old)| (old.abs_diff(size), *number))
            .map(|(number, _)| number)
    }
}

/// Every run of digits and dots that has a digit becomes one `0`: `libz.so.1.2.13` and `libz.so.1.3` are the same,
/// as are `flask-2.3.2.dist-info` and `flask-3.0.0.dist-info`, and hashed names of bundlers often are not.
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
        // A dot before letters is an extension's.
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
    fn versions_are_left_out_of_names_and_extensions_are_not() {
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
