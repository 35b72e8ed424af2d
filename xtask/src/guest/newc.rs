//! Writes cpio archives in the `newc` format, which the kernel unpacks as its initramfs.

/// A cpio archive in memory. The kernel unpacks concatenated archives one after the other.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    /// Adds a folder. The parent folders of the folder must already be in the archive.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds an executable file.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    /// Returns the complete archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let fields = [
            u64::from(self.entries), // inode
            u64::from(mode),
            0, // user
            0, // group
            1, // links
            0, // time
            content.len() as u64,
            0, // device: major, minor, then those of a device node
            0,
            0,
            0,
            path.len() as u64 + 1,
            0, // checksum: `newc` has none
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_110_bytes_and_parts_begin_at_multiples_of_four() {
        let mut archive = Archive::default();
        archive.file("init", b"#!sh\n");
        let bytes = archive.finish();
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[54..62], b"00000005", "length of the content");
        assert_eq!(&bytes[94..102], b"00000005", "length of the name");
        assert_eq!(&bytes[110..116], b"init\0\0");
        assert_eq!(&bytes[116..124], b"#!sh\n\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
