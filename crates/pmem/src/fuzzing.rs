//! The fuzz target of [`Log::open`]: opens a log whose bytes are the input, as after a crash. The
//! fuzzer calls [`pmem_log`], and so does a test with the saved corpus.

use crate::log::forge;
use crate::shadow::ShadowMedium;
use crate::{Error, Log, Options};

const OPTIONS: Options = Options { segment: 4096 };

/// Opens two regions: one with the input behind valid heads, and one with the input alone. Checks
/// that `open` either refuses the region or returns a usable log: all listed values can be read and
/// removed, and a new value can be stored.
pub fn pmem_log(input: &[u8]) {
    let mut raw = input.to_vec();
    raw.resize(raw.len().clamp(8192 + 8 * 4096, 1 << 20), 0);
    check_region(raw);
    check_region(forge(input));
}

fn check_region(bytes: Vec<u8>) {
    let Ok((log, found)) = Log::open(ShadowMedium::of(bytes), OPTIONS) else {
        return;
    };
    let mut keys = Vec::new();
    log.entries(&mut |entry| keys.push((entry.key.to_vec(), entry.len)));
    assert_eq!(keys.len() as u64, found.entries);
    for (key, len) in &keys {
        let entry = log
            .get(key)
            .expect("a tail that was checked")
            .expect("what is listed");
        assert_eq!(entry.len(), *len);
        assert!(*len <= log.capacity() * 171, "more than its parts can name");
        let mut bytes = vec![0; usize::try_from(*len).unwrap_or(0)];
        log.read_at(&entry, 0, &mut bytes)
            .expect("bytes within the region");
    }
    let put = || {
        let mut writer = log.begin(b"new")?;
        writer.write(&[1; 5000])?;
        writer.commit(b"meta")
    };
    match put() {
        Ok(entry) => {
            let mut bytes = [0; 5000];
            log.read_at(&entry, 0, &mut bytes)
                .expect("what was written");
            assert_eq!(bytes, [1; 5000]);
        }
        // A value may list the same bytes many times, so the sum of all values can exceed the
        // region.
        Err(error) => assert!(
            matches!(error, Error::NoRoom | Error::TooLarge { .. }),
            "{error}"
        ),
    }
    for (key, _) in keys {
        log.remove(&key).expect("a medium that works");
        assert!(log.get(&key).expect("a medium that works").is_none());
    }
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn pmem_log() {
        each("pmem_log", super::pmem_log);
    }
}
