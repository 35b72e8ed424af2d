//! Merges images of an OCI layout and tells what their tables weigh and cost:
//! `cargo run --release -p pierhead-bundle --example table -- LAYOUT NAME... [--into FOLDER]`.
//!
//! Each table but the first is measured against the one before, too. With `--into` the tree of the first is
//! written there, through the checkpoints of its layers.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pierhead_bundle::export::rootfs::{Contents, Options, rootfs};
use pierhead_bundle::layer::{self, LayerIndex, LayerReader, Limits, Request, Unhurried};
use pierhead_bundle::table::{Table, decode, encode};
use pierhead_bundle::{Blob, Content, Source};
use serde_json::Value;

struct Opened(File, u64);

impl Blob for Opened {
    fn size(&self) -> u64 {
        self.1
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

/// The layers of an image, whichever has it.
struct Layers(Mutex<Vec<LayerReader>>);

impl Source for Layers {
    fn size(&self, content: &Content) -> io::Result<Option<u64>> {
        for layer in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Some(size) = layer.size(content)? {
                return Ok(Some(size));
            }
        }
        Ok(None)
    }

    fn read_at(&self, content: &Content, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for layer in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if layer.size(content)?.is_some() {
                return layer.read_at(content, offset, buf);
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let into = match names.iter().position(|name| name == "--into") {
        Some(at) => names.drain(at..).nth(1),
        None => None,
    };
    if names.is_empty() {
        return Err("which layout?".into());
    }
    let root = names.remove(0);
    let root = Path::new(&root);
    let folder = tempfile::tempdir()?;
    let mut last: Option<Table> = None;
    for name in &names {
        let layers = index(root, name, folder.path())?;
        let all: Vec<&LayerIndex> = layers.iter().map(|(index, _)| index).collect();
        let table = timed("build", || Ok(Table::build(&all)?))?;
        println!(
            "{name}: {} entries, {} contents ({} visible), {} layers, {} bytes",
            table.entries(),
            table.contents().len(),
            table.visible(),
            all.len(),
            table.bytes().len(),
        );
        let path = folder.path().join("table");
        timed("save", || Ok(table.save(&path)?))?;
        timed("open", || Ok(Table::open(&path)?))?;
        timed("parse", || Ok(Table::parse(table.bytes().to_vec())?))?;
        timed("walk", || {
            let mut rows = table.rows();
            let mut bytes = 0;
            while let Some(row) = rows.next()? {
                bytes += row.path.len();
            }
            Ok(bytes)
        })?;
        for level in [3, 9, 19] {
            let frame = timed(&format!("encode {level}"), || {
                Ok(encode(&table, None, level)?)
            })?;
            println!("  {} bytes", frame.len());
            timed("decode", || Ok(decode(&frame, None)?))?;
            if let Some(last) = &last {
                let frame = timed(&format!("patch {level}"), || {
                    Ok(encode(&table, Some(last), level)?)
                })?;
                println!("  {} bytes", frame.len());
                timed("decode", || Ok(decode(&frame, Some(last))?))?;
            }
        }
        if let (Some(into), None) = (&into, &last) {
            let readers = layers
                .iter()
                .map(|(index, blob)| index.reader(blob.clone()))
                .collect();
            let source = Layers(Mutex::new(readers));
            let contents = Contents {
                source: &source,
                files: None,
            };
            let options = Options {
                threads: NonZeroUsize::new(2).unwrap_or(NonZeroUsize::MIN),
                ..Options::default()
            };
            let summary = timed("export", || {
                Ok(rootfs(
                    &table,
                    contents,
                    Path::new(into),
                    &options,
                    &|_| {},
                )?)
            })?;
            println!("  {summary:?}");
        }
        last = Some(table);
    }
    Ok(())
}

fn timed<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let done = run()?;
    println!("  {what}: {:.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    Ok(done)
}

fn index(root: &Path, name: &str, out: &Path) -> Result<Vec<(LayerIndex, Arc<dyn Blob>)>> {
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        root.join("blobs").join(digest.replace(':', "/"))
    };
    let json = |path: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    let index = json(&root.join("index.json"))?;
    let named = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == name;
    let entries = index["manifests"].as_array().ok_or("no index")?;
    let entry = entries.iter().find(named).ok_or("no such image")?;
    let mut manifest = json(&blob(entry))?;
    if let Some(platforms) = manifest["manifests"].as_array() {
        let this = |entry: &&Value| entry["platform"]["architecture"] == "amd64";
        let entry = platforms.iter().find(this).ok_or("no such platform")?;
        manifest = json(&blob(entry))?;
    }
    let config = json(&blob(&manifest["config"]))?;
    let mut layers = Vec::new();
    for (nth, layer) in manifest["layers"]
        .as_array()
        .ok_or("no layers")?
        .iter()
        .enumerate()
    {
        let file = File::open(blob(layer))?;
        let size = file.metadata()?.len();
        let opened: Arc<dyn Blob> = Arc::new(Opened(file, size));
        let request = Request {
            media_type: layer["mediaType"].as_str().unwrap_or_default(),
            diff_id: &config["rootfs"]["diff_ids"][nth]
                .as_str()
                .unwrap_or_default()
                .parse()?,
            limits: Limits::default(),
        };
        let out = out.join(format!("{name}-{nth}"));
        layers.push((
            layer::index(&*opened, &request, &mut Unhurried, &out)?,
            opened,
        ));
    }
    Ok(layers)
}
