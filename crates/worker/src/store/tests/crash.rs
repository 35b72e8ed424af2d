//! Crash tests of the store: a fetch stops at any record, its files are lost or truncated, and the
//! next pull completes the image.

use super::*;

/// Returns a test image whose bundle has one frame for each file.
fn many_frames() -> TestImage {
    let files: Vec<(String, Vec<u8>)> = (0..8)
        .map(|number| (format!("file-{number}"), noise(50 + number, 3000)))
        .collect();
    let files: Vec<_> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    TestImage::of(&files)
}

/// Passes a part of a bundle to the store, waits until its records are applied, and stops as a
/// killed process does.
fn feed_and_stop(store: &Store, bytes: &[u8]) {
    let apply = feed(store, bytes, 1 << 16).unwrap();
    let _ = apply.finish().unwrap();
}

/// Passes the first missing frame and all frames after it to the store.
fn feed_rest(apply: &Apply, encoded: &Encoded) {
    let Some(first) = apply.missing().first().map(|range| range.start) else {
        return;
    };
    let stream = encoded.part(usize::try_from(first).unwrap());
    let mut decoder = Decoder::resumed(apply.digest(), apply.header());
    let mut rest = &stream[..];
    while let Some(event) = decoder.feed(&mut rest).unwrap() {
        if let Event::Record {
            frame,
            coding,
            payload,
        } = event
        {
            apply.record(frame, coding, payload).unwrap();
        }
    }
}

#[test]
fn a_fetch_that_stops_at_any_record_resumes_with_the_missing_frames() {
    let image = many_frames();
    let encoded = encode(&image, None, false);
    let frames = encoded.records.len();
    let header = encoded.prelude.encode().len() + encoded.body.len();
    for applied in 0..=frames {
        for partial in [0, 30, 100] {
            let records: usize = encoded.records[..applied].iter().map(Vec::len).sum();
            let next = encoded.records.get(applied).map_or(0, Vec::len);
            let cut = header + records + partial.min(next);
            let folder = TempDir::new().unwrap();
            let store = Store::open(folder.path(), &[]).unwrap();
            if applied == frames {
                // Does not call `finish`, which would record the image.
                let apply = feed(&store, &encoded.bytes()[..cut], 1 << 16).unwrap();
                while !apply.missing().is_empty() {
                    std::thread::yield_now();
                }
            } else {
                feed_and_stop(&store, &encoded.bytes()[..cut]);
            }
            drop(store);
            let store = Store::open(folder.path(), &[]).unwrap();
            assert!(
                store.images().unwrap().is_empty(),
                "nothing incomplete is visible"
            );
            let apply = store.resume(NAME).unwrap().expect("the fetch that stopped");
            let number = |count: usize| u32::try_from(count).unwrap();
            let rest = number(applied)..number(frames);
            let expected: Vec<_> = Some(rest).into_iter().filter(|it| !it.is_empty()).collect();
            assert_eq!(apply.missing(), expected, "after {applied} records");
            feed_rest(&apply, &encoded);
            finish(&apply);
            assert_holds(&store, &image, false);
        }
    }
}

