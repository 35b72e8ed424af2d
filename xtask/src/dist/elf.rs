//! Parses ELF headers: the platform, the required libraries and the required glibc version of a
//! program.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::arch::Arch;

/// A version of glibc, such as 2.31.
pub(crate) type Glibc = (u32, u32);

/// A program or a library.
#[derive(Debug)]
pub(crate) struct Elf {
    /// Platform on which the file runs.
    pub(crate) arch: Arch,
    /// Dynamic linker that a program names. `None` for a static program or a library.
    pub(crate) interpreter: Option<String>,
    /// Names of the required libraries, in the order of the file.
    pub(crate) needed: Vec<String>,
    /// Required symbol versions, such as `GLIBC_2.17`.
    pub(crate) versions: BTreeSet<String>,
    /// Required symbols with a version, as pairs of symbol and version.
    pub(crate) symbols: Vec<(String, String)>,
}

/// Types of program headers.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
/// Tags of entries in the dynamic section.
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const VERSIONS: u64 = 0x6fff_fffe;
const VERSIONS_COUNT: u64 = 0x6fff_ffff;
/// Types of sections.
const SYMBOLS: u32 = 11;
const SYMBOL_VERSIONS: u32 = 0x6fff_ffff;

impl Elf {
    /// Parses a 64-bit little-endian ELF file.
    ///
    /// # Errors
    /// The file has another format, or is damaged.
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
            symbols: Vec::new(),
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
            let versions = versions(&file, offset(&segments, at)?, count, strings)?;
            elf.symbols = symbols(&file, &versions, strings)?;
            elf.versions = versions.into_values().collect();
        }
        Ok(elf)
    }

    /// The oldest glibc with all required symbol versions. `None` if the file does not need glibc.
    pub(crate) fn glibc(&self) -> Option<Glibc> {
        self.versions
            .iter()
            .filter_map(|it| glibc(it.strip_prefix("GLIBC_")?))
            .max()
    }
}

impl Elf {
    /// Required symbols that glibc version `glibc_` lacks or has under another version.
    pub(crate) fn newer_than(&self, glibc_: Glibc) -> impl Iterator<Item = (&str, &str)> {
        let newer = move |version: &str| {
            let version = version.strip_prefix("GLIBC_").and_then(glibc);
            version.is_some_and(|it| it > glibc_)
        };
        let symbols = self.symbols.iter().map(|(name, of)| (&**name, &**of));
        symbols.filter(move |(_, version)| newer(version))
    }
}

/// Parses a version such as `2.31`. Ignores a third number.
fn glibc(text: &str) -> Option<Glibc> {
    let mut numbers = text.split('.').map(|it| it.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Parses the nested lists of required versions: each library has a list of symbol versions. The
/// key of the result is the number by which a symbol refers to its version.
fn versions(
    file: &Bytes<'_>,
    start: u64,
    count: u64,
    strings: u64,
) -> Result<BTreeMap<u16, String>> {
    let mut found = BTreeMap::new();
    let mut library = start;
    for _ in 0..count {
        let mut version = library + u64::from(file.quarter(library + 8)?);
        for _ in 0..file.half(library + 2)? {
            let name = file.quarter(version + 8)?;
            found.insert(
                file.half(version + 6)?,
                file.text(strings + u64::from(name))?,
            );
            version += u64::from(file.quarter(version + 12)?);
        }
        library += u64::from(file.quarter(library + 12)?);
    }
    Ok(found)
}

/// Parses two parallel tables: the symbols, and for each symbol the number of its version.
fn symbols(
    file: &Bytes<'_>,
    versions: &BTreeMap<u16, String>,
    strings: u64,
) -> Result<Vec<(String, String)>> {
    let (table, size, count) = (file.word(40)?, file.half(58)?, file.half(60)?);
    let mut sections = BTreeMap::new();
    for nth in 0..u64::from(count) {
        let at = table
            .checked_add(nth * u64::from(size))
            .context("section headers beyond the file")?;
        sections.insert(
            file.quarter(at + 4)?,
            (file.word(at + 24)?, file.word(at + 32)?),
        );
    }
    let (Some((names, _)), Some((numbers, bytes))) =
        (sections.get(&SYMBOLS), sections.get(&SYMBOL_VERSIONS))
    else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for nth in 0..bytes / 2 {
        // The highest bit marks a hidden symbol.
        let number = file.half(numbers + nth * 2)? & 0x7fff;
        if let Some(version) = versions.get(&number) {
            let name = file.quarter(names + nth * 24)?;
            found.push((file.text(strings + u64::from(name))?, version.clone()));
        }
    }
    Ok(found)
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// Offset in the file of a memory address of the loaded program.
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
        let of = |name: &str| elf.symbols.iter().find(|it| it.0 == name).map(|it| &it.1);
        assert!(of("__libc_start_main").is_some_and(|it| elf.versions.contains(it)));
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
            symbols: versions
                .iter()
                .map(|&it| ("f".to_owned(), it.to_owned()))
                .collect(),
        };
        let many = elf(&["GLIBC_2.9", "GLIBC_2.31", "GLIBC_2.3.4", "GCC_4.2.0"]);
        assert_eq!(many.glibc(), Some((2, 31)));
        assert_eq!(many.newer_than((2, 31)).count(), 0);
        let newer: Vec<_> = many.newer_than((2, 9)).collect();
        assert_eq!(newer, [("f", "GLIBC_2.31")]);
        assert_eq!(elf(&["GCC_4.2.0", "GLIBC_PRIVATE"]).glibc(), None);
    }
}
