//! Layers that an engine reads: the same index, whatever becomes of the engine.

use std::sync::Arc;

use pierhead_bundle::Error;
use pierhead_bundle::layer::{self, LayerIndex, Limits, Request, Unhurried};
use pierhead_engine::Offload;
use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::engine::{End, Frail};
use pierhead_testkit::source::MemoryBlob;

use crate::making::{Packing, Tar, random};

fn on(offload: &Offload, blob: &MemoryBlob, tar: &[u8]) -> Result<LayerIndex, Error> {
    let request = Request {
        media_type: "application/vnd.oci.image.layer.v1.tar",
        diff_id: &Digest::of(Algorithm::Sha256, tar),
        limits: Limits::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("index");
    layer::index_on(offload, blob, &request, &mut Unhurried, &out)
}

#[test]
fn what_an_engine_does_not_do_the_processor_does_again() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut tar = Tar::new();
    // Beyond the distance of checkpoints, so that there would be one.
    tar.file("large", &random(&mut rng, 5_000_000));
    tar.file("small", b"x");
    let tar = tar.finish();
    for packing in Packing::ALL {
        let blob = packing.pack(&tar);
        let frail = Frail::new(i64::MAX, End::GivesUp);
        let whole = Offload::to(Arc::new(frail.clone())).unwrap();
        crate::check(&tar, &blob, &on(&whole, &blob, &tar).unwrap());
        assert!(!frail.is_over());
        for end in [End::GivesUp, End::IsWrong] {
            for after in [0, 30] {
                let frail = Frail::new(i64::MAX, end);
                let offload = Offload::to(Arc::new(frail.clone())).unwrap();
                frail.allow(after);
                crate::check(&tar, &blob, &on(&offload, &blob, &tar).unwrap());
                assert!(frail.is_over(), "{after} calls were not all");
            }
        }
    }
}

#[test]
fn what_is_damaged_is_refused_by_the_processor() {
    let mut tar = Tar::new();
    tar.file("a", &[7; 100_000]);
    let tar = tar.finish();
    let whole = Offload::to(Arc::new(Frail::new(i64::MAX, End::GivesUp))).unwrap();
    let other = b"another tar";
    for packing in Packing::ALL {
        let blob = packing.pack(&tar);
        let refused = on(&whole, &blob, other);
        assert!(matches!(refused, Err(Error::Digest { .. })));
    }
}
