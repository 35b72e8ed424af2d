//! Checks that the parameters of policies and admission filters are in their ranges.

use std::fmt::Display;
use std::ops::RangeBounds;

/// The error for a parameter of a policy or admission filter that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{policy}: {parameter} = {value} is out of range: {range}")]
pub struct ParameterError {
    /// Name of the policy or admission filter.
    pub policy: &'static str,
    /// Name of the parameter that is out of range.
    pub parameter: &'static str,
    /// The value that was given.
    pub value: String,
    /// The allowed range of the parameter, as text.
    pub range: &'static str,
}

/// Checks that `value` is in `range`. `words` describes the range in the error. NaN is in no range.
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

/// Returns `part` of `capacity`, in bytes, rounded down.
// The cast is safe: the product is at most `capacity`, so the cast only cuts off the fraction.
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
