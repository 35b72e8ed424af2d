//! Reads the interpreter, the needed libraries and the search path of a little-endian 64-bit ELF
//! file. For any other file, the list of libraries is empty.
//!
//! Existing ELF crates need the file in memory, and a program may have hundreds of megabytes. This
//! reader reads less than 64 KiB of the file.

use crate::Error;

/// First bytes of a little-endian 64-bit ELF file.
pub(super) const MAGIC: &[u8] = b"\x7fELF\x02\x01";

/// Maximum number of program headers of an ELF file.
const MAX_HEADERS: u64 = 64;
/// Maximum bytes that are read of the dynamic section of an ELF file.
const MAX_DYNAMIC: u64 = 16 << 10;
/// Maximum length in bytes of a name in an ELF file.
const MAX_NAME: u64 = 1 << 10;
/// Maximum number of needed libraries, and of folders in the search path, of an ELF file.
const MAX_NEEDED: usize = 256;

// Types of program headers in an ELF file.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

// Tags of entries in the dynamic section of an ELF file.
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// The files that a program names: its interpreter and its libraries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Path of the dynamic linker (`PT_INTERP`).
    pub(super) interpreter: Option<Vec<u8>>,
    /// Names of the needed libraries (`DT_NEEDED`).
    pub(super) needed: Vec<Vec<u8>>,
    /// Search path (`DT_RUNPATH`, or else `DT_RPATH`), with `$ORIGIN` unchanged.
    pub(super) folders: Vec<Vec<u8>>,
}

/// A function that fills the buffer with the file's bytes at an offset. Callers must not read
/// beyond the end of the file.
pub(super) type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), Error>;

/// Reads the interpreter, libraries and search path of a file of `size` bytes. Reads less than 64
/// KiB. Returns `None` when the file is malformed.
pub(super) fn read(size: u64, read: ReadAt<'_>) -> Result<Option<Links>, Error> {
    let file = File { size, read };
    let Some(head) = file.bytes(0, 64)? else {
        return Ok(None);
    };
    let Some(offset) = u64_at(&head, 32) else {
        return Ok(None);
    };
    let (entry, count) = (u64::from(u16_at(&head, 54)), u64::from(u16_at(&head, 56)));
    if !head.starts_with(MAGIC) || entry != 56 || count > MAX_HEADERS {
        return Ok(None);
    }
    let Some(table) = file.bytes(offset, entry * count)? else {
        return Ok(None);
    };
    let segments: Vec<Segment> = table.chunks_exact(56).filter_map(Segment::parse).collect();
    let mut links = Links::default();
    let of = |kind| {
        segments
            .iter()
            .find(move |segment: &&Segment| segment.kind == kind)
    };
    if let Some(segment) = of(INTERPRETER)
        && let Some(path) = file.bytes(segment.offset, segment.len.min(MAX_NAME))?
    {
        links.interpreter = Some(until_zero(&path).to_vec());
    }
    let Some(dynamic) = of(DYNAMIC) else {
        return Ok(Some(links));
    };
    let Some(dynamic) = file.bytes(dynamic.offset, dynamic.len.min(MAX_DYNAMIC))? else {
        return Ok(None);
    };
    let tags: Vec<(u64, u64)> = dynamic
        .chunks_exact(16)
        .filter_map(|tag| Some((u64_at(tag, 0)?, u64_at(tag, 8)?)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let all = |wanted| {
        tags.iter()
            .filter(move |(tag, _)| *tag == wanted)
            .map(|(_, value)| *value)
    };
    let strings = all(STRINGS)
        .next()
        .and_then(|address| offset_of(&segments, address));
    let Some(strings) = strings else {
        return Ok(Some(links));
    };
    for value in all(NEEDED).take(MAX_NEEDED) {
        links.needed.extend(file.name(strings, value)?);
    }
    let folders = all(RUNPATH).next().or_else(|| all(RPATH).next());
    if let Some(folders) = folders
        .map(|value| file.name(strings, value))
        .transpose()?
        .flatten()
    {
        let folders = folders.split(|byte| *byte == b':').take(MAX_NEEDED);
        links.folders = folders.map(<[u8]>::to_vec).collect();
    }
    Ok(Some(links))
}

struct File<'a> {
    size: u64,
    read: ReadAt<'a>,
}

impl File<'_> {
    /// Reads a range of the file. Returns `None` when the range exceeds the file. The caller must
    /// limit `len`, since this is the size of the buffer.
    fn bytes(&self, offset: u64, len: u64) -> Result<Option<Vec<u8>>, Error> {
        let end = offset.checked_add(len);
        let Some(len) = end
            .filter(|end| *end <= self.size)
            .and_then(|_| usize::try_from(len).ok())
        else {
            return Ok(None);
        };
        let mut bytes = vec![0; len];
        (self.read)(offset, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Reads a name from the string table of the file.
    fn name(&self, strings: u64, value: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(start) = strings.checked_add(value) else {
            return Ok(None);
        };
        let len = self.size.saturating_sub(start).min(MAX_NAME);
        let bytes = self.bytes(start, len)?;
        Ok(bytes
            .map(|bytes| until_zero(&bytes).to_vec())
            .filter(|name| !name.is_empty()))
    }
}

/// A program header of an ELF file.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

impl Segment {
    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            kind: u32::from_le_bytes(*bytes.first_chunk()?),
            offset: u64_at(bytes, 8)?,
            address: u64_at(bytes, 16)?,
            len: u64_at(bytes, 32)?,
        })
    }
}

