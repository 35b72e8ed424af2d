//! Parses access logs of nginx and of CNCF Distribution.
//!
//! Only a successful GET of a whole blob is a request. The key of this request is the hash of the
//! blob, and the size is the number of sent bytes. The parser skips other methods, other paths,
//! redirects to a CDN, and range requests, because a range does not tell the size of the blob.

use std::collections::HashMap;

use serde::Deserialize;

use super::{Parsed, TraceErrorKind, fields, key};
use pierhead_eviction::Access;

/// Maximum number of blobs whose longest request time is kept. For any further blob, the cost is
/// the request time in the same line.
const MAX_TIMES: usize = 1 << 20;

/// A parser of the lines of an access log.
#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    /// For each blob, the time of its slowest request in seconds. This time is the cost, since
    /// faster requests may have been cache hits.
    longest: HashMap<u64, f32>,
}

/// One parsed line of a log.
struct Entry<'a> {
    second: u64,
    method: &'a str,
    /// Path and query of the request.
    target: &'a str,
    status: u64,
    sent: u64,
    took: Option<f32>,
}

impl AccessLog {
    /// Parses a line of nginx's `combined` format, optionally with `$request_time` behind it.
    pub(crate) fn nginx(&mut self, line: &str) -> Result<Parsed, TraceErrorKind> {
        if line.trim().is_empty() {
            return Ok(Parsed::Nothing);
        }
        let wrong = || TraceErrorKind::field("line", line, "one of nginx's combined format");
        let (_, rest) = line.split_once(" [").ok_or_else(wrong)?;
        let (time, rest) = rest.split_once("] \"").ok_or_else(wrong)?;
        let (request, rest) = rest.split_once("\" ").ok_or_else(wrong)?;
        let second = common_time(time).ok_or_else(|| {
            TraceErrorKind::field("time", time, "one such as 23/Nov/2026:06:25:24 +0000")
        })?;
        let mut words = rest.split(' ');
        let status = fields::size(words.next().unwrap_or_default())?;
        let sent = match words.next().ok_or_else(wrong)? {
            // The Apache log format, which CNCF Distribution writes, has `-` for a size of 0.
            "-" => 0,
            bytes => fields::size(bytes)?,
        };
        // The request time is the field after referer and user agent, which contain no quotes.
        let took = rest.rsplit_once('"').map_or("", |(_, last)| last.trim());
        let took = took.split(' ').next().unwrap_or_default();
        let took = match took {
            "" | "-" => None,
            seconds => Some(fields::cost(seconds)?),
        };
        // In the line of a malformed request, these words may be different or missing.
        let mut words = request.split(' ');
        let (method, target) = (words.next(), words.next());
        Ok(self.access(&Entry {
            second,
            method: method.unwrap_or_default(),
            target: target.unwrap_or_default(),
            status,
            sent,
            took,
        }))
    }

    /// Parses a line of CNCF Distribution's own log, as text or JSON. Distribution also writes an
    /// access log in the Apache log format; its lines repeat a part of these lines.
    pub(crate) fn distribution(&mut self, line: &str) -> Result<Parsed, TraceErrorKind> {
        let found = match line.trim_start().starts_with('{') {
            true => json(line)?,
            false => logfmt(line),
        };
        if found.message.as_deref() != Some("response completed") {
            return Ok(Parsed::Nothing);
        }
        let missing =
            |field| TraceErrorKind::field(field, "", "there, as `response completed` has it");
        let time = found.time.as_deref().ok_or_else(|| missing("time"))?;
        Ok(self.access(&Entry {
            second: rfc3339(time)?,
            method: found.method.as_deref().unwrap_or_default(),
            target: found
                .target
                .as_deref()
                .ok_or_else(|| missing("http.request.uri"))?,
            status: found
                .status
                .ok_or_else(|| missing("http.response.status"))?,
            sent: found.written.unwrap_or(0),
            took: found.took,
        }))
    }

