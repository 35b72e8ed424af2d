//! Indexes a layer in one pass over its tar: reads headers and data, and writes entries, contents
//! and the skeleton (the tar without file contents) to the index.

mod bytes;

use pierhead_oci::{Algorithm, Hasher};

use crate::{Blob, Entry, Error, FileDigest, Kind, Time};

use super::builder::{Builder, Outcome};
use super::chunks::{CHUNKED_FROM, Cutter};
use super::header::{BLOCK, Fields, has_data, text};
use super::pace::Pace;
use super::paths::{self, MAX_PATH, Name};
use super::pax::{MAX_SPECIAL, Pax};
use super::request::Request;
use super::sparse::{self, Ahead, Form, Map, ParsedExtents};
use super::stored::raw;

use bytes::Bytes;

/// Maximum length of the value of an extended attribute in bytes, which is the limit of Linux.
const MAX_XATTR: usize = 64 << 10;

/// Zero bytes, for the holes of sparse files.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Values from extended headers, which override fields of the next header.
#[derive(Default)]
struct Overrides {
    pax: Pax,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

/// Reads a layer to its end. Writes everything except the summary into `builder`.
pub(super) fn walk(
    blob: &dyn Blob,
    request: &Request<'_>,
    pace: &mut dyn Pace,
    builder: &mut Builder,
) -> Result<Outcome, Error> {
    let expected = raw(request.diff_id)
        .ok_or_else(|| Error::Image("the layer's diff ID is no SHA-256".to_owned()))?;
    let mut walk = Walk {
        bytes: Bytes::new(blob, &request.limits, pace)?,
        builder,
        max_entries: request.limits.max_entries,
        entries: 0,
        files: 0,
        cutter: Cutter::new(),
    };
    walk.headers()?;
    let Walk { bytes, builder, .. } = &mut walk;
    // Runtimes read no entries after the end mark. The remaining bytes are read, since the digest
    // covers them.
    while bytes.fill(builder)? {
        let rest = bytes.ready().len();
        builder.skeleton(|skeleton, out| skeleton.bytes(bytes.ready(), out))?;
        bytes.take(rest);
    }
    let (coding, size, digest) = walk.bytes.finish();
    let found = raw(&digest).unwrap_or_default();
    if found != expected {
        return Err(Error::Digest {
            what: "the uncompressed layer".to_owned(),
            expected: request.diff_id.to_string(),
            found: digest.to_string(),
        });
    }
    Ok(Outcome {
        coding,
        blob_size: blob.size(),
        size,
        diff_id: found,
        max_window: request.limits.max_window,
    })
}

struct Walk<'a> {
    bytes: Bytes<'a>,
    builder: &'a mut Builder,
    max_entries: u64,
    entries: u64,
    files: u64,
    cutter: Cutter,
}