/// Returns the file offset of a virtual address.
fn offset_of(segments: &[Segment], address: u64) -> Option<u64> {
    segments
        .iter()
        .filter(|segment| segment.kind == LOAD)
        .find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            (inside < segment.len).then(|| segment.offset.checked_add(inside))?
        })
}

/// Returns the bytes before the first NUL byte.
fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk());
    two.map_or(0, |two| u16::from_le_bytes(*two))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(bytes: &[u8]) -> Option<Links> {
        let at = |offset: u64, buf: &mut [u8]| {
            let start = usize::try_from(offset).expect("small");
            buf.copy_from_slice(&bytes[start..start + buf.len()]);
            Ok(())
        };
        read(bytes.len() as u64, &at).expect("memory does not fail")
    }

    /// Returns an ELF program with three segments. The strings of the program are at address 0x1200
    /// and at offset 0x200.
    fn program() -> Vec<u8> {
        let mut file = vec![0; 0x400];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(32, &64_u64.to_le_bytes());
        put(54, &56_u16.to_le_bytes());
        put(56, &3_u16.to_le_bytes());
        let segments = [
            (LOAD, 0_u64, 0x1000_u64, 0x400_u64),
            (DYNAMIC, 0x180, 0x1180, 0x50),
            (INTERPRETER, 0x300, 0x1300, 12),
        ];
        for (nth, (kind, offset, address, len)) in segments.into_iter().enumerate() {
            let at = 64 + nth * 56;
            put(at, &kind.to_le_bytes());
            put(at + 8, &offset.to_le_bytes());
            put(at + 16, &address.to_le_bytes());
            put(at + 32, &len.to_le_bytes());
        }
        let tags = [
            (NEEDED, 1_u64),
            (NEEDED, 11),
            (STRINGS, 0x1200),
            (RUNPATH, 21),
            (0, 0),
        ];
        for (nth, (tag, value)) in tags.into_iter().enumerate() {
            put(0x180 + nth * 16, &tag.to_le_bytes());
            put(0x188 + nth * 16, &value.to_le_bytes());
        }
        put(0x201, b"libc.so.6\0libz.so.1\0$ORIGIN/../lib:/opt\0");
        put(0x300, b"/lib/ld.so.1");
        file
    }

    #[test]
    fn the_reader_finds_interpreter_libraries_and_search_path() {
        let found = links(&program()).expect("sound");
        assert_eq!(found.interpreter.as_deref(), Some(&b"/lib/ld.so.1"[..]));
        assert_eq!(found.needed, [b"libc.so.6".to_vec(), b"libz.so.1".to_vec()]);
        assert_eq!(
            found.folders,
            [b"$ORIGIN/../lib".to_vec(), b"/opt".to_vec()]
        );
    }

    #[test]
    fn a_hostile_program_is_refused_or_needs_few_libraries() {
        let sound = program();
        for len in 0..sound.len() {
            let _ = links(&sound[..len]);
        }
        // In turn, sets each byte of the headers to extreme values. The reader must not panic.
        for at in 0..0x1d0 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut hostile = sound.clone();
                hostile[at] = value;
                if let Some(links) = links(&hostile) {
                    assert!(links.needed.len() <= MAX_NEEDED);
                }
            }
        }
        let mut many = sound;
        many[56] = 0xff;
        assert_eq!(links(&many), None);
    }
}