    fn access(&mut self, entry: &Entry<'_>) -> Parsed {
        let Some(hash) =
            blob(entry.target).filter(|_| entry.method == "GET" && entry.status == 200)
        else {
            return Parsed::Skipped;
        };
        let mut access = Access::new(key::of(hash), entry.sent, entry.second);
        // A request time of 0 means that the clock did not advance.
        if let Some(took) = entry.took.filter(|took| *took > 0.0) {
            let is_full = self.longest.len() >= MAX_TIMES;
            access.cost = match self.longest.get_mut(&access.key) {
                Some(longest) => {
                    *longest = longest.max(took);
                    *longest
                }
                None if is_full => took,
                None => *self.longest.entry(access.key).or_insert(took),
            };
        }
        Parsed::Access(access)
    }
}

/// Whether the beginning of a file looks like an access log of nginx.
pub(crate) fn is_nginx(line: &str) -> bool {
    matches!(
        AccessLog::default().nginx(line),
        Ok(Parsed::Access(_) | Parsed::Skipped)
    )
}

/// Whether a line comes from distribution's own log.
pub(crate) fn is_distribution(line: &str) -> bool {
    match line.starts_with('{') {
        true => line.contains("\"level\":") && line.contains("\"msg\":"),
        false => line.starts_with("time=\"") && line.contains(" level="),
    }
}

/// Returns the hash in `/v2/NAME/blobs/ALGORITHM:HASH`, with or without a query.
fn blob(target: &str) -> Option<&str> {
    let path = target.split('?').next()?;
    let (name, digest) = path.strip_prefix("/v2/")?.rsplit_once("/blobs/")?;
    let (algorithm, hash) = digest.split_once(':')?;
    let is_hash = matches!((algorithm, hash.len()), ("sha256", 64) | ("sha512", 128));
    let is_hex = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (!name.is_empty() && is_hash && is_hex).then_some(hash)
}

/// Parses a time such as `23/Nov/2026:06:25:24 +0100` to seconds since 1970.
fn common_time(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (time, zone) = text.split_once(' ')?;
    let (date, clock) = time.split_once(':')?;
    let mut date = date.split('/');
    let (day, month, year) = (date.next()?, date.next()?, date.next()?);
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let local = fields::time(&format!("{year}-{month}-{day} {clock}")).ok()?;
    shifted(local, zone)
}

/// Parses a time such as `2026-11-23T06:25:24.123456789+01:00` (also with `Z` as the zone) to
/// seconds since 1970.
fn rfc3339(text: &str) -> Result<u64, TraceErrorKind> {
    let zone = text.get(10..).and_then(|clock| clock.find(['+', '-']));
    let found = match zone {
        None => return fields::time(text),
        Some(at) => text.split_at_checked(10 + at),
    };
    let shifted = found
        .and_then(|(local, zone)| shifted(fields::time(local).ok()?, &zone.replacen(':', "", 1)));
    shifted.ok_or_else(|| TraceErrorKind::field("time", text, "one such as 2026-11-23T06:25:24Z"))
}

/// Converts the time of a zone `+HHMM` to UTC.
fn shifted(local: u64, zone: &str) -> Option<u64> {
    let (sign, digits) = zone.split_at_checked(1)?;
    if digits.len() != 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes): (u64, u64) = (digits[..2].parse().ok()?, digits[2..].parse().ok()?);
    let shift = (hours * 60 + minutes) * 60;
    match sign {
        "+" => local.checked_sub(shift),
        "-" => local.checked_add(shift),
        _ => None,
    }
}

/// The fields of CNCF Distribution's log that the parser uses.
#[derive(Default)]
struct Completed {
    message: Option<String>,
    time: Option<String>,
    method: Option<String>,
    target: Option<String>,
    status: Option<u64>,
    written: Option<u64>,
    took: Option<f32>,
}

