//! The checks of a TOC from an untrusted source: everything that one walk does not see.

use crate::{Error, FileDigest, Time};

use super::format::WHAT;
use super::layout::widen;
use super::{ImageToc, Node};

/// Checks links to links, and that every part is in its one canonical form.
pub(super) fn check(toc: &ImageToc) -> Result<(), Error> {
    check_rows(toc)?;
    check_layers(toc)?;
    check_contents(toc)
}

/// Walks once: the form is the canonical one, and links name what can have several names, with its attributes.
fn check_rows(toc: &ImageToc) -> Result<(), Error> {
    let wrong = |why: &str| Err(Error::malformed(WHAT, why));
    if toc.numbered().has_twice() {
        return wrong("attributes that stand in it twice");
    }
    /// What a link must agree with, attributes by number; `None` of what may have one name only.
    type Linked = Option<(u32, Time)>;
    let mut seen: Vec<Linked> = Vec::with_capacity(widen(toc.entries()));
    let mut rows = toc.rows();
    while let Some(row) = rows.next()? {
        let (node, modified, mode) = (row.node, row.modified, row.attributes.mode);
        let this = Some((rows.number, modified));
        match node {
            Node::Directory => seen.push(None),
            Node::HardLink(to) => {
                let linked = seen.get(widen(to)).copied().flatten();
                if linked.is_none() || linked != this {
                    return wrong("a link that does not agree with what it names");
                }
                seen.push(None);
            }
            Node::Symlink(_) if mode != 0o777 => {
                return wrong("a symbolic link with a mode");
            }
            _ => seen.push(this),
        }
    }
    Ok(())
}

/// Contents that are not visible are numbered by first use in the layers: the skeleton, then the files.
fn check_layers(toc: &ImageToc) -> Result<(), Error> {
    let mut next = toc.visible();
    for layer in toc.layers() {
        let layer = layer?;
        for number in std::iter::once(layer.skeleton).chain(layer.files) {
            if number > next {
                return Err(Error::malformed(WHAT, "contents out of order"));
            }
            if number == next {
                next += 1;
            }
        }
    }
    if toc.layout.layer_count == 0 && !toc.layout.layers(&toc.bytes).is_empty() {
        return Err(Error::malformed(WHAT, "layers that are not counted"));
    }
    if next == toc.contents().len() {
        Ok(())
    } else {
        Err(Error::malformed(WHAT, "contents that nobody uses"))
    }
}

/// No content has two numbers, and nothing but the empty one is empty.
fn check_contents(toc: &ImageToc) -> Result<(), Error> {
    let contents = toc.contents();
    let empty = FileDigest::of(b"");
    if contents
        .iter()
        .any(|(content, size)| (size == 0) != (content == empty))
    {
        return Err(Error::malformed(WHAT, "a content of another size"));
    }
    let mut last = None;
    for number in toc.by_digest().iter() {
        let content = contents.content(number);
        if content == last {
            return Err(Error::malformed(WHAT, "a content that stands in it twice"));
        }
        last = content;
    }
    Ok(())
}
