//! Generates test images of random file trees with every kind of tar entry. Also returns the file
//! tree that is expected after unpacking. The generator computes the expected tree in the simplest
//! way, independently of pierhead's unpacker. The images contain no cases in which unpackers
//! disagree: hard links whose header differs from the header of the target, times before 1970, and
//! folders without an entry.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use pierhead_toc::{Entry, FileDigest, Kind, Time};

use super::tarball::Writer;
use super::{Blob, Image, random_bytes};

/// Options of the random image.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Number of layers, at least one.
    pub layers: u32,
    /// Number of changes per layer. A change consists of one or several tar entries.
    pub changes: u32,
    /// Version of the file contents. Two versions with the same seed have the same tree and
    /// metadata, but about a quarter of the files differ slightly.
    pub version: u32,
    /// Whether the tree has devices, owners, special mode bits and capabilities, which only root
    /// can unpack.
    pub privileged: bool,
    /// Whether some files have up to 10 MiB. Other files have at most 8 KiB.
    pub large: bool,
    /// Whether every layer has entries for the parent folders of its changes, as the layers of all
    /// builders have. If false, some of these entries are missing.
    pub parents: bool,
    /// Whether sparse files use the PAX format, because unpackers in Go refuse GNU's format.
    pub sparse_pax: bool,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self {
            layers: 3,
            changes: 60,
            version: 0,
            privileged: true,
            large: false,
            parents: true,
            sparse_pax: false,
        }
    }
}

/// A random image, with the tree that is expected after unpacking.
#[derive(Clone, Debug)]
pub struct TreeImage {
    /// The image: one manifest with gzip layers.
    pub image: Image,
    /// The uncompressed layers, the lowest layer first.
    pub tars: Vec<Vec<u8>>,
    /// The expected tree, in the order of a table of contents (TOC): sorted by path components, the
    /// root first.
    pub tree: Vec<Entry>,
    /// The contents of all files, including files that upper layers hide.
    pub contents: BTreeMap<FileDigest, Vec<u8>>,
}

/// A path as its components. Such paths sort in the order of a table of contents (TOC).
type Path = Vec<Vec<u8>>;

/// The attributes that hard links share.
#[derive(Clone)]
struct Inode {
    entry: Entry,
}

struct Generator<'a> {
    random: Rng,
    options: &'a TreeOptions,
    inodes: Vec<Inode>,
    names: BTreeMap<Path, usize>,
    contents: BTreeMap<FileDigest, Vec<u8>>,
    /// The paths that have an entry in the current layer, and the parents of these paths.
    touched: BTreeSet<Path>,
    tar: Writer,
    /// Number of files so far. This number identifies the same file in several versions.
    files: u64,
}

impl Image {
    /// Creates an image of a random tree. The same seed and the same options always give the same
    /// bytes.
    pub fn tree(seed: u64, options: &TreeOptions) -> TreeImage {
        let mut growing = Generator {
            random: Rng::with_seed(seed),
            options,
            inodes: Vec::new(),
            names: BTreeMap::new(),
            contents: BTreeMap::new(),
            touched: BTreeSet::new(),
            tar: Writer::default(),
            files: seed << 20,
        };
        let mut tars = Vec::new();
        for layer in 0..options.layers {
            growing.touched.clear();
            growing.tar = Writer::new(growing.random.bool());
            if layer == 0 {
                growing.directory(Vec::new());
                growing.directory(vec![b"a".to_vec()]);
            }
            for _ in 0..options.changes {
                growing.change(layer > 0);
            }
            tars.push(std::mem::take(&mut growing.tar).finish());
        }
        TreeImage {
            image: Self::of_tars("amd64", &tars),
            tars,
            tree: growing.tree(),
            contents: growing.contents,
        }
    }
}

