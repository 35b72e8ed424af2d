//! Writes the tar entries of a test layer in all formats: ustar, GNU and PAX, including sparse
//! files and whiteouts.

use pierhead_toc::{Entry, Kind};
use tar::{Builder, EntryType, Header};

/// Writes the tar of one layer into memory.
pub(super) struct Writer {
    tar: Builder<Vec<u8>>,
    /// Whether names begin with `./`, as in the output of `tar -C root .`.
    dot: bool,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new(false)
    }
}

const DONE: &str = "a write to memory";

impl Writer {
    pub(super) fn new(dot: bool) -> Self {
        Self {
            tar: Builder::new(Vec::new()),
            dot,
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.tar.into_inner().expect(DONE)
    }

    fn name(&self, path: &[u8], directory: bool) -> Vec<u8> {
        let mut name = if self.dot || path.is_empty() {
            b"./".to_vec()
        } else {
            Vec::new()
        };
        name.extend(path);
        if directory && !name.ends_with(b"/") {
            name.push(b'/');
        }
        name
    }

    /// Writes the attributes that only PAX headers support.
    fn pax(&mut self, entry: &Entry) {
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        let time = entry.modified;
        if time.nanos != 0 {
            let text = format!("{}.{:09}", time.seconds, time.nanos);
            records.push(("mtime".to_owned(), text.into_bytes()));
        }
        for (name, value) in &entry.xattrs {
            let name = String::from_utf8_lossy(name);
            records.push((format!("SCHILY.xattr.{name}"), value.clone()));
        }
        if !records.is_empty() {
            let records = records
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_slice()));
            self.tar.append_pax_extensions(records).expect(DONE);
        }
    }

    fn header(entry: &Entry, size: usize) -> Header {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(entry.uid.into());
        header.set_gid(entry.gid.into());
        header.set_mtime(entry.modified.seconds.unsigned_abs());
        header.set_size(size as u64);
        header
    }

    pub(super) fn entry(&mut self, entry: &Entry, data: &[u8]) {
        self.pax(entry);
        let mut header = Self::header(entry, data.len());
        let mut device = |kind, major, minor| {
            let set = header
                .set_device_major(major)
                .and_then(|()| header.set_device_minor(minor));
            set.expect("a GNU header");
            kind
        };
        let (kind, target) = match &entry.kind {
            Kind::Directory => (EntryType::Directory, None),
            Kind::Symlink { target } => (EntryType::Symlink, Some(target.clone())),
            Kind::HardLink { target } => (EntryType::Link, Some(self.name(target, false))),
            Kind::CharDevice { major, minor } => (device(EntryType::Char, *major, *minor), None),
            Kind::BlockDevice { major, minor } => (device(EntryType::Block, *major, *minor), None),
            Kind::Fifo => (EntryType::Fifo, None),
            _ => (EntryType::Regular, None),
        };
        header.set_entry_type(kind);
        let name = self.name(&entry.path, kind == EntryType::Directory);
        if let Some(target) = target {
            self.long(b'K', &target);
            fill(&mut header.as_old_mut().linkname, &target);
        }
        self.append(header, &name, data);
    }

    pub(super) fn whiteout(&mut self, path: &[u8]) {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (folder, name) = path.split_at(slash.map_or(0, |slash| slash + 1));
        self.marker(&[folder, b".wh.", name].concat());
    }

    pub(super) fn opaque(&mut self, path: &[u8]) {
        self.marker(&[path, b"/.wh..wh..opq"].concat());
    }

    fn marker(&mut self, path: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(0);
        header.set_entry_type(EntryType::Regular);
        let name = self.name(path, false);
        self.append(header, &name, &[]);
    }

    /// Writes a sparse file in GNU's old format: up to four pieces are in the header, and more
    /// pieces in extension blocks.
    pub(super) fn sparse(&mut self, entry: &Entry, data: &[u8], pieces: &[(usize, usize)]) {
        // An empty piece marks the end of the file.
        let mut pieces = pieces.to_vec();
        pieces.push((data.len(), 0));
        let stored: Vec<u8> = pieces
            .iter()
            .flat_map(|(at, len)| &data[*at..at + len])
            .copied()
            .collect();
        let mut header = Self::header(entry, stored.len());
        header.set_entry_type(EntryType::GNUSparse);
        let name = self.name(&entry.path, false);
        self.long(b'L', &name);
        fill(&mut header.as_old_mut().name, &name);
        let mut more = Vec::new();
        if let Some(gnu) = header.as_gnu_mut() {
            octal(&mut gnu.realsize, data.len());
            for (slot, piece) in gnu.sparse.iter_mut().zip(&pieces) {
                octal(&mut slot.offset, piece.0);
                octal(&mut slot.numbytes, piece.1);
            }
            gnu.isextended[0] = u8::from(pieces.len() > 4);
            let mut rest = pieces.get(4..).unwrap_or_default().chunks(21).peekable();
            while let Some(some) = rest.next() {
                let mut block = [0; 512];
                for (slot, piece) in block.chunks_exact_mut(24).zip(some) {
                    octal(&mut slot[..12], piece.0);
                    octal(&mut slot[12..], piece.1);
                }
                block[504] = u8::from(rest.peek().is_some());
                more.extend(block);
            }
        }
        header.set_cksum();
        let out = self.tar.get_mut();
        out.extend(header.as_bytes());
        out.extend(more);
        pad(out, &stored);
    }

    /// Writes a sparse file in the PAX format 1.0, which Go's unpackers support: the map precedes
    /// the bytes.
    pub(super) fn sparse_pax(&mut self, entry: &Entry, data: &[u8], pieces: &[(usize, usize)]) {
        let name = self.name(&entry.path, false);
        let size = data.len().to_string();
        let records: [(&str, &[u8]); 4] = [
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", &name),
            ("GNU.sparse.realsize", size.as_bytes()),
        ];
        self.tar.append_pax_extensions(records).expect(DONE);
        let mut map = format!("{}\n", pieces.len());
        for (at, len) in pieces {
            map.push_str(&format!("{at}\n{len}\n"));
        }
        let mut stored = map.into_bytes();
        stored.resize(stored.len().next_multiple_of(512), 0);
        for (at, len) in pieces {
            stored.extend(&data[*at..at + len]);
        }
        let mut header = Self::header(entry, stored.len());
        header.set_entry_type(EntryType::Regular);
        self.append(header, b"GNUSparseFile.0/sparse", &stored);
    }

    /// Writes a name that is too long for a header as a separate entry before that header.
    fn long(&mut self, kind: u8, name: &[u8]) {
        if name.len() <= 100 {
            return;
        }
        let mut header = Header::new_gnu();
        fill(&mut header.as_old_mut().name, b"././@LongLink");
        header.set_entry_type(EntryType::new(kind));
        header.set_size(name.len() as u64 + 1);
        header.set_cksum();
        let out = self.tar.get_mut();
        out.extend(header.as_bytes());
        pad(out, &[name, &[0]].concat());
    }

    fn append(&mut self, mut header: Header, name: &[u8], data: &[u8]) {
        self.long(b'L', name);
        fill(&mut header.as_old_mut().name, name);
        header.set_cksum();
        let out = self.tar.get_mut();
        out.extend(header.as_bytes());
        pad(out, data);
    }
}

fn fill(field: &mut [u8; 100], with: &[u8]) {
    let len = with.len().min(field.len());
    field[..len].copy_from_slice(&with[..len]);
}

fn octal(field: &mut [u8], number: usize) {
    let text = format!("{number:011o}");
    field[..11].copy_from_slice(text.as_bytes());
}

fn pad(out: &mut Vec<u8>, data: &[u8]) {
    out.extend(data);
    out.resize(out.len().next_multiple_of(512), 0);
}
