//! Tests of packing (file contents become compressed frames) and of optimization (frames are
//! compressed again, at a higher level). The frames of a layer contain all contents of the layer
//! and no other contents, stopped work continues, and malformed input is refused.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

use std::collections::HashSet;
use std::io;

use pierhead_bundle::{Coding, MAX_FRAME};
use pierhead_bundle_server::Error;
use pierhead_bundle_server::pack::{
    FrameIndex, MemoryFrameIndex, PackConfig, PackItem, PackResult, PackSettings, Packs, decode,
    is_fast, optimize, pack,
};
use pierhead_testkit::source::MemorySource;
use pierhead_toc::{FileDigest, Source};

struct Fixture {
    _folder: tempfile::TempDir,
    packs: Packs,
    known: MemoryFrameIndex,
    source: MemorySource,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            packs: Packs::open(PackConfig::new(folder.path().join("packs"), 256 << 20)).unwrap(),
            known: MemoryFrameIndex::default(),
            source: MemorySource::default(),
            _folder: folder,
        }
    }

    fn item(&mut self, seed: u64, len: usize) -> PackItem {
        PackItem::file(self.source.add(text(seed, len)), len as u64, b"usr/share/a")
    }

    fn pack(&self, items: &[PackItem]) -> PackResult {
        self.try_pack(items, &mut |_| Ok(())).unwrap()
    }

    fn try_pack(
        &self,
        items: &[PackItem],
        pause: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<PackResult, Error> {
        let settings = PackSettings {
            level: 1,
            small: 256 << 10,
            ..PackSettings::default()
        };
        pack(
            items,
            &self.source,
            &self.packs,
            &self.known,
            &settings,
            pause,
        )
    }

    /// Decodes frames into file contents. Each content must be complete, correct and present
    /// exactly once.
    fn contents(&self, packed: &PackResult) -> HashSet<FileDigest> {
        let mut found: Vec<(FileDigest, Vec<u8>)> = Vec::new();
        for location in &packed.frames {
            let frame = self.packs.frame(location).unwrap();
            let (mut payload, mut bytes) = (Vec::new(), Vec::new());
            let head = self.packs.read(location, &mut payload).unwrap();
            assert_eq!(head.coding, frame.coding);
            let len = frame.members.iter().map(|part| part.len).sum();
            decode(head.coding, &payload, len, &mut bytes).unwrap();
            let mut rest = &bytes[..];
            for part in frame.members {
                let (piece, after) = rest.split_at(usize::try_from(part.len).unwrap());
                rest = after;
                match found.last_mut() {
                    Some((of, bytes)) if *of == part.content => {
                        assert_eq!(part.offset, bytes.len() as u64);
                        bytes.extend(piece);
                    }
                    _ => {
                        assert_eq!(part.offset, 0);
                        found.push((part.content, piece.to_vec()));
                    }
                }
            }
        }
        for (content, bytes) in &found {
            assert_eq!(FileDigest::of(bytes), *content);
        }
        let all: HashSet<_> = found.iter().map(|(content, _)| *content).collect();
        assert_eq!(all.len(), found.len(), "a content is in two frames");
        all
    }
}

/// Returns a text of random words, which compresses well.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let words: Vec<u64> = (0..300).map(|_| random.u64(..)).collect();
    let text = std::iter::repeat_with(|| words[random.usize(..words.len())].to_le_bytes());
    text.flatten().take(len).collect()
}

fn wanted(source: &MemorySource, seeds: &[(u64, usize)]) -> HashSet<FileDigest> {
    let content = |(seed, len): &(u64, usize)| FileDigest::of(&text(*seed, *len));
    let all: HashSet<_> = seeds.iter().map(content).collect();
    assert!(all.iter().all(|content| source.get(content).is_some()));
    all
}

