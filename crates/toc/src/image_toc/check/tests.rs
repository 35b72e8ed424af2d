//! Unit tests of the checks: each check refuses a TOC that violates only this check, and names the
//! violation.

use crate::image_toc::LayerEntries;
use crate::image_toc::layout::{DIGEST, Layout};
use crate::{Entry, Kind};

use super::*;

/// A TOC, taken apart into its head and its sections.
#[derive(Clone)]
struct Parts {
    head: Layout,
    attributes: Vec<u8>,
    names: Vec<u8>,
    sizes: Vec<u8>,
    layers: Vec<u8>,
    digests: Vec<u8>,
    nodes: Vec<u8>,
}

impl Parts {
    fn of(toc: &ImageToc) -> Self {
        let (head, bytes) = (toc.layout, &*toc.bytes);
        Self {
            head,
            attributes: head.attributes(bytes).to_vec(),
            names: head.names(bytes).to_vec(),
            nodes: head.nodes(bytes).to_vec(),
            sizes: head.sizes(bytes).to_vec(),
            layers: head.layers(bytes).to_vec(),
            digests: head.digests(bytes).to_vec(),
        }
    }

    /// Puts the TOC together again, with the new lengths of the sections, and parses it.
    fn parse(mut self) -> Result<ImageToc, Error> {
        let sections = [
            &self.attributes,
            &self.names,
            &self.nodes,
            &self.sizes,
            &self.layers,
        ];
        self.head.lengths = sections.map(|it| u32::try_from(it.len()).expect("a short section"));
        let mut bytes = self.head.write();
        sections.iter().for_each(|it| bytes.extend_from_slice(it));
        bytes.extend_from_slice(&self.digests);
        ImageToc::parse(bytes)
    }

    /// Changes the mode in the attributes of the symbolic link, whose first byte is 0xff.
    fn set_mode_of_symlink(&mut self, mode: u16) {
        let mut modes = self.attributes.iter_mut();
        let low = modes.find(|byte| **byte == 0xff).expect("a symbolic link");
        *low = 0x80 | mode.to_le_bytes()[0];
    }
}

/// Two layers. The upper layer hides a file of the lower layer. The contents are, by number: `new`,
/// the lower skeleton, `old`, the upper skeleton.
fn sample() -> Parts {
    let entry = |path: &str, mode, kind| Entry {
        path: path.into(),
        mode,
        kind,
        uid: 0,
        gid: 0,
        modified: Time::default(),
        xattrs: Vec::new(),
    };
    let file = |text: &str| (FileDigest::of(text.as_bytes()), text.len() as u64);
    let layer = |nth: u8, text: &str| {
        let (content, size) = file(text);
        let target = b"a".to_vec();
        LayerEntries {
            diff_id: FileDigest::of(&[nth]).into(),
            skeleton: (FileDigest::of(&[nth, nth]), 7),
            files: [Ok((content, size))],
            entries: [
                Ok(entry("a", 0o644, Kind::File { content, size })),
                Ok(entry("s", 0o777, Kind::Symlink { target })),
            ],
        }
    };
    Parts::of(&ImageToc::merge([layer(0, "old"), layer(1, "new")]).expect("two layers"))
}

/// Number of bytes of the diff ID of a layer, before the number of its skeleton, the number of its
/// files, and the first of its files.
const DIFF_ID: usize = DIGEST;

/// The reason of a refusal, and the change that causes it.
type Case = (&'static str, fn(&mut Parts));

#[test]
fn each_violation_is_refused_with_its_reason() {
    assert!(sample().parse().is_ok());
    let cases: [Case; 15] = [
        ("the first entry is not the root", |it| it.names[0] = 1),
        ("a mode of more than 12 bits", |it| it.attributes[1] = 0x7f),
        ("bytes after the end", |it| it.head.attribute_count -= 1),
        ("duplicate attributes", |it| it.set_mode_of_symlink(0o644)),
        ("a symbolic link with a mode", |it| {
            it.set_mode_of_symlink(0o776);
        }),
        ("an entry of an unknown kind", |it| it.nodes[0] |= 0x80),
        ("a content with a wrong size", |it| it.sizes[0] = 0),
        ("duplicate contents", |it| {
            it.digests.copy_within(..DIGEST, 2 * DIGEST);
        }),
        ("unused contents", |it| {
            it.head.contents += 1;
            it.sizes.push(5);
            it.digests.extend([5; DIGEST]);
        }),
        ("more contents than the head says", |it| it.head.visible = 0),
        ("contents out of order", |it| it.layers[DIFF_ID] = 3),
        ("skeleton is out of range", |it| it.layers[DIFF_ID] = 4),
        ("a content number out of range", |it| {
            it.layers[DIFF_ID + 2] = 8;
        }),
        ("1 bytes after the end", |it| it.layers.push(0)),
        ("layers that are not counted", |it| it.head.layer_count = 0),
    ];
    for (reason, change) in cases {
        let mut parts = sample();
        change(&mut parts);
        let error = parts.parse().expect_err(reason);
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
}
