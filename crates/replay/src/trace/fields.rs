//! Splits the lines of text traces into fields, and parses the numbers and times in these fields.

use super::TraceErrorKind;

/// Splits a line at `delimiter`, and removes quotes as RFC 4180 specifies. `fields` is overwritten,
/// so that all lines share one allocation.
pub(crate) fn split(line: &str, delimiter: char, fields: &mut Vec<String>) {
    let mut used = 0;
    let mut rest = Some(line);
    while let Some(text) = rest {
        if used == fields.len() {
            fields.push(String::new());
        }
        let field = &mut fields[used];
        field.clear();
        used += 1;
        rest = match text.strip_prefix('"') {
            Some(quoted) => unquote(quoted, delimiter, field),
            None => match text.split_once(delimiter) {
                Some((first, rest)) => {
                    field.push_str(first);
                    Some(rest)
                }
                None => {
                    field.push_str(text);
                    None
                }
            },
        };
    }
    fields.truncate(used);
}

/// Moves a quoted field, whose opening quote is removed, from `text` to `field`. Returns the text
/// after the next delimiter.
fn unquote<'a>(mut text: &'a str, delimiter: char, field: &mut String) -> Option<&'a str> {
    while let Some((part, rest)) = text.split_once('"') {
        field.push_str(part);
        match rest.strip_prefix('"') {
            Some(rest) => {
                field.push('"');
                text = rest;
            }
            None => return rest.split_once(delimiter).map(|(_, rest)| rest),
        }
    }
    field.push_str(text);
    None
}

/// Parses a size in bytes: an integer, which may also be written as `512.0`.
pub(crate) fn size(text: &str) -> Result<u64, TraceErrorKind> {
    let whole = match text.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|byte| byte == b'0') => whole,
        _ => text,
    };
    digits(whole).ok_or_else(|| TraceErrorKind::field("size", text, "a number of bytes"))
}

/// Parses a cost in seconds.
pub(crate) fn cost(text: &str) -> Result<f32, TraceErrorKind> {
    match text.parse::<f32>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err(TraceErrorKind::field("cost", text, "a number of seconds")),
    }
}

/// Parses a number of images.
pub(crate) fn shared(text: &str) -> Result<u32, TraceErrorKind> {
    let number = digits(text).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| TraceErrorKind::field("share count", text, "a whole number"))
}

/// Parses a time in seconds: a number, or a date and time in UTC.
pub(crate) fn time(text: &str) -> Result<u64, TraceErrorKind> {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    digits(whole)
        .or_else(|| date(text))
        .ok_or_else(|| TraceErrorKind::field("time", text, "seconds or YYYY-MM-DD HH:MM:SS"))
}

/// Parses a time in milliseconds, and converts the time to seconds.
pub(crate) fn milliseconds(text: &str) -> Result<u64, TraceErrorKind> {
    let number = digits(text).map(|milliseconds| milliseconds / 1000);
    number.ok_or_else(|| TraceErrorKind::field("time", text, "milliseconds"))
}

fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

/// Parses a date such as `2017-06-20 00:00:03.589`, also with `T` and `Z`, to Unix time. Returns
/// `None` before 1970.
fn date(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (day, clock) = text.split_once([' ', 'T'])?;
    let mut day = day.split('-').map(digits);
    let (year, month, date) = (day.next()??, day.next()??, day.next()??);
    let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
    let mut clock = clock.split(':').map(digits);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let is_valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&date)
        && hour < 24
        && minute < 60
        && second <= 60
        && day.next().is_none()
        && clock.next().is_none();
    is_valid.then(|| ((days(year, month, date) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Returns the number of days since 1970-01-01. Years begin in March here, so that the leap day is
/// the last day of a year.
fn days(year: u64, month: u64, date: u64) -> u64 {
    let (year, month) = if month < 3 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + date - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_fields_may_contain_delimiters_and_quotes() {
        let mut fields = vec!["left over".to_owned(); 9];
        for (line, expected) in [
            ("a,b,c", vec!["a", "b", "c"]),
            ("", vec![""]),
            ("a,,", vec!["a", "", ""]),
            (r#"1,"x, y",z"#, vec!["1", "x, y", "z"]),
            (r#""say ""hi""",2"#, vec![r#"say "hi""#, "2"]),
            (r#""open, end"#, vec!["open, end"]),
            (r#""a"b,c"#, vec!["a", "c"]),
        ] {
            split(line, ',', &mut fields);
            assert_eq!(fields, expected, "{line}");
        }
    }

    #[test]
    fn times_are_seconds_or_dates() {
        for (text, expected) in [
            ("12", Some(12)),
            ("12.9", Some(12)),
            ("1970-01-01 00:00:00", Some(0)),
            ("2000-02-29T23:59:59Z", Some(951_868_799)),
            ("2017-06-20 00:00:03.589", Some(1_497_916_803)),
            ("2023-11-16 18:17:03.9799600", Some(1_700_158_623)),
            ("-5", None),
            ("1969-12-31 23:59:59", None),
            ("2017-13-20 00:00:00", None),
            ("2017-06-20", None),
            ("", None),
        ] {
            assert_eq!(time(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn malformed_numbers_are_refused() {
        assert_eq!(size("72626.0"), Ok(72626));
        assert_eq!(size("1099511627776"), Ok(1 << 40));
        for wrong in ["1.5", "-1", "+1", "1e3", "", "99999999999999999999"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert!(cost("0.25").is_ok() && cost("-1").is_err() && cost("nan").is_err());
        assert!(shared("7").is_ok() && shared("4294967296").is_err());
        assert_eq!(milliseconds("1999"), Ok(1));
    }
}