#[derive(Deserialize)]
struct Json {
    msg: Option<String>,
    time: Option<String>,
    #[serde(rename = "http.request.method")]
    method: Option<String>,
    #[serde(rename = "http.request.uri")]
    target: Option<String>,
    #[serde(rename = "http.response.status")]
    status: Option<u64>,
    #[serde(rename = "http.response.written")]
    written: Option<u64>,
    #[serde(rename = "http.response.duration")]
    took: Option<Took>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Took {
    Nanoseconds(u64),
    Text(String),
}

fn json(line: &str) -> Result<Completed, TraceErrorKind> {
    let found: Json = serde_json::from_str(line)
        .map_err(|_| TraceErrorKind::field("line", line, "a JSON object of distribution's log"))?;
    Ok(Completed {
        message: found.msg,
        time: found.time,
        method: found.method,
        target: found.target,
        status: found.status,
        written: found.written,
        took: match found.took {
            Some(Took::Nanoseconds(nanoseconds)) => Some(seconds(nanoseconds as f64 / 1e9)),
            Some(Took::Text(text)) => go_duration(&text),
            None => None,
        },
    })
}

/// Parses `key=value key="quoted value" …`, the text format of logrus. A line in another format
/// gives no fields.
fn logfmt(line: &str) -> Completed {
    let mut found = Completed::default();
    let mut rest = line;
    while let Some((name, text)) = rest.split_once('=') {
        let name = name.rsplit(' ').next().unwrap_or_default();
        let value;
        (value, rest) = match text.strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => match text.split_once(' ') {
                Some((word, rest)) => (word.to_owned(), rest),
                None => (text.to_owned(), ""),
            },
        };
        match name {
            "msg" => found.message = Some(value),
            "time" => found.time = Some(value),
            "http.request.method" => found.method = Some(value),
            "http.request.uri" => found.target = Some(value),
            "http.response.status" => found.status = value.parse().ok(),
            "http.response.written" => found.written = value.parse().ok(),
            "http.response.duration" => found.took = go_duration(&value),
            _ => {}
        }
    }
    found
}

/// Splits quoted text, without its opening quote, from the text after it.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

/// Parses a duration as Go writes it, such as `1.5ms` or `2m3.5s`, to seconds.
fn go_duration(text: &str) -> Option<f32> {
    let mut sum = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|it: char| !it.is_ascii_digit() && it != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit = &rest[end..];
        let len = unit
            .find(|it: char| it.is_ascii_digit())
            .unwrap_or(unit.len());
        sum += number
            * match &unit[..len] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "µs" | "μs" | "us" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &unit[len..];
    }
    (!text.is_empty()).then(|| seconds(sum))
}

