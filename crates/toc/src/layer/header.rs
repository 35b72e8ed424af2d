//! Parses one header block (512 bytes) of a tar.
//!
//! The crate `tar` gives the positions of fields. But this module itself parses the numbers, by the
//! rules of Go, because the crate `tar` refuses the empty numbers that GNU tar writes for devices,
//! and supports no negative numbers. The type `tar::Archive` is not used, since it trusts the sizes
//! of links, and does not return the padding, which a skeleton (the tar without file contents)
//! needs.

use tar::Header;

use crate::Error;

/// Size of a tar block in bytes.
pub(super) const BLOCK: usize = 512;

/// The fields of a header. Names are the unchanged bytes of the header.
pub(super) struct Fields {
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: i64,
    pub(super) uid: i64,
    pub(super) gid: i64,
    /// The size that the header states, in bytes.
    pub(super) size: u64,
    pub(super) seconds: i64,
    pub(super) flag: u8,
    pub(super) major: i64,
    pub(super) minor: i64,
}

impl Fields {
    /// Parses a header block.
    ///
    /// # Errors
    /// [`Error::Image`] for a wrong checksum or an invalid number.
    pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Self, Error> {
        let header = Header::from_byte_slice(block);
        let old = header.as_old();
        check(block, number(&old.cksum)?)?;
        let ustar = &block[257..263] == b"ustar\0";
        let gnu = header.as_gnu();
        let devices = match (ustar, gnu) {
            (true, _) => Some((&block[329..337], &block[337..345])),
            (false, Some(gnu)) => Some((&gnu.dev_major[..], &gnu.dev_minor[..])),
            (false, None) => None,
        };
        let (major, minor) = match devices {
            Some((major, minor)) => (number(major)?, number(minor)?),
            None => (0, 0),
        };
        let prefix = match (ustar, &block[508..] == b"tar\0") {
            (true, true) => text(&block[345..476]),
            (true, false) => text(&block[345..500]),
            (false, _) => b"",
        };
        let mut name = prefix.to_vec();
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(text(&old.name));
        Ok(Self {
            name,
            link: text(&old.linkname).to_vec(),
            mode: number(&old.mode)?,
            uid: number(&old.uid)?,
            gid: number(&old.gid)?,
            size: u64::try_from(number(&old.size)?).map_err(|_| bad("a negative size"))?,
            seconds: number(&old.mtime)?,
            flag: block[156],
            major,
            minor,
        })
    }
}

/// Whether data follows a header with this type flag. Links, devices and directories have no data,
/// whatever size the header states.
pub(super) fn has_data(flag: u8) -> bool {
    !matches!(flag, b'1'..=b'6')
}

/// Returns the bytes of a field before its first NUL byte.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Verifies the checksum of a header. Old programs computed the checksum with signed bytes, so the
/// signed and the unsigned sum are both valid.
fn check(block: &[u8; BLOCK], sum: i64) -> Result<(), Error> {
    let fields = block[..148].iter().chain(&[b' '; 8]).chain(&block[156..]);
    let (unsigned, signed) = fields.fold((0, 0), |(unsigned, signed), byte| {
        (
            unsigned + i64::from(*byte),
            signed + i64::from(byte.cast_signed()),
        )
    });
    if sum == unsigned || sum == signed {
        Ok(())
    } else {
        Err(bad("a wrong checksum"))
    }
}

/// Parses a number: octal digits between spaces or NULs, of which there may be none, for 0; or base
/// 256, marked by the top bit of the first byte.
pub(super) fn number(field: &[u8]) -> Result<i64, Error> {
    let none = || bad("an invalid number");
    let Some(first) = field.first().filter(|first| **first & 0x80 != 0) else {
        let pad = |byte: &u8| *byte == b' ' || *byte == 0;
        let Some(begin) = field.iter().position(|byte| !pad(byte)) else {
            return Ok(0);
        };
        let digits = text(&field[begin..]).trim_ascii_end();
        if !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
            return Err(none());
        }
        return digits.iter().try_fold(0i64, |n, digit| {
            n.checked_mul(8)
                .and_then(|n| n.checked_add(i64::from(digit - b'0')))
                .ok_or_else(none)
        });
    };
    // A negative number is in two's complement, so flipping all bits gives its absolute value minus
    // 1.
    let flip = if first & 0x40 != 0 { 0xff } else { 0 };
    let bytes = field.iter().enumerate().map(|(at, byte)| match at {
        0 => (byte ^ flip) & 0x7f,
        _ => byte ^ flip,
    });
    let mut value = 0i64;
    for byte in bytes {
        value = value
            .checked_mul(256)
            .and_then(|n| n.checked_add(i64::from(byte)))
            .ok_or_else(none)?;
    }
    Ok(if flip == 0 { value } else { !value })
}

