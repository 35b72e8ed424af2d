//! Pages of a stored tag list, as ranges of its bytes: a list of megabytes is never whole in memory.
//!
//! The client crate writes such a list (`{"name":"…","tags":["…","…"]}`, sorted, without a space), so a
//! page of it is a run of its bytes between two others.

use bytes::Bytes;

use crate::error::Error;
use crate::pull::document::Document;

/// What stands before the first tag of a stored list, behind the name.
const TAGS: &[u8] = br#""tags":["#;
/// A repository's name, and what stands around it.
const MAX_START: usize = 512;
/// Longer is no tag.
const MAX_TAG: usize = 256;
/// Bytes that are looked at together.
const BLOCK: usize = 128 << 10;

/// A run of the stored list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageRange {
    /// Its first byte, and the one behind its last.
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// The last tag in it, when there are more behind it.
    pub(crate) next_after: Option<String>,
}

fn broken() -> Error {
    Error::Document("the stored tag list is not as it was written".into())
}

/// The tags behind `last`, at most `n` of them. Reads what stands before them, a block at a time.
pub(crate) async fn find_page(
    document: &Document,
    n: Option<u32>,
    last: Option<&str>,
) -> Result<PageRange, Error> {
    let size = document.size();
    let start = document.part(0, MAX_START).await?;
    let found = start.windows(TAGS.len()).position(|it| it == TAGS);
    let start = found.ok_or_else(broken)? + TAGS.len();
    let (start, close) = (as_u64(start), size.saturating_sub(2));
    if &document.part(close, 2).await?[..] != b"]}" || close < start {
        return Err(broken());
    }
    let all = PageRange {
        first: start,
        end: close,
        next_after: None,
    };
    if n.is_none() && last.is_none() {
        return Ok(all);
    }
    let mut scan = TagScan {
        last: last.map(str::as_bytes),
        left: n.unwrap_or(u32::MAX),
        first: None,
        end: start,
        tag: Vec::with_capacity(MAX_TAG),
        inside: false,
        opened: start,
    };
    let mut at = start;
    while at < close {
        let block = document.part(at, BLOCK).await?;
        let within = usize::try_from(close - at).unwrap_or(usize::MAX);
        let block = &block[..within.min(block.len())];
        if block.is_empty() {
            return Err(broken());
        }
        if scan.take(block, at)? {
            let last = String::from_utf8(scan.tag).map_err(|_| broken())?;
            return Ok(PageRange {
                first: scan.first.unwrap_or(start),
                end: scan.end,
                next_after: Some(last),
            });
        }
        at += as_u64(block.len());
    }
    let first = scan.first.unwrap_or(close);
    let end = if scan.first.is_some() {
        scan.end
    } else {
        close
    };
    Ok(PageRange {
        first,
        end,
        next_after: None,
    })
}

/// Where a look through the tags is.
struct TagScan<'a> {
    last: Option<&'a [u8]>,
    /// Tags that the page may still have.
    left: u32,
    /// Where the page begins.
    first: Option<u64>,
    /// Behind the last tag of the page.
    end: u64,
    /// The tag that is being read; the last one of the page once it is full.
    tag: Vec<u8>,
    inside: bool,
    /// Where that tag's quote stands.
    opened: u64,
}

impl TagScan<'_> {
    /// Looks at the bytes from `at`; whether there is a tag behind a full page.
    fn take(&mut self, block: &[u8], at: u64) -> Result<bool, Error> {
        for (offset, byte) in block.iter().enumerate() {
            match byte {
                b'"' if self.inside => {
                    self.inside = false;
                    let is_of_page = self.last.is_none_or(|last| &*self.tag > last);
                    if is_of_page && self.left > 0 {
                        self.first.get_or_insert(self.opened);
                        self.end = at + as_u64(offset) + 1;
                        self.left -= 1;
                    }
                }
                b'"' => {
                    if self.left == 0 && self.first.is_some() {
                        return Ok(true);
                    }
                    self.inside = true;
                    self.opened = at + as_u64(offset);
                    self.tag.clear();
                }
                b'\\' => return Err(broken()),
                byte if self.inside => {
                    if self.tag.len() == MAX_TAG {
                        return Err(broken());
                    }
                    self.tag.push(*byte);
                }
                _ => {}
            }
        }
        Ok(false)
    }
}

/// The run itself, between what stands before and behind it, when that is at most `limit` bytes.
pub(crate) async fn read(
    document: &Document,
    range: &PageRange,
    [before, behind]: [&[u8]; 2],
) -> Result<Bytes, Error> {
    let length = usize::try_from(range.end - range.first).unwrap_or(usize::MAX);
    let mut page = Vec::with_capacity(before.len() + length + behind.len());
    page.extend_from_slice(before);
    let mut at = range.first;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let part = document.part(at, left.min(BLOCK)).await?;
        if part.is_empty() {
            return Err(broken());
        }
        page.extend_from_slice(&part);
        at += as_u64(part.len());
    }
    page.extend_from_slice(behind);
    Ok(page.into())
}

fn as_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
