//! Fields of text traces: how a line is split, and what numbers and times look like.

use super::Wrong;

/// A line's fields between `delimiter`, with the quotes of RFC 4180 taken off. `fields` is filled anew, so
/// that one allocation serves all lines.
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

/// Takes the quoted beginning of `text`, whose first quote is gone, into `field`; what follows the
/// delimiter behind it.
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

/// A size in bytes: a whole number, perhaps written as a decimal one (`512.0`).
pub(crate) fn size(text: &str) -> Result<u64, Wrong> {
    let whole = match text.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|byte| byte == b'0') => whole,
        _ => text,
    };
    digits(whole).ok_or_else(|| Wrong::field("size", text, "a number of bytes"))
}

/// A cost in seconds.
pub(crate) fn cost(text: &str) -> Result<f32, Wrong> {
    match text.parse::<f32>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err(Wrong::field("cost", text, "a number of seconds")),
    }
}

/// A share count.
pub(crate) fn shared(text: &str) -> Result<u32, Wrong> {
    let number = digits(text).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| Wrong::field("share count", text, "a whole number"))
}

/// Seconds: a number with or without a fraction, or a date and time (UTC).
pub(crate) fn time(text: &str) -> Result<u64, Wrong> {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    digits(whole)
        .or_else(|| date(text))
        .ok_or_else(|| Wrong::field("time", text, "seconds or YYYY-MM-DD HH:MM:SS"))
}

/// Milliseconds, as seconds.
pub(crate) fn milliseconds(text: &str) -> Result<u64, Wrong> {
    let number = digits(text).map(|milliseconds| milliseconds / 1000);
    number.ok_or_else(|| Wrong::field("time", text, "milliseconds"))
}

fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

/// `2017-06-20 00:00:03.589`, also with `T` and `Z`, as seconds since 1970; none before that.
fn date(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (day, clock) = text.split_once([' ', 'T'])?;
    let mut day = day.split('-').map(digits);
    let (year, month, date) = (day.next()??, day.next()??, day.next()??);
    let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
    let mut clock = clock.split(':').map(digits);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let sound = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&date)
        && hour < 24
        && minute < 60
        && second <= 60
        && day.next().is_none()
        && clock.next().is_none();
    sound.then(|| ((days(year, month, date) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days since 1970-01-01, counted in years that begin in March, so that the leap day is the last.
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
    fn quotes_hold_delimiters_and_quotes() {
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
    fn numbers_are_not_guessed() {
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
