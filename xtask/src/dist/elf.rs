//! What a program asks of the system that it runs on, read from its ELF headers.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::arch::Arch;

/// A version of glibc, as 2.31.
pub(crate) type Glibc = (u32, u32);

/// A program or a library.
#[derive(Debug)]
pub(crate) struct Elf {
    /// What it runs on.
    pub(crate) arch: Arch,
    /// The dynamic linker that a program names; none in a static program or a library.
    pub(crate) interpreter: Option<String>,
    /// Names of the libraries that it needs, in its own order.
    pub(crate) needed: Vec<String>,
    /// Versions of symbols that it needs, as `GLIBC_2.17`.
    pub(crate) versions: BTreeSet<String>,
}

/// Kinds of program headers.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
/// Tags of the dynamic section.
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const VERSIONS: u64 = 0x6fff_fffe;
const VERSIONS_COUNT: u64 = 0x6fff_ffff;

impl Elf {
    /// Reads 64 bits, little endian.
    ///
    /// # Errors
    /// What is no such file, or broken.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        ensure!(
            bytes.starts_with(b"\x7fELF\x02\x01"),
            "no ELF file of 64 bits"
        );
        let file = Bytes(bytes);
        let mut elf = Self {
            arch: Arch::of_machine(file.half(18)?)?,
            interpreter: None,
            needed: Vec::new(),
            versions: BTreeSet::new(),
        };
        let (table, size, count) = (file.word(32)?, file.half(54)?, file.half(56)?);
        let mut segments = Vec::new();
        for nth in 0..u64::from(count) {
            let at = table
                .checked_add(nth * u64::from(size))
                .context("program headers beyond the file")?;
            segments.push(Segment {
                kind: file.quarter(at)?,
                offset: file.word(at + 8)?,
                address: file.word(at + 16)?,
                size: file.word(at + 32)?,
            });
        }
        if let Some(named) = segments.iter().find(|it| it.kind == INTERPRETER) {
            elf.interpreter = Some(file.text(named.offset)?);
        }
        let Some(dynamic) = segments.iter().find(|it| it.kind == DYNAMIC) else {
            return Ok(elf);
        };
        let mut entries = Vec::new();
        for at in (0..dynamic.size / 16).map(|nth| dynamic.offset + nth * 16) {
            match file.word(at)? {
                0 => break,
                tag => entries.push((tag, file.word(at + 8)?)),
            }
        }
        let value = |tag| entries.iter().find(|it| it.0 == tag).map(|it| it.1);
        let Some(strings) = value(STRINGS) else {
            return Ok(elf);
        };
        let strings = offset(&segments, strings)?;
        for (_, name) in entries.iter().filter(|it| it.0 == NEEDED) {
            elf.needed.push(file.text(strings + name)?);
        }
        if let (Some(at), Some(count)) = (value(VERSIONS), value(VERSIONS_COUNT)) {
            elf.versions = versions(&file, offset(&segments, at)?, count, strings)?;
        }
        Ok(elf)
    }

    /// The oldest glibc that has all that it needs; none if it needs no glibc.
    pub(crate) fn glibc(&self) -> Option<Glibc> {
        self.versions
            .iter()
            .filter_map(|it| glibc(it.strip_prefix("GLIBC_")?))
            .max()
    }
}

/// Reads `2.31`; a third number does not matter.
fn glibc(text: &str) -> Option<Glibc> {
    let mut numbers = text.split('.').map(|it| it.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Two lists in one another: for each library, the versions of its symbols.
fn versions(file: &Bytes<'_>, start: u64, count: u64, strings: u64) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut library = start;
    for _ in 0..count {
        let mut version = library + u64::from(file.quarter(library + 8)?);
        for _ in 0..file.half(library + 2)? {
            let name = file.quarter(version + 8)?;
            found.insert(file.text(strings + u64::from(name))?);
            version += u64::from(file.quarter(version + 12)?);
        }
        library += u64::from(file.quarter(library + 12)?);
    }
    Ok(found)
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// Where in the file an address of the loaded program lies.
fn offset(segments: &[Segment], address: u64) -> Result<u64> {
    segments
        .iter()
        .filter(|it| it.kind == LOAD)
        .find_map(|it| {
            let within = address.checked_sub(it.address)?;
            (within < it.size).then(|| it.offset.checked_add(within))?
        })
        .context("an address in no segment")
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let found = usize::try_from(at)
            .ok()
            .and_then(|at| self.0.get(at..)?.first_chunk());
        found.copied().context("the file ends too early")
    }

    fn half(&self, at: u64) -> Result<u16> {
        self.take(at).map(u16::from_le_bytes)
    }

    fn quarter(&self, at: u64) -> Result<u32> {
        self.take(at).map(u32::from_le_bytes)
    }

    fn word(&self, at: u64) -> Result<u64> {
        self.take(at).map(u64::from_le_bytes)
    }

    fn text(&self, at: u64) -> Result<String> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..));
        let text = rest.and_then(|rest| rest.split(|byte| *byte == 0).next());
        Ok(String::from_utf8(text.context("no text there")?.to_vec())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_very_program() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::read(&bytes).unwrap();
        assert_eq!(Some(elf.arch), Arch::here());
        assert!(elf.interpreter.unwrap().contains("/ld-linux"));
        assert!(elf.needed.iter().any(|it| it == "libc.so.6"));
        assert!(
            elf.versions.iter().any(|it| it.starts_with("GLIBC_2.")),
            "{:?}",
            elf.versions
        );
        for length in [0, 5, 17, 63, 200, 1000] {
            assert!(Elf::read(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let elf = |versions: &[&str]| Elf {
            arch: Arch::Amd64,
            interpreter: None,
            needed: Vec::new(),
            versions: versions.iter().map(|&it| it.to_owned()).collect(),
        };
        let many = elf(&["GLIBC_2.9", "GLIBC_2.31", "GLIBC_2.3.4", "GCC_4.2.0"]);
        assert_eq!(many.glibc(), Some((2, 31)));
        assert_eq!(elf(&["GCC_4.2.0", "GLIBC_PRIVATE"]).glibc(), None);
    }
}
