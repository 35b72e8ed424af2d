//! Checks for the fuzz target `elf`: the ELF reader, which finds the libraries that a program
//! needs, obeys its limits on any input. The input comes from images that clients choose.

use crate::plan::elf_needs;

/// Reads arbitrary bytes as an ELF program. The checked property: the reader reads at most 320 KiB,
/// and returns at most 256 names of at most 1024 bytes.
pub fn elf(bytes: &[u8]) {
    let read = std::cell::Cell::new(0);
    let at = |offset: u64, buf: &mut [u8]| {
        let start = usize::try_from(offset).expect("within the file");
        buf.copy_from_slice(&bytes[start..start + buf.len()]);
        read.set(read.get() + buf.len());
        Ok(())
    };
    let needed = elf_needs(bytes.len() as u64, &at).expect("memory does not fail");
    assert!(needed.len() <= 256);
    assert!(
        needed
            .iter()
            .all(|name| !name.is_empty() && name.len() <= 1024)
    );
    assert!(read.get() <= 320 << 10, "{} bytes were read", read.get());
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn elf() {
        each("elf", super::elf);
    }
}