// An `f32` is precise enough for a cost in seconds.
#[allow(clippy::cast_possible_truncation)]
fn seconds(seconds: f64) -> f32 {
    seconds as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn nginx(request: &str, end: &str) -> String {
        format!("10.0.0.7 - ann [23/Nov/2026:07:25:24 +0100] \"{request}\" {end}")
    }

    fn found(parsed: Result<Parsed, TraceErrorKind>) -> Option<(u64, u64, f32)> {
        match parsed {
            Ok(Parsed::Access(access)) => Some((access.size, access.tick, access.cost)),
            _ => None,
        }
    }

    #[test]
    fn a_blob_in_nginx_log_is_a_request() {
        let mut log = AccessLog::default();
        let get = format!("GET /v2/library/redis/blobs/sha256:{HASH}?ns=docker.io HTTP/1.1");
        let combined = nginx(&get, "200 1000000 \"-\" \"containerd/2.4\"");
        // The Unix time of 2026-11-23 06:25:24 UTC.
        let second = 1_795_415_124;
        let prior = Access::<u64>::prior(1_000_000);
        assert_eq!(
            found(log.nginx(&combined)),
            Some((1_000_000, second, prior))
        );
        let timed = |seconds| nginx(&get, &format!("200 1000000 \"-\" \"c\" {seconds}"));
        assert_eq!(
            found(log.nginx(&timed("2.500"))),
            Some((1_000_000, second, 2.5))
        );
        // nginx served this request from its own cache, so the cost stays the cost of the earlier
        // miss.
        assert_eq!(
            found(log.nginx(&timed("0.002"))),
            Some((1_000_000, second, 2.5))
        );
        let head = get.replace("GET", "HEAD");
        for (request, end) in [
            (&*head, "200 0 \"-\" \"c\""),
            (
                "GET /v2/library/redis/manifests/7 HTTP/1.1",
                "200 5 \"-\" \"c\"",
            ),
            ("GET /v2/a/blobs/sha256:abc HTTP/1.1", "200 5 \"-\" \"c\""),
            ("\\x16\\x03\\x01", "400 157 \"-\" \"-\""),
            (&get, "206 5 \"-\" \"c\""),
            (&get, "307 0 \"-\" \"c\""),
        ] {
            let parsed = log.nginx(&nginx(request, end));
            assert!(
                matches!(parsed, Ok(Parsed::Skipped)),
                "{request} {end}: {parsed:?}"
            );
        }
        for wrong in [
            "time,key,size",
            "a [b] \"c\" 200 5",
            &nginx(&get, "200 many \"\" \"\""),
        ] {
            assert!(log.nginx(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_blob_in_distributions_log_is_a_request() {
        let mut log = AccessLog::default();
        let text = format!(
            "time=\"2026-11-23T06:25:24.123456789Z\" level=info msg=\"response completed\" go.version=go1.24 http.request.method=GET \
             http.request.uri=\"/v2/team/app/blobs/sha256:{HASH}\" http.request.useragent=\"a \\\" http.request.method=PUT\" \
             http.response.duration=1.25s http.response.status=200 http.response.written=70000"
        );
        assert_eq!(
            found(log.distribution(&text)),
            Some((70_000, 1_795_415_124, 1.25))
        );
        for (duration, cost) in [("\"250ms\"", 1.25), ("3000000000", 3.0)] {
            let json = format!(
                "{{\"http.request.method\":\"GET\",\"http.request.uri\":\"/v2/team/app/blobs/sha256:{HASH}\",\"http.response.duration\":{duration},\
                 \"http.response.status\":200,\"http.response.written\":70000,\"level\":\"info\",\"msg\":\"response completed\",\
                 \"time\":\"2026-11-23T07:25:24+01:00\"}}"
            );
            assert_eq!(
                found(log.distribution(&json)),
                Some((70_000, 1_795_415_124, cost))
            );
        }
        let get = format!("GET /v2/team/app/blobs/sha256:{HASH} HTTP/1.1");
        for line in [
            // The line of the same request in the access log (Apache log format).
            &nginx(&get, "200 70000 \"\" \"docker\""),
            "time=\"2026-11-23T06:25:24Z\" level=warning msg=\"No HTTP secret provided\"",
            "",
        ] {
            let parsed = log.distribution(line);
            assert!(matches!(parsed, Ok(Parsed::Nothing)), "{line}: {parsed:?}");
        }
        assert!(log.distribution("{\"msg\":").is_err());
    }

    proptest! {
        /// Property test: lines in nginx's format are parsed correctly, at any time of day and in
        /// any time zone.
        #[test]
        fn every_line_comes_back(
            second in 86_400_u64..4_000_000_000, size: u32, milliseconds in 1_u32..1_000_000, east in -12_i64..=14,
        ) {
            let local = i64::try_from(second).unwrap() + east * 3600;
            let local = std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(local).unwrap());
            let text = httpdate(local);
            let zone = format!("{}{:02}00", if east < 0 { '-' } else { '+' }, east.abs());
            let took = f64::from(milliseconds) / 1000.0;
            let line = format!(
                "::1 - - [{text} {zone}] \"GET /v2/a/blobs/sha256:{HASH} HTTP/2.0\" 200 {size} \"-\" \"x\" {took:.3}"
            );
            let parsed = AccessLog::default().nginx(&line);
            prop_assert_eq!(found(parsed), Some((size.into(), second, seconds(took))), "{}", line);
        }

        #[test]
        fn no_line_panics(line: String, end: String) {
            let mut log = AccessLog::default();
            let _ = log.nginx(&line);
            let _ = log.nginx(&nginx("GET /v2/a/blobs/sha256:0 HTTP/1.1", &end));
            let _ = log.distribution(&line);
            let _ = log.distribution(&format!("time=\"{line}\" msg=\"response completed\" {end}"));
        }
    }

    /// Formats a time as `23/Nov/2026:06:25:24`, in a simple way that counts day by day.
    fn httpdate(at: std::time::SystemTime) -> String {
        let seconds = at.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let (mut days, clock) = (seconds / 86_400, seconds % 86_400);
        let mut year = 1970;
        let is_leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        while days >= 365 + u64::from(is_leap(year)) {
            days -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let february = 28 + u64::from(is_leap(year));
        let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while days >= lengths[month] {
            days -= lengths[month];
            month += 1;
        }
        let name = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ][month];
        let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
        format!(
            "{:02}/{name}/{year}:{hour:02}:{minute:02}:{second:02}",
            days + 1
        )
    }
}
