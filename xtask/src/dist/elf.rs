//! Parses ELF headers: the platform, the required libraries and the required glibc version of a
//! program.

use std::collections::BTreeSet;

use anyhow::Result;
use object::LittleEndian;
use object::elf::{DT_NEEDED, FileHeader64, SHT_DYNSYM};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, Sym as _};

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

impl Elf {
    /// Parses a 64-bit little-endian ELF file.
    ///
    /// # Errors
    /// The file has another format, or is damaged.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let header = FileHeader64::<LittleEndian>::parse(bytes)?;
        let endian = header.endian()?;
        let mut elf = Self {
            arch: Arch::of_machine(header.e_machine(endian).0)?,
            interpreter: None,
            needed: Vec::new(),
            versions: BTreeSet::new(),
            symbols: Vec::new(),
        };
        for segment in header.program_headers(endian, bytes)? {
            if let Some(path) = segment.interpreter(endian, bytes)? {
                elf.interpreter = Some(text(path)?);
            }
        }
        let sections = header.sections(endian, bytes)?;
        if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
            let strings = sections.strings(endian, bytes, strings)?;
            for entry in entries.iter().filter(|it| it.tag(endian) == DT_NEEDED) {
                elf.needed.push(text(entry.string(endian, strings)?)?);
            }
        }
        if let Some((mut libraries, strings)) = sections.gnu_verneed(endian, bytes)? {
            let strings = sections.strings(endian, bytes, strings)?;
            while let Some((_, mut versions)) = libraries.next()? {
                while let Some(version) = versions.next()? {
                    elf.versions.insert(text(version.name(endian, strings)?)?);
                }
            }
        }
        let symbols = sections.symbols(endian, bytes, SHT_DYNSYM)?;
        if let Some(versions) = sections.versions(endian, bytes)? {
            for (index, symbol) in symbols.enumerate() {
                let version = versions.version_index(endian, index).index();
                let version = versions.version(version)?;
                // A version without a library is one that this file defines.
                if let Some(version) = version.filter(|it| it.file().is_some()) {
                    let name = text(symbol.name(endian, symbols.strings())?)?;
                    elf.symbols.push((name, text(version.name())?));
                }
            }
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

fn text(bytes: &[u8]) -> Result<String> {
    Ok(String::from_utf8(bytes.to_vec())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_very_program() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::read(&bytes).unwrap();
        assert_eq!(Some(elf.arch), Arch::of_this_machine());
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