fn bad(what: &str) -> Error {
    Error::Image(format!("the layer has a header with {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (field, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"644\0junk", Some(0o644)),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\0\x02\0\0\0\0\0\0\0", Some(2 << 56)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"0000698\0", None),
            (b"-000001\0", None),
            (b"0x00001\0", None),
        ] {
            assert_eq!(number(field).ok(), value, "{}", field.escape_ascii());
        }
    }

    proptest! {
        /// A field in octal digits or in base 256 has the number that was written.
        #[test]
        fn a_number_is_read_as_it_was_written(value in any::<i64>(), small in 0..1i64 << 33) {
            let octal = format!("{small:011o}\0");
            prop_assert_eq!(number(octal.as_bytes()).unwrap(), small);
            // Base 256 in a field of 12 bytes: the sign fills the first bytes.
            let fill = if value < 0 { 0xff } else { 0 };
            let mut field = [fill; 12];
            field[4..].copy_from_slice(&value.to_be_bytes());
            field[0] |= 0x80;
            prop_assert_eq!(number(&field).unwrap(), value);
        }

        #[test]
        fn any_field_is_a_number_or_an_error(field in proptest::collection::vec(any::<u8>(), 0..13)) {
            if let Err(error) = number(&field) {
                prop_assert!(matches!(error, Error::Image(_)));
            }
        }

        /// The checksum detects a flipped bit anywhere in a header, also in the checksum itself,
        /// unless the field still has the same number.
        #[test]
        fn a_flipped_bit_is_found(at in 0..BLOCK, bit in 0..8u32) {
            let mut header = Header::new_ustar();
            header.set_path("a/b").unwrap();
            header.set_size(7);
            header.set_mode(0o644);
            header.set_cksum();
            let mut block = *header.as_bytes();
            prop_assert!(Fields::parse(&block).is_ok());
            let checksum = 148..156;
            let before = number(&block[checksum.clone()]).unwrap();
            block[at] ^= 1 << bit;
            // A leading zero may become a space, and a NUL or a space ends the digits.
            let is_same_number = number(&block[checksum.clone()]).ok() == Some(before);
            let is_harmless = checksum.contains(&at) && is_same_number;
            prop_assert_eq!(Fields::parse(&block).is_ok(), is_harmless);
        }
    }

    #[test]
    fn a_ustar_header_has_a_prefix_and_devices() {
        let mut header = Header::new_ustar();
        let long = format!("{}/{}", "p".repeat(120), "n".repeat(90));
        header.set_path(&long).unwrap();
        header.set_entry_type(tar::EntryType::Char);
        header.set_mode(0o600);
        header.set_uid(70);
        header.set_gid(71);
        header.set_mtime(72);
        header.set_size(0);
        header.set_device_major(5).unwrap();
        header.set_device_minor(6).unwrap();
        header.set_cksum();
        let fields = Fields::parse(header.as_bytes()).unwrap();
        assert_eq!(fields.name, long.as_bytes());
        let numbers = (fields.mode, fields.uid, fields.gid, fields.seconds);
        assert_eq!(numbers, (0o600, 70, 71, 72));
        assert_eq!((fields.flag, fields.major, fields.minor), (b'3', 5, 6));
        assert!(!has_data(fields.flag) && has_data(b'0') && has_data(0) && has_data(b'7'));
    }

    #[test]
    fn a_negative_size_is_refused_and_a_signed_checksum_is_valid() {
        let mut header = Header::new_gnu();
        header.set_path("a").unwrap();
        header.set_mode(0o644);
        header.as_old_mut().size = [0xff; 12];
        header.set_cksum();
        assert!(Fields::parse(header.as_bytes()).is_err());
        header.set_size(1);
        header.as_old_mut().linkname[0] = 0xe4;
        header.set_cksum();
        let mut block = *header.as_bytes();
        let unsigned = number(&block[148..156]).unwrap();
        assert_eq!(Fields::parse(&block).unwrap().link, [0xe4]);
        let signed = format!("{:06o}\0 ", unsigned - 256);
        block[148..156].copy_from_slice(signed.as_bytes());
        assert_eq!(Fields::parse(&block).unwrap().size, 1);
    }
}
