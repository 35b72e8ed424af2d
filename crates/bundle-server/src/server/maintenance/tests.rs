//! Unit tests of maintenance when a file or a folder cannot be read: all other steps of maintenance
//! still run.

use std::io;
use std::sync::Arc;

use pierhead_host::BackgroundWork;
use pierhead_oci::Digest;
use pierhead_testkit::images;
use pierhead_testkit::source::MemoryBlobs;
use pierhead_testkit::wait::until;
use pierhead_toc::FileDigest;

use super::*;
use crate::pack::{FrameIndex as _, RecordLocation};
use crate::server::plan_gate::PlanGate;
use crate::server::plan_store::request_key;
use crate::{BundleServer, Config, Image, State};

/// A server with two images that are ready. The background work of the server is paused.
struct Fixture {
    server: BundleServer,
    blobs: Arc<MemoryBlobs>,
    background: BackgroundWork,
    images: [Digest; 2],
    folder: tempfile::TempDir,
}

fn server_with_two_images() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let background = BackgroundWork::default();
    background.set_paused(true);
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    config.cpu_percent = 100;
    (config.fast_level, config.optimized_level) = (1, 12);
    config.background = background.clone();
    let server = BundleServer::open(config, blobs.clone()).unwrap();
    let images = [1, 2].map(|seed| index(&server, &blobs, seed));
    Fixture {
        server,
        blobs,
        background,
        images,
        folder,
    }
}

/// Makes an image, and waits until the server has indexed it and unused packs may be deleted.
fn index(server: &BundleServer, blobs: &MemoryBlobs, seed: u64) -> Digest {
    let image = images::Image::tree(seed, &images::TreeOptions::default()).image;
    blobs.put_image(&image);
    server.offer(Image {
        manifest: image.root,
        repository: "registry/app".into(),
    });
    server.awaited(&image.root);
    until("a ready image", || {
        server.state(&image.root) == State::Ready
    });
    until("unused packs", || {
        server.context.pack_usage.try_begin_deletion().is_some()
    });
    image.root
}

/// Stores the location of a content in a pack that was evicted, and returns the content.
fn content_of_evicted_pack(context: &Context) -> FileDigest {
    let content = FileDigest::of(b"a content of an evicted pack");
    let location = RecordLocation {
        pack: 7777,
        offset: 0,
        len: 1,
    };
    context.image_database.put(&content, &[location]).unwrap();
    // This stores a number that differs from the real number of evictions, so maintenance assumes
    // that packs were evicted.
    context.pack_usage.has_evicted_since(u64::MAX);
    content
}

#[test]
fn maintenance_with_an_unreadable_plan_runs_all_other_steps() {
    let fixture = server_with_two_images();
    let Fixture {
        server, background, ..
    } = &fixture;
    let context = &*server.context;
    let [kept, gone] = fixture.images;
    // The plan file is replaced by a link to itself, so opening it fails with ELOOP. This stands
    // for EACCES or EIO.
    let plan = context.paths.plan(&request_key(&kept, &[], true));
    std::fs::remove_file(&plan).unwrap();
    std::os::unix::fs::symlink(&plan, &plan).unwrap();
    context.plans.close_all();
    // The optimization needs the plan, so the optimization fails and is no longer queued.
    background.set_paused(false);
    until("no job that waits", || server.stat().jobs == 0);
    background.set_paused(true);

    fixture.blobs.remove(&gone);
    let gone_content = content_of_evicted_pack(context);
    context.pack_usage.note_unused();
    let packs = server.stat().packs;

    let mut share = CpuShare::new(100, context.queue.stop_flag());
    maintain(context, &mut share).expect_err("the plan is unreadable");

    assert_eq!(server.state(&gone), State::Unknown, "its manifest is gone");
    assert!(!context.paths.toc(&gone).exists());
    assert!(context.paths.toc(&kept).exists());
    assert_eq!(server.stat().packs, packs, "the plan may name any pack");
    assert!(context.pack_usage.take_unused(), "packs may be unused");
    assert_eq!(server.stat().jobs, 1, "the image waits for optimization");
    assert_eq!(context.image_database.get(&gone_content).unwrap(), []);
    assert!(plan.is_symlink(), "an unreadable file may be intact");
    server.close();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "moves a file of the test")]
