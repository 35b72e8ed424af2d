//! Parameters of the algorithms: each is checked when a policy is made.

use std::fmt::Display;
use std::ops::RangeBounds;

/// A parameter of a policy is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{policy}: {parameter} = {value} is out of range: {range}")]
pub struct ParameterError {
    /// Whose parameter it is.
    pub policy: &'static str,
    /// Which.
    pub parameter: &'static str,
    /// What was asked for.
    pub value: String,
    /// What it may be, in words.
    pub range: &'static str,
}

/// Checks that `value` is in `range`, which `words` describe to people. No range contains a NaN.
pub fn check<T: PartialOrd + Display>(
    policy: &'static str,
    parameter: &'static str,
    value: T,
    range: &impl RangeBounds<T>,
    words: &'static str,
) -> Result<(), ParameterError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(ParameterError {
        policy,
        parameter,
        value: value.to_string(),
        range: words,
    })
}

/// That part of so many bytes, rounded down.
// A share of a u64 is one: nothing is cut but the fraction.
#[allow(clippy::cast_possible_truncation)]
pub fn share(capacity: u64, part: f64) -> u64 {
    (capacity as f64 * part) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        let beta = |value: f64| check("gdsf", "beta", value, &(0.0..=4.0), "0 to 4");
        assert_eq!((beta(0.0), beta(4.0)), (Ok(()), Ok(())));
        assert!(beta(f64::NAN).is_err());
        let error = beta(4.5).map_err(|error| error.to_string());
        assert_eq!(
            error,
            Err("gdsf: beta = 4.5 is out of range: 0 to 4".into())
        );
    }
}
