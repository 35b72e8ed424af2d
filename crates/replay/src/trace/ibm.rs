//! The logs of two studies by IBM, as they are published.
//!
//! The container registry: Anwar et al., "Improving Docker Registry Design based on Production Workload
//! Analysis", FAST '18. The object store: Eytan et al., "It's Time to Revisit LRU vs. FIFO", HotStorage '20.

use super::csv::position;
use super::{Parsed, Wrong, fields, key};
use pierhead_eviction::Access;

/// In the first line of a registry log and of nothing else.
pub(crate) const REGISTRY_MARK: &str = "http.request.uri";

/// The registry's log as CSV. A key is the hash of a blob, or the whole path of a manifest, whose name
/// means one thing in each repository; the size is what was written. Only successful GETs count.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    columns: Option<[usize; 5]>,
    fields: Vec<String>,
}

impl Registry {
    pub(crate) fn line(&mut self, line: &str) -> Result<Parsed, Wrong> {
        if line.trim().is_empty() {
            return Ok(Parsed::Nothing);
        }
        fields::split(line, ',', &mut self.fields);
        let Some(columns) = self.columns else {
            let column = |name: &'static str| {
                position(&self.fields, |field| field == name)
                    .ok_or_else(|| Wrong::NoColumn(name.to_owned()))
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
            return Err(Wrong::Fields {
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

/// Whether a line is of an object store's log: `1219008 REST.GET.OBJECT 8d4fcda3d675bac9 1056 0 1055`.
pub(crate) fn is_object_store(line: &str) -> bool {
    let verb = line.split_ascii_whitespace().nth(1);
    verb.is_some_and(|verb| verb.starts_with("REST."))
}

/// A line of an object store's log: milliseconds, verb, object, its size, and perhaps the range that was
/// read. Only GETs count, and each as one of the whole object.
pub(crate) fn object_store(line: &str) -> Result<Parsed, Wrong> {
    let mut found = line.split_ascii_whitespace();
    let Some(time) = found.next() else {
        return Ok(Parsed::Nothing);
    };
    let (Some(verb), Some(object)) = (found.next(), found.next()) else {
        let found = line.split_ascii_whitespace().count();
        return Err(Wrong::Fields { found, expected: 4 });
    };
    if verb != "REST.GET.OBJECT" {
        return match verb.starts_with("REST.") {
            true => Ok(Parsed::Skipped),
            false => Err(Wrong::field("verb", verb, "one such as REST.GET.OBJECT")),
        };
    }
    let size = found.next().ok_or(Wrong::Fields {
        found: 3,
        expected: 4,
    })?;
    Ok(Parsed::Access(Access::new(
        key::of(object),
        fields::size(size)?,
        fields::milliseconds(time)?,
    )))
}