fn maintenance_with_unreadable_folders_reports_every_failed_step_and_runs_the_others() {
    let fixture = server_with_two_images();
    let (server, context) = (&fixture.server, &*fixture.server.context);
    let [kept, gone] = fixture.images;
    // A file in the place of a folder fails with ENOTDIR, as the folder could fail with EACCES.
    for folder in ["index/layers", "plans"] {
        let path = fixture.folder.path().join(folder);
        std::fs::rename(&path, path.with_extension("moved")).unwrap();
        std::fs::write(&path, "").unwrap();
    }
    context.plans.close_all();
    fixture.blobs.remove(&gone);
    let gone_content = content_of_evicted_pack(context);
    context.pack_usage.note_unused();

    let mut share = CpuShare::new(100, context.queue.stop_flag());
    let failures = run_steps(context, &mut share).expect("the server does not stop");

    let steps: Vec<_> = failures.0.iter().map(|failed| failed.step).collect();
    let expected = [
        "delete unused layer indexes",
        "delete superseded plans",
        "shrink the plans",
        "delete unused fast packs",
        "delete unused packs",
    ];
    assert_eq!(steps, expected);
    for failed in &failures.0 {
        let text = failed.first.to_string();
        let is_named = text.contains("index/layers") || text.contains("plans");
        assert!(is_named, "{text}");
    }
    assert_eq!(server.state(&gone), State::Unknown, "its manifest is gone");
    assert!(!context.paths.toc(&gone).exists());
    assert!(context.paths.toc(&kept).exists());
    assert_eq!(context.image_database.get(&gone_content).unwrap(), []);
    server.close();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "moves a file of the test")]
fn maintenance_reports_an_unreadable_folder_of_layer_indexes_and_one_of_tocs() {
    let fixture = server_with_two_images();
    let (server, context) = (&fixture.server, &*fixture.server.context);
    for folder in ["index/layers", "index/tables"] {
        let path = fixture.folder.path().join(folder);
        std::fs::rename(&path, path.with_extension("moved")).unwrap();
        std::fs::write(&path, "").unwrap();
    }
    let mut share = CpuShare::new(100, context.queue.stop_flag());
    let failures = run_steps(context, &mut share).expect("the server does not stop");
    let steps: Vec<_> = failures.0.iter().map(|failed| failed.step).collect();
    assert_eq!(steps, ["delete unused layer indexes", "delete unused TOCs"]);
    for (failed, folder) in failures.0.iter().zip(["index/layers", "index/tables"]) {
        let text = failed.first.to_string();
        assert!(text.contains(folder), "{text}");
    }
    server.close();
}

#[test]
fn a_step_that_fails_for_many_images_keeps_its_first_error_and_a_count() {
    let mut failures = Failures::default();
    let fails = |what: &str| Err(Error::io(what, io::ErrorKind::StorageFull.into()));
    for nth in 0..1000 {
        let noted = failures.note("a step", fails(&format!("write {nth}")));
        assert!(noted.is_ok());
    }
    failures.note("a step that works", Ok(())).unwrap();
    failures.note("another step", fails("read")).unwrap();
    let stopped = failures.note("a step", Err(Error::Stopped));
    assert!(matches!(stopped, Err(Error::Stopped)));
    let steps: Vec<_> = failures.0.iter().map(|it| (it.step, it.count)).collect();
    assert_eq!(steps, [("a step", 1000), ("another step", 1)]);
    let first = failures.0[0].first.to_string();
    assert!(first.contains("write 0"), "{first}");
}

#[test]
fn images_are_indexed_while_a_prune_reads_plans() {
    let fixture = server_with_two_images();
    let (server, context) = (&fixture.server, &*fixture.server.context);
    let [kept, gone] = fixture.images;
    fixture.blobs.remove(&gone);
    let gate = PlanGate::close(context.paths.plan(&request_key(&kept, &[], true)));
    std::thread::scope(|scope| {
        let prune = scope.spawn(|| server.prune(u64::MAX));
        gate.wait_until_reached();
        // If indexing waited for the prune, this would take too long.
        let new = index(server, &fixture.blobs, 3);
        assert!(!prune.is_finished());
        drop(gate);
        prune.join().unwrap().unwrap();
        // The prune has not deleted packs that were written while it ran.
        let bundle = server.bundle(&new, &[], false).unwrap();
        let stream = bundle.stream(None).unwrap();
        assert!(stream.len().is_some(), "all records exist");
    });
    server.close();
}

#[test]
fn images_are_indexed_while_maintenance_reads_superseded_plans() {
    let fixture = server_with_two_images();
    let (server, context) = (&fixture.server, &*fixture.server.context);
    let superseded = context.paths.sent(&FileDigest::of(b"a superseded plan"));
    std::fs::write(&superseded, b"damaged").unwrap();
    let gate = PlanGate::close(superseded);
    std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            let mut share = CpuShare::new(100, context.queue.stop_flag());
            maintain(context, &mut share)
        });
        gate.wait_until_reached();
        index(server, &fixture.blobs, 3);
        assert!(!maintenance.is_finished());
        drop(gate);
        maintenance.join().unwrap().unwrap();
    });
    server.close();
}