impl Generator<'_> {
    fn change(&mut self, upper: bool) {
        match self.random.u32(0..100) {
            0..35 => self.file(),
            35..45 => {
                let path = self.new_path();
                self.directory(path);
            }
            45..53 => self.symlink(),
            53..61 => self.hard_link(),
            61..64 => self.device(),
            64..67 => self.sparse(),
            67..75 => self.replace(),
            75..83 if upper => self.whiteout(),
            83..86 if upper => self.opaque(),
            86..90 => self.add_duplicate(),
            90..95 => {
                // This change gives a directory new attributes, and keeps its entries.
                let path = self.some_directory();
                self.directory(path);
            }
            _ => self.file(),
        }
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.names
            .get(path)
            .is_some_and(|inode| self.inodes[*inode].entry.kind == Kind::Directory)
    }

    fn some(&mut self, fits: impl Fn(&Self, &Path) -> bool) -> Option<Path> {
        let all: Vec<&Path> = self.names.keys().filter(|path| fits(self, path)).collect();
        let nth = if all.is_empty() {
            return None;
        } else {
            self.random.usize(..all.len())
        };
        all.get(nth).map(|path| (*path).clone())
    }

    fn some_directory(&mut self) -> Path {
        self.some(Self::is_directory).unwrap_or_default()
    }

    fn new_path(&mut self) -> Path {
        let mut path = self.some_directory();
        if path.len() > 12 {
            path.truncate(1);
        }
        loop {
            let name = self.name();
            path.push(name);
            if !self.names.contains_key(&path) {
                return path;
            }
            path.pop();
        }
    }

    fn name(&mut self) -> Vec<u8> {
        const PARTS: [&str; 12] = [
            "a", "b", "lib", "x-1.0", ".so", "-", " ", "é", "README", "..", "~", "_",
        ];
        // The name is longer than the 100 and 155 bytes of the header fields.
        let parts = if self.random.u8(..) < 8 { 60 } else { 3 };
        let mut name = String::new();
        for _ in 0..self.random.usize(1..=parts) {
            // A file name has at most 255 bytes.
            if name.len() < 240 {
                name.push_str(PARTS[self.random.usize(..PARTS.len())]);
            }
        }
        name.push(self.random.alphanumeric());
        name.into_bytes()
    }

    fn entry(&mut self, path: &Path, kind: Kind) -> Entry {
        let privileged = self.options.privileged;
        let directory = kind == Kind::Directory;
        let mut mode = if directory {
            self.pick(&[0o755, 0o755, 0o750, 0o700])
        } else {
            self.pick(&[0o644, 0o644, 0o755, 0o600, 0o444])
        };
        let (mut uid, mut gid) = (0, 0);
        let mut xattrs = Vec::new();
        if privileged {
            if self.random.u8(..) < 20 {
                mode |= if directory { 0o1000 } else { 0o4000 };
            }
            uid = self.pick(&[0, 0, 0, 1000, 65534]);
            gid = self.pick(&[0, 0, 50, 3_000_000]);
            if matches!(kind, Kind::File { .. }) && self.random.u8(..) < 12 {
                // The bytes of the attribute are VFS_CAP_REVISION_2 with the effective bit, and
                // CAP_NET_RAW.
                let mut value = vec![1, 0, 0, 2, 0, 0x20, 0, 0];
                value.resize(20, 0);
                xattrs.push((b"security.capability".to_vec(), value));
            }
            if matches!(kind, Kind::File { .. } | Kind::Directory) && self.random.u8(..) < 12 {
                let value = random_bytes(self.random.u64(..), 9).to_vec();
                xattrs.push((b"user.some".to_vec(), value));
            }
        }
        if matches!(kind, Kind::Symlink { .. }) {
            mode = 0o777;
        }
        let nanos = if self.random.bool() {
            0
        } else {
            self.random.u32(..1_000_000_000)
        };
        Entry {
            path: path.join(&b'/'),
            kind,
            mode,
            uid,
            gid,
            modified: Time {
                seconds: self.random.i64(1_500_000_000..1_700_000_000),
                nanos,
            },
            xattrs,
        }
    }

    fn pick(&mut self, of: &[u32]) -> u32 {
        of[self.random.usize(..of.len())]
    }

    /// Adds entries for the parent folders that have no entry in the current layer.
    fn parents(&mut self, path: &Path) {
        for len in 0..path.len() {
            let parent = path[..len].to_vec();
            let skip = !self.options.parents && self.random.u8(..) < 80;
            if !self.touched.contains(&parent)
                && !skip
                && let Some(inode) = self.names.get(&parent)
            {
                let entry = self.inodes[*inode].entry.clone();
                self.tar.entry(&entry, &[]);
            }
            self.touched.insert(parent);
        }
    }

    /// Replaces the entry at a path. A directory keeps its entries.
    fn put(&mut self, path: Path, kind: Kind, data: &[u8]) {
        self.parents(&path);
        let entry = self.entry(&path, kind);
        self.tar.entry(&entry, data);
        if !(entry.kind == Kind::Directory && self.is_directory(&path)) {
            self.remove(&path);
        }
        self.touched.insert(path.clone());
        self.names.insert(path, self.inodes.len());
        self.inodes.push(Inode { entry });
    }

    /// Removes a path with all entries below it.
    fn remove(&mut self, path: &Path) {
        self.names.retain(|name, _| !name.starts_with(path));
        self.touched.retain(|name| !name.starts_with(path));
    }

    fn directory(&mut self, path: Path) {
        self.put(path, Kind::Directory, &[]);
    }

    fn file(&mut self) {
        let path = self.new_path();
        let data = self.data();
        self.put_file(path, data);
    }

    fn put_file(&mut self, path: Path, data: Vec<u8>) {
        let kind = self.file_kind(&data);
        self.put(path, kind, &data);
    }

    fn file_kind(&mut self, data: &[u8]) -> Kind {
        let content = FileDigest::of(data);
        self.contents.insert(content, data.to_vec());
        Kind::File {
            content,
            size: data.len() as u64,
        }
    }

    fn data(&mut self) -> Vec<u8> {
        self.files += 1;
        // The file contents have their own seed, so that versions differ only in the contents.
        let mut random = Rng::with_seed(self.files.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let large = self.options.large && random.u8(..) < 10;
        let size = random.usize(..if large { 10 << 20 } else { 8 << 10 });
        let mut data = match random.u8(0..8) {
            0 => Vec::new(),
            1 => vec![b'a'; size],
            // Many files get the same content here.
            2 => vec![random.u8(..3); 100],
            3 => random_bytes(random.u64(..), size).to_vec(),
            _ => words(&mut random, size),
        };
        for version in 1..=self.options.version {
            let mut random = Rng::with_seed(self.files ^ (u64::from(version) << 48));
            if random.u8(..) < 64 && !data.is_empty() {
                let at = random.usize(..data.len());
                let with = words(&mut random, 40);
                data.splice(at..at, with);
            }
        }
        data
    }

    fn symlink(&mut self) {
        let target = match self.random.u8(0..4) {
            0 => b"../../../../../../../../../../etc/passwd".to_vec(),
            1 => b"/no/where".to_vec(),
            2 => self.name(),
            _ => [
                b"/".to_vec(),
                self.some(|_, _| true).unwrap_or_default().join(&b'/'),
            ]
            .concat(),
        };
        let path = self.new_path();
        self.put(path, Kind::Symlink { target }, &[]);
    }

    fn hard_link(&mut self) {
        let of_file = |this: &Self, path: &Path| {
            let kind = this.names.get(path).map(|at| &this.inodes[*at].entry.kind);
            matches!(kind, Some(Kind::File { .. } | Kind::Fifo))
        };
        let Some(target) = self.some(of_file) else {
            return;
        };
        let Some(inode) = self.names.get(&target).copied() else {
            return;
        };
        let path = self.new_path();
        self.parents(&path);
        // Gives both entries equal attributes, because unpackers disagree on which entry's
        // attributes count.
        let mut entry = self.inodes[inode].entry.clone();
        entry.path = path.join(&b'/');
        entry.kind = Kind::HardLink {
            target: target.join(&b'/'),
        };
        self.tar.entry(&entry, &[]);
        self.touched.insert(path.clone());
        self.names.insert(path, inode);
    }

    fn device(&mut self) {
        let (major, minor) = (self.pick(&[1, 8, 300]), self.pick(&[0, 3, 70_000]));
        let kind = match self.random.u8(0..3) {
            0 if self.options.privileged => Kind::CharDevice { major: 1, minor },
            1 if self.options.privileged => Kind::BlockDevice { major, minor },
            _ => Kind::Fifo,
        };
        let path = self.new_path();
        self.put(path, kind, &[]);
    }

    fn sparse(&mut self) {
        let path = self.new_path();
        let mut data = vec![0; self.random.usize(20_000..100_000)];
        let mut pieces = Vec::new();
        let mut at = 0;
        for _ in 0..self.random.usize(0..7) {
            at += 512 * self.random.usize(1..20);
            let len = 512 * self.random.usize(1..4);
            if at + len > data.len() {
                break;
            }
            data[at..at + len].fill(b'd');
            pieces.push((at, len));
            at += len;
        }
        let kind = self.file_kind(&data);
        self.parents(&path);
        let mut entry = self.entry(&path, kind);
        // This header format has times only in seconds, and no extended attributes.
        (entry.modified.nanos, entry.xattrs) = (0, Vec::new());
        match self.options.sparse_pax {
            true => self.tar.sparse_pax(&entry, &data, &pieces),
            false => self.tar.sparse(&entry, &data, &pieces),
        }
        self.touched.insert(path.clone());
        self.names.insert(path, self.inodes.len());
        self.inodes.push(Inode { entry });
    }

    fn unchanged_path(&mut self) -> Option<Path> {
        self.some(|this, path| path.len() > 1 && !this.touched.contains(path))
    }

    /// Replaces an existing entry by an entry of any kind.
    fn replace(&mut self) {
        let Some(path) = self.unchanged_path() else {
            return;
        };
        match self.random.u8(0..4) {
            0 => self.directory(path),
            1 => {
                let target = self.name();
                self.put(path, Kind::Symlink { target }, &[]);
            }
            2 => self.put(path, Kind::Fifo, &[]),
            _ => {
                let data = self.data();
                self.put_file(path, data);
            }
        }
    }

    fn whiteout(&mut self) {
        let Some(path) = self.unchanged_path() else {
            return;
        };
        self.parents(&path);
        self.remove(&path);
        self.tar.whiteout(&path.join(&b'/'));
    }

    fn opaque(&mut self) {
        let Some(path) = self.some(|this, path| {
            path.len() > 1 && this.is_directory(path) && !this.touched.contains(path)
        }) else {
            return;
        };
        self.directory(path.clone());
        self.names
            .retain(|name, _| *name == path || !name.starts_with(&path));
        self.tar.opaque(&path.join(&b'/'));
    }

    /// Adds a second entry for a file of the current layer.
    fn add_duplicate(&mut self) {
        let of_file = |this: &Self, path: &Path| {
            let inode = this.names.get(path).map(|at| &this.inodes[*at]);
            let file = inode.is_some_and(|inode| matches!(inode.entry.kind, Kind::File { .. }));
            file && this.touched.contains(path)
        };
        if let Some(path) = self.some(of_file) {
            let data = self.data();
            self.put_file(path, data);
        }
    }

    fn tree(&self) -> Vec<Entry> {
        let mut first: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut tree = Vec::new();
        for (path, inode) in &self.names {
            let mut entry = self.inodes[*inode].entry.clone();
            entry.path = path.join(&b'/');
            if let Some(target) = first.get(inode) {
                entry.kind = Kind::HardLink {
                    target: target.clone(),
                };
            } else {
                first.insert(*inode, entry.path.clone());
            }
            tree.push(entry);
        }
        tree
    }
}

