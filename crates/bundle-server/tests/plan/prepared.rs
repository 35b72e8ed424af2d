//! Tests of the patches from one image to another: similar contents are found, patches decode, and
//! the work stays within its limit.

use fastrand::Rng;
use pierhead_bundle::patch::{Coded, Effort, Level};
use pierhead_bundle::{Coding, Frame};
use pierhead_bundle_server::Error;
use pierhead_bundle_server::plan::{Expected, prepare};
use pierhead_testkit::source::MemorySource;
use pierhead_toc::Source;
use pierhead_toc::TocView;

use crate::images::{Files, apply, edited, text, toc, versions};

fn prepared(
    want: TocView<'_>,
    base_image: TocView<'_>,
    source: &dyn Source,
    effort: Effort,
) -> Vec<(Frame, Option<Coded>)> {
    let mut frames = Vec::new();
    prepare(
        want,
        base_image,
        &Expected::default(),
        source,
        effort,
        &mut |_| Ok(()),
        &mut |frame, coded| {
            assert_eq!(frame.coding, coded.coding);
            frames.push((frame.clone(), Some(coded.clone())));
            Ok(())
        },
    )
    .expect("all contents are there");
    frames
}

fn payload(frames: &[(Frame, Option<Coded>)]) -> usize {
    let coded = frames.iter().filter_map(|(_, coded)| coded.as_ref());
    coded.map(|coded| coded.payload.len()).sum()
}

#[test]
fn a_prepared_pair_makes_the_new_image_and_always_has_the_same_frames() {
    for seed in 0..12 {
        let mut rng = Rng::with_seed(seed);
        let (old, new) = versions(&mut rng);
        let mut source = MemorySource::default();
        let base_image = toc(&old, &mut source);
        let want = toc(&new, &mut source);
        let effort = Effort::Level(Level::new([1, 3, 6][usize::try_from(seed).unwrap() % 3]));
        let (want, base_image) = match seed % 2 {
            0 => (TocView::mounted(&want), TocView::mounted(&base_image)),
            _ => (
                TocView::with_layers(&want),
                TocView::with_layers(&base_image),
            ),
        };
        let frames = prepared(want, base_image, &source, effort);
        apply(want, &[base_image], &frames, &source);
        assert_eq!(
            frames,
            prepared(want, base_image, &source, effort),
            "seed {seed}"
        );
        // For an update from an image to itself, no frame is made.
        assert!(prepared(want, want, &source, effort).is_empty());
    }
}

/// Prepares the patches from an image with the files `old` to an image with the file `new`.
fn one(old: &[(&str, &[u8])], new: (&str, &[u8])) -> Vec<(Frame, Option<Coded>)> {
    let owned = |(path, bytes): &(&str, &[u8])| ((*path).to_owned(), bytes.to_vec());
    let old: Files = old.iter().map(owned).collect();
    let new: Files = vec![owned(&new)];
    let mut source = MemorySource::default();
    let base_image = toc(&old, &mut source);
    let want = toc(&new, &mut source);
    let (want, base_image) = (TocView::mounted(&want), TocView::mounted(&base_image));
    let frames = prepared(want, base_image, &source, Effort::Level(Level::FAST));
    apply(want, &[base_image], &frames, &source);
    frames
}

#[test]
fn old_versions_are_found_by_path_name_and_similarity() {
    let mut rng = Rng::with_seed(7);
    let old = text(&mut rng, 60_000);
    let other = text(&mut rng, 60_000);
    let new = edited(&mut rng, &old);
    let olds = [
        ("etc/same", "etc/same"),
        ("usr/lib/libx.so.1.2.3", "usr/lib/libx.so.1.3"),
        (
            "site/flask-2.3.2.dist-info/RECORD",
            "site/flask-3.0.dist-info/RECORD",
        ),
        ("opt/a/tool", "opt/b/tool"),
        ("opt/a/before", "srv/quite/another"),
    ];
    for (path, next) in olds {
        let frames = one(&[("etc/other", &other), (path, &old)], (next, &new));
        let sent = payload(&frames);
        assert!(sent < 1000, "{path} -> {next}: {sent} bytes");
        assert!(
            frames
                .iter()
                .all(|(frame, _)| frame.coding == Coding::Patch)
        );
    }
}

