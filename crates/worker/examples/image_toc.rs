//! Measures the TOC (table of contents) of images in an OCI layout: its size, and the time to
//! merge, compress and decompress it.
//!
//! `cargo run --release -p pierhead-worker --example image_toc -- LAYOUT NAME... [--into FOLDER]`
//!
//! Each TOC after the first is also compressed with the TOC before it as the dictionary. With
//! `--into`, the example writes each file content of the first image to its own file in
//! `FOLDER/store`, and the tree of this image to `FOLDER/rootfs`.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pierhead_testkit::layout::OciLayout;
use pierhead_toc::ImageToc;
use pierhead_toc::image_toc::{compress, decompress};
use pierhead_toc::layer::{self, LayerIndex, Limits, NoPacing, Request};
use pierhead_toc::{Blob, FileBlob, FileDigest, Source, Time};
use pierhead_worker::export::rootfs::{ContentSource, Options, ReuseMode, StoreFiles, rootfs};

/// A folder with one file for each file content of an image.
struct Store<'a>(&'a Path);

impl Store<'_> {
    fn fill(&self, layers: &[(LayerIndex, Arc<dyn Blob>)]) -> Result<()> {
        fs::create_dir_all(self.0)?;
        let mut buffer = Vec::new();
        for (index, blob) in layers {
            let reader = index.reader(blob.clone());
            for file in index.files() {
                let (content, size) = file?;
                let path = self.0.join(content.hex());
                if !path.exists() {
                    buffer.resize(usize::try_from(size)?, 0);
                    reader.read_at(&content, 0, &mut buffer)?;
                    fs::write(path, &buffer)?;
                }
            }
        }
        Ok(())
    }
}

impl StoreFiles for Store<'_> {
    fn file(&self, content: &FileDigest) -> io::Result<Option<File>> {
        File::open(self.0.join(content.hex())).map(Some)
    }

    fn is_current(&self, _: &FileDigest, _: &File) -> io::Result<bool> {
        Ok(true)
    }

    fn record_link(&self, _: &FileDigest, _: &File, _: Time) -> io::Result<()> {
        Ok(())
    }
}

impl Source for Store<'_> {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        fs::metadata(self.0.join(content.hex())).map(|meta| Some(meta.len()))
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        File::open(self.0.join(content.hex()))?.read_exact_at(buf, offset)
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
        return Err("name an OCI layout".into());
    }
    let root = names.remove(0);
    let root = Path::new(&root);
    let folder = tempfile::tempdir()?;
    let mut last: Option<ImageToc> = None;
    for name in &names {
        let layers = index(root, name, folder.path())?;
        let all: Vec<&LayerIndex> = layers.iter().map(|(index, _)| index).collect();
        let toc = timed("build", || Ok(ImageToc::build(&all)?))?;
        println!(
            "{name}: {} entries, {} contents ({} visible), {} layers, {} bytes",
            toc.entries(),
            toc.contents().len(),
            toc.visible(),
            all.len(),
            toc.bytes().len(),
        );
        let path = folder.path().join("table");
        timed("save", || Ok(toc.save(&path)?))?;
        timed("open", || Ok(ImageToc::open(&path)?))?;
        timed("parse", || Ok(ImageToc::parse(toc.bytes().to_vec())?))?;
        timed("walk", || {
            let mut rows = toc.rows();
            let mut bytes = 0;
            while let Some(row) = rows.next()? {
                bytes += row.path.len();
            }
            Ok(bytes)
        })?;
        for level in [1, 3, 9, 19] {
            let frame = timed(&format!("compress {level}"), || {
                Ok(compress(&toc, None, level)?)
            })?;
            println!("  {} bytes", frame.len());
            timed("decompress", || Ok(decompress(&frame, None)?))?;
            if let Some(last) = &last {
                let frame = timed(&format!("patch {level}"), || {
                    Ok(compress(&toc, Some(last), level)?)
                })?;
                println!("  {} bytes", frame.len());
                timed("decompress", || Ok(decompress(&frame, Some(last))?))?;
            }
        }
        if let (Some(into), None) = (&into, &last) {
            let into = Path::new(into);
            let folder = into.join("store");
            let store = Store(&folder);
            timed("fill a store", || store.fill(&layers))?;
            for (name, reuse) in [
                ("rootfs", ReuseMode::Clone),
                ("linked", ReuseMode::HardLink),
            ] {
                let contents = ContentSource {
                    source: &store,
                    files: Some(&store),
                };
                let options = Options {
                    threads: NonZeroUsize::new(2).unwrap_or(NonZeroUsize::MIN),
                    reuse,
                    ..Options::default()
                };
                let summary = timed(&format!("export {name}"), || {
                    Ok(rootfs(&toc, contents, &into.join(name), &options, &|_| {})?)
                })?;
                println!("  {summary:?}");
            }
        }
        last = Some(toc);
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
    let mut layers = Vec::new();
    let found = OciLayout::new(root).layers(name, "amd64")?;
    for (nth, layer) in found.iter().enumerate() {
        let opened: Arc<dyn Blob> = Arc::new(FileBlob::new(File::open(&layer.path)?)?);
        let request = Request {
            media_type: &layer.media_type,
            diff_id: &layer.diff_id,
            limits: Limits::default(),
        };
        let out = out.join(format!("{name}-{nth}"));
        layers.push((
            layer::index(&*opened, &request, &mut NoPacing, &out)?,
            opened,
        ));
    }
    Ok(layers)
}