/// Returns text that compresses about as well as source code.
fn words(random: &mut Rng, len: usize) -> Vec<u8> {
    const WORDS: [&str; 10] = [
        "return ", "the ", "if ", "(x)", "\n    ", "import ", "== ", "self.", "value", ", ",
    ];
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        text.extend(WORDS[random.usize(..WORDS.len())].as_bytes());
        if random.u8(..) < 40 {
            text.extend(random.u32(..).to_string().as_bytes());
        }
    }
    text.truncate(len);
    text
}

impl Image {
    /// Creates an image whose gzip layers have these tars.
    pub fn of_tars(architecture: &str, tars: &[Vec<u8>]) -> Self {
        let layers = tars.iter().map(|tar| super::layer::gzip(tar)).collect();
        let diff_ids: Vec<String> = tars
            .iter()
            .map(|tar| super::digest_of(tar).to_string())
            .collect();
        Self::of_layers(architecture, &diff_ids, layers)
    }

    /// Creates an image of one layer with one file of `len` zeros. Gzip compresses the layer by a
    /// factor of about a thousand.
    ///
    /// # Panics
    /// Panics if there is not enough memory.
    pub fn of_zeros(len: u64) -> Self {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(len);
        let zeros = std::io::Read::take(std::io::repeat(0), len);
        let added = tar.append_data(&mut header, "zeros", zeros);
        let tar = added.and_then(|()| tar.into_inner());
        let tar = tar.expect("memory takes everything");
        let diff_id = super::digest_of(&tar).to_string();
        let layer = super::layer::gzip_at(flate2::Compression::best(), &tar);
        Self::of_layers("amd64", &[diff_id], vec![layer])
    }
}

/// Returns the uncompressed and the compressed layer of a random image, for tests that need one
/// layer.
pub fn layer(seed: u64) -> (Vec<u8>, Blob) {
    let options = TreeOptions {
        layers: 1,
        ..TreeOptions::default()
    };
    let tree = Image::tree(seed, &options);
    let blob = tree.image.blobs[1].clone();
    (tree.tars[0].clone(), blob)
}