#[test]
fn a_lost_content_is_fetched_again_whatever_the_log_states() {
    let image = many_frames();
    let encoded = encode(&image, None, false);
    let frames = u32::try_from(encoded.records.len()).unwrap();
    let toc = image.toc();
    for keeps_log in [true, false] {
        let folder = TempDir::new().unwrap();
        let store = Store::open(folder.path(), &[]).unwrap();
        let apply = feed(&store, &encoded.bytes(), 1 << 16).unwrap();
        while !apply.missing().is_empty() {
            std::thread::yield_now();
        }
        drop(apply);
        let fetch = folder.path().join("fetches");
        let fetch = fetch.join(FileDigest::of(NAME.as_bytes()).hex());
        if !keeps_log {
            fs::remove_file(fetch.join("log")).unwrap();
        }
        let lost = toc.contents().content(3).unwrap();
        store.0.contents.remove(&lost);
        let apply = store.resume(NAME).unwrap().expect("the fetch that stopped");
        let missing = apply.missing();
        if keeps_log {
            assert!(missing.is_empty(), "{missing:?}");
            let ApplyOutcome::Missing(contents) = apply.finish().unwrap() else {
                panic!("the content is lost")
            };
            assert_eq!(contents, [(lost, 3000)]);
        } else {
            let count: u32 = missing.iter().map(|range| range.end - range.start).sum();
            assert_eq!(count, 1, "{missing:?}");
            assert!(missing[0].end <= frames);
        }
        // The lost content arrives alone, and not in a frame. With this content, the image is
        // complete.
        let mut writer = apply.receive(&lost).unwrap();
        writer.write(&image.bytes(&lost)).unwrap();
        writer.commit().unwrap();
        finish(&apply);
        assert_holds(&store, &image, false);
    }
}

#[test]
fn a_truncated_content_makes_its_image_incomplete_until_the_next_pull() {
    let f = Fixture::new();
    let store = f.store();
    let image = many_frames();
    pull(&store, &image, None, false);
    let content = FileDigest::of(&image.files[&b"file-2"[..]]);
    for len in [0, 1, 1500, 2999] {
        // The test changes the bytes of the file and keeps its seal, as after a crash that lost
        // only the data of the file.
        let path = f.file(&content);
        let modified = path.metadata().unwrap().modified().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![0; len]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(modified).unwrap();
        assert!(
            store.complete(&image.digest(), false).unwrap().is_none(),
            "{len} bytes"
        );
        pull(&store, &image, None, false);
        assert!(store.complete(&image.digest(), false).unwrap().is_some());
    }
}

#[test]
fn a_kill_while_a_record_is_written_leaves_the_old_record_or_none() {
    let f = Fixture::new();
    let store = f.store();
    let image = many_frames();
    pull(&store, &image, None, false);
    let images = f.folder.path().join("images");
    let record = images.join(image.digest().hex());
    let partial = record.with_extension("partial");
    let names = ["table", "image.json", "manifest", "config"];
    for written in 0..=names.len() {
        fs::create_dir(&partial).unwrap();
        for name in &names[..written] {
            fs::copy(record.join(name), partial.join(name)).unwrap();
        }
        // The crash has truncated the file that was written last.
        if let Some(name) = written.checked_sub(1).map(|last| names[last]) {
            let file = File::options()
                .write(true)
                .open(partial.join(name))
                .unwrap();
            file.set_len(3).unwrap();
        }
        let all = store.images().unwrap();
        assert_eq!(all.len(), 1, "{written} files of a temporary record");
        let stored = store.image(&image.digest()).unwrap();
        stored.save(&images).unwrap();
        assert!(!partial.exists(), "the next record replaces it");
        assert_eq!(
            store.image(&image.digest()).unwrap().manifest,
            image.manifest()
        );
    }
}

#[test]
fn temporary_files_of_killed_writers_are_removed_by_a_collection() {
    let f = Fixture::new();
    let image = many_frames();
    {
        let store = f.store();
        pull(&store, &image, None, false);
        feed_and_stop(&store, &encode(&f.old, None, false).bytes()[..10_000]);
    }
    let content = FileDigest::of(&image.files[&b"file-2"[..]]);
    let path = f.file(&content);
    let temporary = path.with_file_name(format!("{}.77-0", content.hex()));
    fs::write(&temporary, "part of a content").unwrap();
    let store = f.store();
    let report = store.collect().unwrap();
    assert!(report.files >= 1 && !temporary.exists(), "{report:?}");
    let fetches = fs::read_dir(f.folder.path().join("fetches")).unwrap();
    assert_eq!(fetches.count(), 0, "unfinished fetches are removed");
    assert_holds(&store, &image, false);
    assert_eq!(store.collect().unwrap(), CollectReport::default());
}