#[test]
fn all_contents_of_a_layer_are_packed_once() {
    let mut fixture = Fixture::new();
    let frame = usize::try_from(MAX_FRAME).unwrap();
    let mut seeds: Vec<_> = (0..300_usize)
        .map(|nth| (nth as u64, 1 + 40 * nth))
        .collect();
    seeds.extend([(1000, frame), (1001, frame + 1), (1002, 300_000)]);
    let mut items: Vec<_> = seeds
        .iter()
        .map(|(seed, len)| fixture.item(*seed, *len))
        .collect();
    items.push(items[7]);
    items.push(fixture.item(0, 0));
    let packed = fixture.pack(&items);
    assert_eq!(fixture.contents(&packed), wanted(&fixture.source, &seeds));
    assert_eq!(packed.reused, 0);
    assert!(packed.packed < packed.raw / 2);
    // A second call for the same layer packs no content again.
    let again = fixture.pack(&items);
    assert_eq!((again.raw, again.packed, again.reused), (0, 0, 303));
    assert_eq!(fixture.contents(&again), wanted(&fixture.source, &seeds));
}

#[test]
fn a_frame_of_another_layer_is_reused_only_if_all_members_are_requested() {
    let mut fixture = Fixture::new();
    let [a, b, c, d] = [1, 2, 3, 4].map(|seed| fixture.item(seed, 1000));
    let large = fixture.item(5, 1 << 20);
    fixture.pack(&[a, b, c, large]);
    let other = fixture.pack(&[b, c, d, large]);
    let seeds = [(2, 1000), (3, 1000), (4, 1000), (5, 1 << 20)];
    assert_eq!(fixture.contents(&other), wanted(&fixture.source, &seeds));
    assert_eq!((other.reused, other.raw), (1, 3000));
    let both = fixture.pack(&[a, b, c, d, large]);
    let all = [seeds[0], seeds[1], seeds[2], seeds[3], (1, 1000)];
    assert_eq!(fixture.contents(&both), wanted(&fixture.source, &all));
    assert_eq!((both.reused, both.raw), (4, 1000));
}

#[test]
fn an_item_made_by_apart_shares_no_frame() {
    let mut fixture = Fixture::new();
    let file = fixture.item(1, 1000);
    let content = fixture.source.add(text(2, 1000));
    let packed = fixture.pack(&[file, PackItem::in_own_frame(content, 1000)]);
    assert_eq!(packed.frames.len(), 2);
    assert_eq!(fixture.known.get(&content).unwrap(), &packed.frames[..1]);
}

#[test]
fn incompressible_contents_are_stored() {
    let mut fixture = Fixture::new();
    let mut bytes = vec![0; 400_000];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    let content = fixture.source.add(bytes);
    let packed = fixture.pack(&[PackItem::file(content, 400_000, b"a")]);
    assert_eq!(
        fixture.packs.frame(&packed.frames[0]).unwrap().coding,
        Coding::Stored
    );
    assert_eq!(fixture.contents(&packed).len(), 1);
}

#[test]
fn stopped_packing_continues_at_the_next_call() {
    let mut fixture = Fixture::new();
    let seeds: Vec<_> = (0..12).map(|seed| (seed, 300_000)).collect();
    let items: Vec<_> = seeds
        .iter()
        .map(|(seed, len)| fixture.item(*seed, *len))
        .collect();
    let mut so_far = 0;
    let stopped = fixture.try_pack(&items, &mut |bytes| {
        so_far += bytes;
        if so_far > 4_000_000 {
            Err(Error::Stopped)
        } else {
            Ok(())
        }
    });
    assert!(matches!(stopped, Err(Error::Stopped)));
    let packed = fixture.pack(&items);
    assert!(packed.reused >= 5 && packed.raw > 300_000, "{packed:?}");
    assert_eq!(fixture.contents(&packed), wanted(&fixture.source, &seeds));
}

/// A faulty source that returns zeros for every content.
struct Liar;

impl Source for Liar {
    fn size(&self, _: &FileDigest) -> io::Result<Option<u64>> {
        Ok(Some(1000))
    }

    fn read_at(&self, _: &FileDigest, _: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        Ok(())
    }
}

