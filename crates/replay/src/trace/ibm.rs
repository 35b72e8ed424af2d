//! Parsers of two published logs by IBM: of its container registry and of its object store.
//!
//! The container registry: Anwar et al., "Improving Docker Registry Design based on Production
//! Workload Analysis", FAST '18. The object store: Eytan et al., "It's Time to Revisit LRU vs.
//! FIFO", HotStorage '20.

use super::csv::position;
use super::{Parsed, TraceErrorKind, fields, key};
use pierhead_eviction::Access;

/// A text that occurs in the first line of a registry log only.
pub(crate) const REGISTRY_MARK: &str = "http.request.uri";

/// Parses the log of IBM's container registry, which is a CSV file. The key of a request is the
/// hash of a blob, or the path of a manifest, because a tag has another meaning in each repository.
/// The size is the number of written bytes. Only successful GETs count.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    columns: Option<[usize; 5]>,
    fields: Vec<String>,
}

impl Registry {
    pub(crate) fn line(&mut self, line: &str) -> Result<Parsed, TraceErrorKind> {
        if line.trim().is_empty() {
            return Ok(Parsed::Nothing);
        }
        fields::split(line, ',', &mut self.fields);
        let Some(columns) = self.columns else {
            let column = |name: &'static str| {
                position(&self.fields, |field| field == name)
                    .ok_or_else(|| TraceErrorKind::NoColumn(name.to_owned()))
            };
            self.columns = Some([
                column("timestamp")?,
                column("http.request.method")?,
                column(REGISTRY_MARK)?,
                column("http.response.status")?,
                column("http.response.written")?,
            ]);
            return Ok(Parsed::Nothing);
        };
        let [time, method, path, status, written] = columns;
        let needed = columns.into_iter().max().map_or(0, |last| last + 1);
        let found = self.fields.len();
        if found < needed {
            return Err(TraceErrorKind::Fields {
                found,
                expected: needed,
            });
        }
        let field = |at: usize| self.fields[at].trim();
        if field(method) != "GET" || !field(status).starts_with('2') {
            return Ok(Parsed::Skipped);
        }
        let path = field(path);
        let name = path.rsplit_once("/blobs/").map_or(path, |(_, hash)| hash);
        Ok(Parsed::Access(Access::new(
            key::of(name),
            fields::size(field(written))?,
            fields::time(field(time))?,
        )))
    }
}

/// Whether a line belongs to an object store's log: `1219008 REST.GET.OBJECT 8d4fcda3d675bac9 1056
/// 0 1055`.
pub(crate) fn is_object_store(line: &str) -> bool {
    let verb = line.split_ascii_whitespace().nth(1);
    verb.is_some_and(|verb| verb.starts_with("REST."))
}

/// Parses a line of an object store's log: milliseconds, verb, object, size, and optionally the
/// requested range. Only GETs are requests, and each counts as a GET of the whole object.
pub(crate) fn object_store(line: &str) -> Result<Parsed, TraceErrorKind> {
    let mut found = line.split_ascii_whitespace();
    let Some(time) = found.next() else {
        return Ok(Parsed::Nothing);
    };
    let (Some(verb), Some(object)) = (found.next(), found.next()) else {
        let found = line.split_ascii_whitespace().count();
        return Err(TraceErrorKind::Fields { found, expected: 4 });
    };
    if verb != "REST.GET.OBJECT" {
        return match verb.starts_with("REST.") {
            true => Ok(Parsed::Skipped),
            false => Err(TraceErrorKind::field(
                "verb",
                verb,
                "one such as REST.GET.OBJECT",
            )),
        };
    }
    let size = found.next().ok_or(TraceErrorKind::Fields {
        found: 3,
        expected: 4,
    })?;
    Ok(Parsed::Access(Access::new(
        key::of(object),
        fields::size(size)?,
        fields::milliseconds(time)?,
    )))
}