impl Walk<'_> {
    fn headers(&mut self) -> Result<(), Error> {
        let mut overrides = Overrides::default();
        while let Some(block) = self.header()? {
            self.entries += 1;
            if self.entries > self.max_entries {
                return Err(image(&format!(
                    "has more entries than the limit of {}",
                    self.max_entries
                )));
            }
            let fields = Fields::parse(&block)?;
            match fields.flag {
                b'x' => overrides.pax = Pax::parse(&self.special(fields.size)?)?,
                b'L' => overrides.name = Some(text(&self.special(fields.size)?).to_vec()),
                b'K' => overrides.link = Some(text(&self.special(fields.size)?).to_vec()),
                b'g' => {
                    // As in Go, a global header is ignored, and also cancels the extended headers
                    // that precede it.
                    self.special(fields.size)?;
                    overrides = Overrides::default();
                }
                _ => self.entry(&block, fields, std::mem::take(&mut overrides))?,
            }
        }
        Ok(())
    }

    /// Returns the next header. Returns `None` at the end of the bytes, or at the end mark: two
    /// blocks of zeros.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, Error> {
        let Some(block) = self.bytes.block(self.builder)? else {
            return Ok(None);
        };
        if block.iter().any(|byte| *byte != 0) {
            self.builder
                .skeleton(|skeleton, out| skeleton.header(&block, out))?;
            return Ok(Some(block));
        }
        let second = self.bytes.block(self.builder)?;
        if second.is_some_and(|second| second.iter().any(|byte| *byte != 0)) {
            return Err(image("has a header after a single block of zeros"));
        }
        let zeros = if second.is_some() { 2 } else { 1 };
        self.builder
            .skeleton(|skeleton, out| skeleton.bytes(&ZEROS[..zeros * BLOCK], out))?;
        Ok(None)
    }

    /// Reads the data of an extended header, and adds this data to the skeleton.
    fn special(&mut self, size: u64) -> Result<Vec<u8>, Error> {
        if size > MAX_SPECIAL {
            return Err(image("has an extended header over the limit of 1 MiB"));
        }
        let mut data = Vec::new();
        self.bytes.data(self.builder, size, |_, part| {
            data.extend_from_slice(part);
            Ok(())
        })?;
        let pad = self.bytes.padding(self.builder, size)?;
        self.builder.skeleton(|skeleton, out| {
            skeleton.bytes(&data, out);
            skeleton.bytes(&pad, out);
        })?;
        Ok(data)
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        mut fields: Fields,
        overrides: Overrides,
    ) -> Result<(), Error> {
        let Overrides { pax, name, link } = overrides;
        let longer = |own: &mut Vec<u8>, key: &str, gnu: Option<Vec<u8>>| {
            if let Some(value) = gnu.as_deref().or(pax.get(key)) {
                *own = value.to_vec();
            }
        };
        let named = name.filter(|name| !name.is_empty());
        longer(&mut fields.name, "path", named);
        longer(
            &mut fields.link,
            "linkpath",
            link.filter(|link| !link.is_empty()),
        );
        let mut modified = Time {
            seconds: fields.seconds,
            nanos: 0,
        };
        modified = pax.time("mtime")?.unwrap_or(modified);
        let stored = pax.number("size")?.unwrap_or(fields.size);
        if fields.flag == 0 {
            let folder = fields.name.last() == Some(&b'/');
            fields.flag = if folder { b'5' } else { b'0' };
        }
        let file = if has_data(fields.flag) {
            Some(self.file(block, &mut fields, &pax, stored)?)
        } else {
            if !matches!(sparse::form(&pax)?, Form::None) {
                return Err(image("has a sparse entry that is not a regular file"));
            }
            None
        };
        let small = |value: i64, what: &str| {
            u32::try_from(value).map_err(|_| image(&format!("has a {what} over 32 bits")))
        };
        let owner = |key: &str, own: i64| -> Result<i64, Error> {
            Ok(match pax.number(key)? {
                Some(number) => i64::try_from(number).unwrap_or(-1),
                None => own,
            })
        };
        let (uid, gid) = (owner("uid", fields.uid)?, owner("gid", fields.gid)?);
        let mode = u32::try_from(fields.mode & 0o7777).unwrap_or(0);
        let name = paths::name(paths::clean(&fields.name)?)?;
        let (path, kind) = match name {
            Name::Whiteout(path) => (path, Kind::Whiteout),
            Name::Opaque(path) => (path, Kind::Opaque),
            Name::Plain(path) => (path, self.kind(&fields, file, &small)?),
        };
        // A whiteout with data, or a file with the path of the root, has no content in the tree.
        // But its bytes are needed to rebuild the tar.
        let rootless = path.is_empty() && matches!(kind, Kind::File { .. });
        if let Some((content, size)) = file
            && size > 0
            && (rootless || matches!(kind, Kind::Whiteout | Kind::Opaque))
        {
            self.builder.file_without_entry(content, size)?;
        }
        if rootless {
            return Ok(());
        }
        let xattrs = pax.xattrs();
        if xattrs
            .iter()
            .any(|(name, _)| name.is_empty() || name.len() > 255)
        {
            return Err(image("has an extended attribute of an impossible name"));
        }
        if xattrs.iter().any(|(_, value)| value.len() > MAX_XATTR) {
            return Err(image("has an extended attribute over the limit of 64 KiB"));
        }
        self.builder.entry(&Entry {
            path,
            kind,
            mode,
            uid: small(uid, "owner")?,
            gid: small(gid, "group")?,
            modified,
            xattrs,
        })
    }

    fn kind(
        &self,
        fields: &Fields,
        file: Option<(FileDigest, u64)>,
        small: &dyn Fn(i64, &str) -> Result<u32, Error>,
    ) -> Result<Kind, Error> {
        let device = || {
            Ok::<_, Error>((
                small(fields.major, "device number")?,
                small(fields.minor, "device number")?,
            ))
        };
        Ok(match (fields.flag, file) {
            (_, Some((content, size))) => Kind::File { content, size },
            (b'1', _) => {
                let target = paths::clean(&fields.link)?;
                if target.is_empty() {
                    return Err(image("has a hard link to nothing"));
                }
                Kind::HardLink { target }
            }
            (b'2', _) if fields.link.is_empty() || fields.link.len() > MAX_PATH => {
                return Err(image("has a symbolic link of an impossible length"));
            }
            (b'2', _) => Kind::Symlink {
                target: fields.link.clone(),
            },
            (b'3', _) => {
                let (major, minor) = device()?;
                Kind::CharDevice { major, minor }
            }
            (b'4', _) => {
                let (major, minor) = device()?;
                Kind::BlockDevice { major, minor }
            }
            (b'5', _) => Kind::Directory,
            (b'6', _) => Kind::Fifo,
            (flag, _) => {
                return Err(image(&format!(
                    "has an entry of the unknown type {flag:#04x}"
                )));
            }
        })
    }

    /// Reads and hashes the content of a regular file. The data of the file takes `stored` bytes of
    /// the tar.
    fn file(
        &mut self,
        block: &[u8; BLOCK],
        fields: &mut Fields,
        pax: &Pax,
        stored: u64,
    ) -> Result<(FileDigest, u64), Error> {
        if !matches!(fields.flag, b'0' | b'7' | b'S') {
            return Err(image(&format!(
                "has an entry of the unknown type {:#04x}",
                fields.flag
            )));
        }
        let (map, size, data) = self.map(block, fields, pax, stored)?;
        self.files = self.files.saturating_add(size);
        self.bytes.allow(self.files)?;
        let marks = self.builder.marks();
        let offset = self.bytes.position();
        let mut sum = Sum {
            hash: Hasher::new(Algorithm::Sha256),
            cutter: (size >= CHUNKED_FROM).then_some(&mut self.cutter),
        };
        match &map {
            None => self
                .bytes
                .data(self.builder, size, |builder, part| sum.feed(part, builder))?,
            Some(map) => {
                let mut at = 0;
                for (begin, len) in &map.0 {
                    self.builder.extent(*begin, *len)?;
                    sum.hole(begin - at, &mut self.bytes, self.builder)?;
                    self.bytes
                        .data(self.builder, *len, |builder, part| sum.feed(part, builder))?;
                    at = begin + len;
                }
                sum.hole(size - at, &mut self.bytes, self.builder)?;
                if map.0.is_empty() && size > 0 {
                    // If the whole file is one hole, an empty extent marks the file as sparse.
                    self.builder.extent(size, 0)?;
                }
            }
        }
        if let Some(cutter) = sum.cutter.take() {
            cutter.end(&mut |record| self.builder.chunk(record))?;
        }
        let digest = sum.hash.finish();
        let content = FileDigest::from_bytes(raw(&digest).unwrap_or_default());
        let pad = self.bytes.padding(self.builder, data)?;
        self.builder.skeleton(|skeleton, out| {
            if size > 0 {
                skeleton.content(size, map.as_ref(), &pad, out);
            } else {
                skeleton.bytes(&pad, out);
            }
        })?;
        self.builder.content(content, offset, size, marks);
        Ok((content, size))
    }

    /// Returns the map of a sparse file, the size of the file, and the number of stored data bytes.
    fn map(
        &mut self,
        block: &[u8; BLOCK],
        fields: &mut Fields,
        pax: &Pax,
        stored: u64,
    ) -> Result<(Option<Map>, u64, u64), Error> {
        let mut data = stored;
        let (extents, size) = if fields.flag == b'S' {
            let mut extents = ParsedExtents::default();
            let (size, mut more) = extents.old(block)?;
            while more {
                let next = self.raw_block()?;
                more = extents.more(&next)?;
            }
            (extents, size)
        } else {
            let extents = match sparse::form(pax)? {
                Form::None => return Ok((None, stored, stored)),
                Form::Here(extents) => extents,
                Form::Ahead => {
                    let mut ahead = Ahead::default();
                    loop {
                        data = data
                            .checked_sub(BLOCK as u64)
                            .ok_or_else(|| image("has a sparse file shorter than its map"))?;
                        let block = self.raw_block()?;
                        if let Some(extents) = ahead.feed(&block)? {
                            break extents;
                        }
                    }
                }
            };
            if let Some(name) = pax.get("GNU.sparse.name") {
                fields.name = name.to_vec();
            }
            let real = pax.number("GNU.sparse.size")?;
            let real = real.or(pax.number("GNU.sparse.realsize")?);
            (extents, real.unwrap_or(stored))
        };
        let map = Map::new(extents.pairs(), size, data)?;
        Ok((Some(map), size, data))
    }

    /// Reads a block, and adds the block to the skeleton.
    fn raw_block(&mut self) -> Result<[u8; BLOCK], Error> {
        let block = self.bytes.block(self.builder)?;
        let block = block.ok_or_else(|| image("is cut short"))?;
        self.builder
            .skeleton(|skeleton, out| skeleton.bytes(&block, out))?;
        Ok(block)
    }
}

/// Computes the digest and the chunks of a file content.
struct Sum<'a> {
    hash: Hasher,
    cutter: Option<&'a mut Cutter>,
}

impl Sum<'_> {
    fn feed(&mut self, part: &[u8], builder: &mut Builder) -> Result<(), Error> {
        self.hash.update(part);
        match &mut self.cutter {
            Some(cutter) => cutter.feed(part, &mut |record| builder.chunk(record)),
            None => Ok(()),
        }
    }

    fn hole(
        &mut self,
        mut len: u64,
        bytes: &mut Bytes<'_>,
        builder: &mut Builder,
    ) -> Result<(), Error> {
        while len > 0 {
            let part = usize::try_from(len).unwrap_or(ZEROS.len()).min(ZEROS.len());
            self.feed(&ZEROS[..part], builder)?;
            len -= part as u64;
            bytes.pause(part as u64)?;
        }
        Ok(())
    }
}

fn image(what: &str) -> Error {
    Error::Image(format!("the layer {what}"))
}
