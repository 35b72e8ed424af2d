//! Checks a TOC (table of contents) from an untrusted source, beyond the checks that a walk over
//! its entries makes.

use crate::{Error, FileDigest, Time};

use super::format::FORMAT_NAME;
use super::layout::widen;
use super::{ImageToc, Node};

#[cfg(test)]
mod tests;

/// Checks the hard links of a TOC, and that every section is in canonical form.
pub(super) fn check(toc: &ImageToc) -> Result<(), Error> {
    check_rows(toc)?;
    check_layers(toc)?;
    check_contents(toc)
}

/// Checks that entries are in canonical form, and that hard links agree with their targets.
fn check_rows(toc: &ImageToc) -> Result<(), Error> {
    let wrong = |why: &str| Err(Error::malformed(FORMAT_NAME, why));
    if toc.attribute_sets().has_twice() {
        return wrong("duplicate attributes");
    }
    /// The attribute number and the time of an entry, which must equal the values of all hard links
    /// to the entry. `None` for an entry that can have only one name.
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
                    return wrong("a hard link that does not agree with its target");
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

/// Checks the order of the contents that are needed only to rebuild layers: they must be numbered
/// by their first use in the layers. In each layer, the skeleton (the tar without file contents)
/// comes first, and then the files.
fn check_layers(toc: &ImageToc) -> Result<(), Error> {
    let mut next = toc.visible();
    for layer in toc.layers() {
        let layer = layer?;
        for number in std::iter::once(layer.skeleton).chain(layer.files) {
            if number > next {
                return Err(Error::malformed(FORMAT_NAME, "contents out of order"));
            }
            if number == next {
                next += 1;
            }
        }
    }
    if toc.layout.layer_count == 0 && !toc.layout.layers(&toc.bytes).is_empty() {
        return Err(Error::malformed(FORMAT_NAME, "layers that are not counted"));
    }
    if next == toc.contents().len() {
        Ok(())
    } else {
        Err(Error::malformed(FORMAT_NAME, "unused contents"))
    }
}

/// Checks that no content has two numbers, and that only the empty content has size 0.
fn check_contents(toc: &ImageToc) -> Result<(), Error> {
    let contents = toc.contents();
    let empty = FileDigest::of(b"");
    if contents
        .iter()
        .any(|(content, size)| (size == 0) != (content == empty))
    {
        return Err(Error::malformed(FORMAT_NAME, "a content with a wrong size"));
    }
    let mut last = None;
    for number in toc.by_digest().iter() {
        let content = contents.content(number);
        if content == last {
            return Err(Error::malformed(FORMAT_NAME, "duplicate contents"));
        }
        last = content;
    }
    Ok(())
}
