//! Measures the time until an image of an OCI layout is ready for bundles, and until it is packed
//! at the final level, for the measurements in `docs/formats/disk.md`.
//!
//! `cargo run --release -p pierhead-bundle-server --example ready -- LAYOUT REF FOLDER [QUICK LEVEL]`:
//! FOLDER is the data folder of the bundle server and must be empty. QUICK and LEVEL are the fast
//! and the final zstd level; if they are equal, the image is packed once. The program waits for the
//! image like a client, so indexing may use a whole core.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pierhead_bundle_server::{BundleServer, Config, Image, State};
use pierhead_testkit::layout::OciLayout;
use pierhead_testkit::source::BlobFolder;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [layout, reference, folder, rest @ ..] = &args[..] else {
        return Err("LAYOUT REF FOLDER [QUICK LEVEL]".into());
    };
    let layout = Path::new(layout);
    let image = OciLayout::new(layout).image(reference)?;
    let manifest = image.for_architecture("amd64");
    let manifest = manifest.ok_or("no manifest for amd64")?.digest;
    let mut config = Config::new(folder, 8 << 30, 1 << 30);
    config.cpu_percent = 100;
    if let [fast, level] = rest {
        (config.fast_level, config.optimized_level) = (fast.parse()?, level.parse()?);
    }
    let blobs = BlobFolder::new(layout.join("blobs/sha256"));
    let bundle_server = BundleServer::open(config, Arc::new(blobs))?;
    let began = Instant::now();
    let repository = "example/image".to_owned();
    bundle_server.offer(Image {
        manifest,
        repository,
    });
    let say = |what: &str| {
        let sent = [false, true].map(|layers| {
            let bundle = bundle_server.bundle(&manifest, &[], layers);
            bundle
                .and_then(|it| it.stream(None))
                .ok()
                .and_then(|it| it.len())
        });
        let stat = bundle_server.stat();
        println!(
            "{reference}: {what} after {:.1} s; bundle {:?} bytes, with layers {:?}; packs {} bytes, {} quick layers",
            began.elapsed().as_secs_f64(),
            sent[0].unwrap_or(0),
            sent[1].unwrap_or(0),
            stat.packs,
            stat.fast_layers
        );
    };
    loop {
        match bundle_server.awaited(&manifest) {
            State::Working(_) => sleep(Duration::from_millis(10)),
            State::Ready => break,
            state => return Err(format!("{state:?}").into()),
        }
    }
    say("ready");
    if bundle_server.stat().fast_layers > 0 {
        while bundle_server.stat().optimized == 0 {
            sleep(Duration::from_millis(100));
        }
        say("packed well");
    }
    bundle_server.close();
    Ok(())
}