#[test]
fn a_file_without_a_similar_one_is_sent_whole() {
    let mut rng = Rng::with_seed(8);
    let noise: Vec<u8> = (0..50_000).map(|_| rng.u8(..)).collect();
    let frames = one(&[("etc/a", &text(&mut rng, 50_000))], ("etc/a", &noise));
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].0.coding, Coding::Stored);
    assert!(frames[0].0.bases.is_empty());
    let words = text(&mut rng, 50_000);
    let frames = one(&[("etc/a", &noise)], ("etc/a", &words));
    assert_eq!(frames[0].0.coding, Coding::Zstd);
}

#[test]
fn a_large_file_is_patched_against_its_most_similar_parts() {
    let mut rng = Rng::with_seed(9);
    // Random bytes do not compress, so a patch against a wrong window would be much larger. The
    // parts of the file move by 12 MiB.
    let old: Vec<u8> = (0..26 << 20).map(|_| rng.u8(..)).collect();
    let mut new = old[12 << 20..].to_vec();
    new.extend_from_slice(&old[..12 << 20]);
    for at in (0..new.len()).step_by(100_000) {
        new[at] ^= 1;
    }
    let frames = one(&[("bin/a", &old)], ("bin/a", &new));
    let sent = payload(&frames);
    assert!(frames.len() > 6 && sent < 100_000, "{sent} bytes");
}

#[test]
fn an_error_of_the_pause_callback_stops_preparation() {
    let mut rng = Rng::with_seed(10);
    let (old, new) = versions(&mut rng);
    let mut source = MemorySource::default();
    let (base_image, want) = (toc(&old, &mut source), toc(&new, &mut source));
    let stopped = prepare(
        TocView::mounted(&want),
        TocView::mounted(&base_image),
        &Expected::default(),
        &source,
        Effort::Idle,
        &mut |_| Err(Error::Stopped),
        &mut |_, _| Ok(()),
    );
    assert!(matches!(stopped, Err(Error::Stopped)));
    // If the source lacks the old contents, the error names a missing content.
    let nothing = MemorySource::default();
    let missing = prepare(
        TocView::mounted(&want),
        TocView::mounted(&base_image),
        &Expected::default(),
        &nothing,
        Effort::Idle,
        &mut |_| Ok(()),
        &mut |_, _| Ok(()),
    );
    assert!(matches!(missing, Err(Error::Missing(what)) if what.starts_with("sha256:")));
}

#[test]
fn a_pair_beyond_the_limit_is_not_prepared_while_a_client_waits() {
    let mut rng = Rng::with_seed(11);
    let old = text(&mut rng, 50_000);
    let new = edited(&mut rng, &old);
    let mut source = MemorySource::default();
    let files = |name: &str, bytes: &[u8]| -> Files { vec![(name.to_owned(), bytes.to_vec())] };
    let mut is_made = |old_name: &str, most| {
        let base_image = toc(&files(old_name, &old), &mut source);
        let want = toc(&files("bin/a", &new), &mut source);
        let mut frames = 0;
        let is_made = prepare(
            TocView::mounted(&want),
            TocView::mounted(&base_image),
            &Expected::default(),
            &source,
            Effort::Waiting(most),
            &mut |_| Ok(()),
            &mut |_, _| {
                frames += 1;
                Ok(())
            },
        );
        assert_eq!(is_made.expect("all is there"), frames > 0);
        frames > 0
    };
    // The bytes that are compressed count as work, and the bytes of their old versions count, too.
    assert!(is_made("bin/a", 110_000));
    assert!(!is_made("bin/a", 90_000));
    // Both files are read for their sketches, and the new file is compressed. All three count as
    // work.
    assert!(is_made("lib/b", 160_000));
    assert!(!is_made("lib/b", 140_000));
}
