//! Converts the keys in traces, which are numbers or texts, to integers of 64 bits.

/// Converts a key to 64 bits. An integer of at most 64 bits is not changed. Any other text is
/// hashed by FNV-1a and the finalizer of MurmurHash3, which gives short texts well-distributed
/// hashes. The result is the same on every machine.
pub(crate) fn of(text: &str) -> u64 {
    if text.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(number) = text.parse()
    {
        return number;
    }
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn numbers_stay_unchanged_and_texts_are_hashed() {
        assert_eq!((of("7"), of("18446744073709551615")), (7, u64::MAX));
        assert_ne!(of("18446744073709551616"), of("18446744073709551617"));
        let top: std::collections::BTreeSet<u64> =
            (0..64).map(|n| of(&format!("x{n}")) >> 58).collect();
        assert!(top.len() > 32, "64 texts fill {} of 64 buckets", top.len());
    }
}
