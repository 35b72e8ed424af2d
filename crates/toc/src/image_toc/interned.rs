//! Interned byte strings: each distinct string is stored once, and has a number.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

/// A table of interned strings. Each string takes its own bytes and about 25 more bytes of memory.
/// All strings together have at most 4 GiB.
#[derive(Default)]
pub(super) struct Interned {
    bytes: Vec<u8>,
    /// End offset of each string in the buffer.
    ends: Vec<u32>,
    /// The number of each string, by its hash, or by the next free hash after that hash.
    numbers: HashMap<u64, u32>,
    hasher: RandomState,
}

impl Interned {
    /// Returns the number of a string, if the string is already stored.
    pub(super) fn find(&self, string: &[u8]) -> Option<u32> {
        self.look_up(string).ok()
    }

    /// Returns the number of a string, and stores a string that is new. Returns `None` when there
    /// are too many strings.
    pub(super) fn get(&mut self, string: &[u8]) -> Option<u32> {
        let free = match self.look_up(string) {
            Ok(number) => return Some(number),
            Err(free) => free,
        };
        let number = u32::try_from(self.ends.len()).ok()?;
        let end = u32::try_from(self.bytes.len() + string.len()).ok()?;
        self.bytes.extend_from_slice(string);
        self.ends.push(end);
        self.numbers.insert(free, number);
        Some(number)
    }

    /// Returns the string that has this number. For an unknown number, the result is empty.
    pub(super) fn string(&self, number: u32) -> &[u8] {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let wide = |end: &u32| usize::try_from(*end).unwrap_or(usize::MAX);
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(at).map_or(0, wide);
        self.bytes
            .get(start.map_or(0, wide)..end)
            .unwrap_or_default()
    }

    /// Returns the number of a string, or the free hash under which the string can be stored.
    fn look_up(&self, string: &[u8]) -> Result<u32, u64> {
        let mut hash = self.hasher.hash_one(string);
        while let Some(number) = self.numbers.get(&hash) {
            if self.string(*number) == string {
                return Ok(*number);
            }
            hash = hash.wrapping_add(1);
        }
        Err(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_have_one_number_each() {
        let mut strings = Interned::default();
        let all = [&b"b"[..], b"", b"ab", b"a"];
        for (number, string) in (0..).zip(all) {
            assert_eq!(strings.find(string), None);
            assert_eq!(strings.get(string), Some(number));
        }
        for (number, string) in (0..).zip(all) {
            assert_eq!(strings.get(string), Some(number));
            assert_eq!(strings.find(string), Some(number));
            assert_eq!(strings.string(number), string);
        }
        assert_eq!(strings.string(4), b"");
    }

    #[test]
    fn strings_with_the_same_hash_have_different_numbers() {
        let mut strings = Interned::default();
        strings.get(b"one").unwrap();
        // Changes the table so that `two` seems to have the hash of `one`.
        let hash = strings.hasher.hash_one(&b"two"[..]);
        strings.numbers = HashMap::from([(hash, 0)]);
        assert_eq!(strings.find(b"two"), None);
        assert_eq!(strings.get(b"two"), Some(1));
        assert_eq!(strings.get(b"two"), Some(1));
        assert_eq!(strings.string(0), b"one");
    }
}
