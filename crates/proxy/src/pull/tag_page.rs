//! Finds a page of a stored tag list as a range of its bytes, so that a list of megabytes is never
//! completely in memory.
//!
//! The registry client writes a tag list as `{"name":"…","tags":["…","…"]}`, sorted and without
//! spaces. Thus a page of tags is a contiguous range of bytes.

use bytes::Bytes;

use crate::error::Error;
use crate::pull::document::Document;

/// The bytes between the name of a stored list and its first tag.
const TAGS: &[u8] = br#""tags":["#;
/// Maximum bytes of a stored tag list before its first tag: the name of the repository and its
/// punctuation.
const MAX_LIST_START: usize = 512;
/// Maximum bytes of a tag.
const MAX_TAG: usize = 256;
/// Bytes of a stored tag list that are read and searched in one step.
const BLOCK_BYTES: usize = 128 << 10;

/// A page of a tag list as a range of bytes of the stored list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageRange {
    /// Offset of the first byte of the page.
    pub(crate) first: u64,
    /// Offset after the last byte of the page.
    pub(crate) end: u64,
    /// The last tag of the page, if a further page exists.
    pub(crate) next_after: Option<String>,
}

fn malformed() -> Error {
    Error::Document("the stored tag list is malformed".into())
}

/// Finds the page of at most `n` tags after the tag `last`. Reads the list from its start to the
/// end of the page, in blocks.
pub(crate) async fn find_page(
    document: &Document,
    n: Option<u32>,
    last: Option<&str>,
) -> Result<PageRange, Error> {
    let size = document.size();
    let start = document.part(0, MAX_LIST_START).await?;
    let found = start.windows(TAGS.len()).position(|it| it == TAGS);
    let start = found.ok_or_else(malformed)? + TAGS.len();
    let (start, close) = (as_u64(start), size.saturating_sub(2));
    if &document.part(close, 2).await?[..] != b"]}" || close < start {
        return Err(malformed());
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
        is_inside: false,
        opened: start,
    };
    let mut at = start;
    while at < close {
        let block = document.part(at, BLOCK_BYTES).await?;
        let within = usize::try_from(close - at).unwrap_or(usize::MAX);
        let block = &block[..within.min(block.len())];
        if block.is_empty() {
            return Err(malformed());
        }
        if scan.scan(block, at)? {
            let last = String::from_utf8(scan.tag).map_err(|_| malformed())?;
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

/// The state of the search through the tags of a list.
struct TagScan<'a> {
    last: Option<&'a [u8]>,
    /// Number of tags that still fit on the page.
    left: u32,
    /// Offset of the first tag of the page.
    first: Option<u64>,
    /// Offset after the last tag of the page.
    end: u64,
    /// The tag that is being scanned. Once the page is full: the last tag of the page.
    tag: Vec<u8>,
    is_inside: bool,
    /// Offset of the opening quotation mark of the current tag.
    opened: u64,
}

impl TagScan<'_> {
    /// Scans the bytes of `block`, which starts at offset `at`. Returns whether a further tag
    /// follows the full page.
    fn scan(&mut self, block: &[u8], at: u64) -> Result<bool, Error> {
        for (offset, byte) in block.iter().enumerate() {
            match byte {
                b'"' if self.is_inside => {
                    self.is_inside = false;
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
                    self.is_inside = true;
                    self.opened = at + as_u64(offset);
                    self.tag.clear();
                }
                b'\\' => return Err(malformed()),
                byte if self.is_inside => {
                    if self.tag.len() == MAX_TAG {
                        return Err(malformed());
                    }
                    self.tag.push(*byte);
                }
                _ => {}
            }
        }
        Ok(false)
    }
}

/// In a test, reads a page with `before` and `after` around it.
pub(crate) async fn read(
    document: &Document,
    range: &PageRange,
    [before, after]: [&[u8]; 2],
) -> Result<Bytes, Error> {
    let length = usize::try_from(range.end - range.first).unwrap_or(usize::MAX);
    let mut page = Vec::with_capacity(before.len() + length + after.len());
    page.extend_from_slice(before);
    let mut at = range.first;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let part = document.part(at, left.min(BLOCK_BYTES)).await?;
        if part.is_empty() {
            return Err(malformed());
        }
        page.extend_from_slice(&part);
        at += as_u64(part.len());
    }
    page.extend_from_slice(after);
    Ok(page.into())
}

fn as_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