#[test]
fn contents_with_a_wrong_digest_are_not_recorded() {
    let mut fixture = Fixture::new();
    for item in [fixture.item(1, 1000), fixture.item(2, 1 << 20)] {
        let settings = PackSettings {
            level: 1,
            small: 256 << 10,
            ..PackSettings::default()
        };
        let result = pack(
            &[item],
            &Liar,
            &fixture.packs,
            &fixture.known,
            &settings,
            &mut |_| Ok(()),
        );
        assert!(matches!(result, Err(Error::Digest { .. })), "{result:?}");
    }
    for content in [text(1, 1000), text(2, 1 << 20)] {
        assert_eq!(fixture.known.get(&FileDigest::of(&content)).unwrap(), []);
    }
}

#[test]
fn a_malformed_frame_is_refused() {
    let bytes = text(1, 10_000);
    let payload = zstd::bulk::compress(&bytes, 3).unwrap();
    let mut out = Vec::new();
    decode(Coding::Zstd, &payload, 10_000, &mut out).unwrap();
    assert!(out == bytes);
    let wide = {
        // A frame with a too large window and without its content size.
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(27).unwrap();
        io::Write::write_all(&mut encoder, &bytes).unwrap();
        encoder.finish().unwrap()
    };
    for (coding, payload, len) in [
        (Coding::Zstd, &payload[..], 9_999),
        (Coding::Zstd, &payload[..], 10_001),
        (Coding::Zstd, &payload[..payload.len() - 1], 10_000),
        (Coding::Zstd, &bytes[..], 10_000),
        (Coding::Zstd, &wide[..], 10_001),
        (Coding::Stored, &bytes[..], 9_999),
        (Coding::Patch, &payload[..], 10_000),
        (Coding::Copy, &payload[..], 10_000),
        (Coding::Zstd, &payload[..], u64::MAX),
    ] {
        let result = decode(coding, payload, len, &mut out);
        assert!(
            matches!(result, Err(Error::Malformed { .. })),
            "{coding:?} {len}: {result:?}"
        );
    }
}

#[test]
fn stopped_optimization_continues_at_the_next_call() {
    let mut fixture = Fixture::new();
    let mut items: Vec<_> = (0..20).map(|seed| fixture.item(seed, 20_000)).collect();
    let large = fixture.item(99, 9 << 20);
    items.push(large);
    let settings = PackSettings {
        level: 1,
        small: 256 << 10,
        fast: true,
        ..PackSettings::default()
    };
    let Fixture { source, known, .. } = &fixture;
    let fast = pack(
        &items,
        source,
        &fixture.packs,
        known,
        &settings,
        &mut |_| Ok(()),
    );
    let fast = fast.unwrap();
    assert!(fast.frames.len() > 3 && fast.frames.iter().all(|it| is_fast(it.pack)));
    let whole = fixture.contents(&fast);
    let before = fixture.packs.stat().appended;
    let (mut stops, frames) = (0, &fast.frames);
    let made = loop {
        // This function `pause` stops the work after each frame.
        let mut pause = |bytes| match bytes {
            0 => Ok(()),
            _ => Err(Error::Stopped),
        };
        match optimize(frames, &fixture.packs, known, 6, &mut pause, &mut || Ok(())) {
            Ok(made) => break made,
            Err(Error::Stopped) if stops < frames.len() => stops += 1,
            Err(error) => panic!("{error}, after {stops}"),
        }
    };
    assert_eq!(stops, frames.len());
    assert_eq!(made.len(), fast.frames.len());
    assert_eq!(fixture.packs.stat().appended, before + made.len() as u64);
    let better = PackResult {
        frames: fast.frames.iter().map(|location| made[location]).collect(),
        ..PackResult::default()
    };
    assert!(better.frames.iter().all(|it| !is_fast(it.pack)));
    assert_eq!(fixture.contents(&better), whole);
    // After the deletion of the fast packs, all contents are still found, and nothing is packed
    // again.
    fixture.packs.drop_fast(&|_| false).unwrap();
    let again = fixture.pack(&items);
    assert_eq!((again.raw, again.frames.len()), (0, made.len()));
}
