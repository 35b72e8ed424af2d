//! Fixtures for the tests of planning: two versions of a random image, and a receiver that applies
//! frames (groups of compressed contents) without using code of the planner.

use std::collections::HashMap;

use fastrand::Rng;
use pierhead_bundle::format::{Frames, Sizes};
use pierhead_bundle::patch::Coded;
use pierhead_bundle::{Coding, Frame, MAX_BASE, MAX_FRAME};
use pierhead_testkit::source::MemorySource;
use pierhead_toc::TocView;
use pierhead_toc::image_toc::LayerEntries;
use pierhead_toc::{Entry, Error, FileDigest, ImageToc, Kind, Time};
use zstd::zstd_safe::DCtx;

pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// Returns the TOC of an image of one layer with these files.
pub(crate) fn toc(files: &Files, source: &mut MemorySource) -> ImageToc {
    let mut files = files.clone();
    files.sort();
    files.dedup_by(|one, other| one.0 == other.0);
    let entries = files.into_iter().map(|(path, bytes)| {
        let size = bytes.len() as u64;
        Ok::<_, Error>(Entry {
            path: path.into_bytes(),
            kind: Kind::File {
                content: source.add(bytes),
                size,
            },
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: Time::default(),
            xattrs: Vec::new(),
        })
    });
    let entries: Vec<_> = entries.collect();
    let files: Vec<_> = entries.iter().filter_map(file).collect();
    let skeleton = b"skeleton".to_vec();
    ImageToc::merge([LayerEntries {
        diff_id: FileDigest::of(b"diff").into(),
        files: files.into_iter(),
        skeleton: (source.add(skeleton), 8),
        entries: entries.into_iter(),
    }])
    .expect("a sound image")
}

fn file(entry: &Result<Entry, Error>) -> Option<Result<(FileDigest, u64), Error>> {
    match entry.as_ref().map(|entry| &entry.kind) {
        Ok(Kind::File { content, size }) => Some(Ok((*content, *size))),
        _ => None,
    }
}

/// Returns text over a small alphabet: compressible, and different for each file.
pub(crate) fn text(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        let word = rng.u32(..5000);
        bytes.extend_from_slice(format!("{word:x} ").as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the next version of a file: a few overwritten bytes and one insertion.
pub(crate) fn edited(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.usize(1..8) {
        if !bytes.is_empty() {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
    }
    let at = rng.usize(..=bytes.len());
    let new = text(rng, 40);
    bytes.splice(at..at, new);
    bytes
}

/// Returns an image and its next version. Between the two, some files stay, change, move, get
/// another version number in their name, are added or are removed.
pub(crate) fn versions(rng: &mut Rng) -> (Files, Files) {
    let (mut old, mut new) = (Files::new(), Files::new());
    for nth in 0..rng.usize(1..40) {
        let len = match rng.u8(..10) {
            0 => 0,
            1..=6 => rng.usize(1..3000),
            7 | 8 => rng.usize(1..40_000),
            _ => rng.usize(1..300_000),
        };
        let folder = rng.u8(..5);
        let bytes = text(rng, len);
        let path = format!("d{folder}/f{nth}.txt");
        let change = edited(rng, &bytes);
        match rng.u8(..6) {
            0 => old.push((path, bytes)),
            1 => new.push((path, bytes)),
            2 => {
                old.push((path.clone(), bytes.clone()));
                new.push((path, bytes));
            }
            3 => {
                old.push((path, bytes));
                new.push((format!("moved/x{nth}"), change));
            }
            4 => {
                old.push((format!("lib/l{nth}.so.1.{folder}"), bytes));
                new.push((format!("lib/l{nth}.so.2.0.{folder}"), change));
            }
            _ => {
                old.push((path.clone(), bytes));
                new.push((path, change));
            }
        }
    }
    (old, new)
}

struct TocSizes<'a>(TocView<'a>, &'a [TocView<'a>]);

impl Sizes for TocSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        Some(self.0.content(content)?.1)
    }

    fn base(&self, base_image: u16, content: u32) -> Option<u64> {
        Some(self.1.get(usize::from(base_image))?.content(content)?.1)
    }
}

/// Encodes and applies the frames of a plan, and verifies the digest of every wanted content.
pub(crate) fn apply(
    want: TocView<'_>,
    base_images: &[TocView<'_>],
    frames: &[(Frame, Option<Coded>)],
    source: &MemorySource,
) {
    let sizes = TocSizes(want, base_images);
    let list =
        Frames::encode(frames.iter().map(|(frame, _)| frame), &sizes).expect("of the format");
    list.check(&sizes).expect("of the format, read again");
    let mut made: HashMap<FileDigest, Vec<u8>> = HashMap::new();
    for (frame, coded) in frames {
        let len: u64 = frame.members.iter().map(|member| member.len).sum();
        let base: u64 = frame.bases.iter().map(|base| base.slice.len).sum();
        assert!(len <= MAX_FRAME && base <= MAX_BASE);
        let mut prefix = Vec::new();
        for base in &frame.bases {
            let (content, _) = base_images[usize::from(base.image)]
                .content(base.slice.content)
                .expect("a base that is had");
            let start = usize::try_from(base.slice.offset).expect("small");
            let end = start + usize::try_from(base.slice.len).expect("small");
            prefix.extend_from_slice(&source.get(&content).expect("had")[start..end]);
        }
        let len = usize::try_from(len).expect("small");
        let data = match coded {
            None => prefix,
            Some(coded) if coded.coding == Coding::Stored => coded.payload.clone(),
            Some(coded) => {
                let mut context = DCtx::create();
                context.ref_prefix(&prefix).expect("a prefix");
                let mut data = Vec::with_capacity(len);
                context
                    .decompress(&mut data, &coded.payload)
                    .expect("one frame");
                data
            }
        };
        assert_eq!(data.len(), len);
        let mut rest = &data[..];
        for member in &frame.members {
            let (content, _) = want.content(member.content).expect("wanted");
            let (part, behind) = rest.split_at(usize::try_from(member.len).expect("small"));
            let whole = made.entry(content).or_default();
            assert_eq!(whole.len() as u64, member.offset);
            whole.extend_from_slice(part);
            rest = behind;
        }
    }
    for (number, lacks) in (0..).zip(want.lacking(base_images)) {
        let (content, _) = want.content(number).unwrap_or((FileDigest::of(b""), 0));
        match made.remove(&content) {
            Some(bytes) => assert_eq!(FileDigest::of(&bytes), content),
            None => assert!(!lacks, "{content} was not sent"),
        }
    }
}
