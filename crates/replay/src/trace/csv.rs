//! Parses CSV traces, which have one request per line. The positions of the columns come from the
//! header line or from the command line.

use std::str::FromStr;

use super::{Parsed, TraceErrorKind, fields, key};
use pierhead_eviction::Access;

/// The positions of the columns. If the position of a column is `None`, the parser looks for the
/// column in the header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Column of the time, in seconds or as a date. Without this column, the number of the line is
    /// the time.
    pub time: Option<Column>,
    /// Column of the key.
    pub key: Option<Column>,
    /// Column of the size in bytes.
    pub size: Option<Column>,
    /// Column of the cost in seconds. Without this column, the cost is the assumed cost of
    /// [`Access::new`].
    pub cost: Option<Column>,
    /// Column of the number of images that share the object. Without this column, the number is 1.
    pub shared: Option<Column>,
    /// Delimiter of the columns. `None` means a comma.
    pub delimiter: Option<char>,
    /// Whether the first line is a header. With `None`, the first line counts as a header if its
    /// size is not a number.
    pub header: Option<bool>,
}

/// A column of a CSV trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// The column at this position, counted from 0.
    At(usize),
    /// The column that has this name in the header.
    Called(String),
}

/// The error of an invalid value of `--csv`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a column: write time=0,key=1,size=2, and if you like cost=3,shared=4,header=yes,delimiter=;"
)]
pub struct WrongColumns(String);

const TIME: &[&str] = &[
    "time",
    "timestamp",
    "ts",
    "second",
    "seconds",
    "tick",
    "clock_time",
];
const KEY: &[&str] = &[
    "key",
    "id",
    "obj_id",
    "object_id",
    "object",
    "digest",
    "url",
    "uri",
];
const SIZE: &[&str] = &["size", "bytes", "obj_size", "object_size"];
const COST: &[&str] = &["cost", "cost_seconds"];
const SHARED: &[&str] = &["shared", "share_count"];

impl FromStr for Columns {
    type Err = WrongColumns;

    fn from_str(text: &str) -> Result<Self, WrongColumns> {
        let mut columns = Self::default();
        for part in text.split(',') {
            let wrong = || WrongColumns(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            if value.is_empty() {
                return Err(wrong());
            }
            let column = value
                .parse()
                .map_or_else(|_| Column::Called(value.to_owned()), Column::At);
            let place = match name.trim() {
                "time" => &mut columns.time,
                "key" => &mut columns.key,
                "size" => &mut columns.size,
                "cost" => &mut columns.cost,
                "shared" => &mut columns.shared,
                "delimiter" => {
                    columns.delimiter = Some(match value {
                        "tab" => '\t',
                        "space" => ' ',
                        _ => value.parse().map_err(|_| wrong())?,
                    });
                    continue;
                }
                "header" => {
                    columns.header = Some(match value {
                        "yes" => true,
                        "no" => false,
                        _ => return Err(wrong()),
                    });
                    continue;
                }
                _ => return Err(wrong()),
            };
            *place = Some(column);
        }
        Ok(columns)
    }
}

/// A parser of the lines of a CSV trace.
#[derive(Debug)]
pub(crate) struct Csv {
    wanted: Columns,
    delimiter: char,
    found: Option<Places>,
    fields: Vec<String>,
    line: u64,
}

#[derive(Clone, Copy, Debug)]
struct Places {
    time: Option<usize>,
    key: usize,
    size: usize,
    cost: Option<usize>,
    shared: Option<usize>,
    /// Minimum number of fields of a line: 1 plus the largest position of a column that is used.
    needed: usize,
}

impl Csv {
    pub(crate) fn new(wanted: Columns) -> Self {
        Self {
            delimiter: wanted.delimiter.unwrap_or(','),
            wanted,
            found: None,
            fields: Vec::new(),
            line: 0,
        }
    }

    pub(crate) fn line(&mut self, line: &str) -> Result<Parsed, TraceErrorKind> {
        if line.trim().is_empty() {
            return Ok(Parsed::Nothing);
        }
        fields::split(line, self.delimiter, &mut self.fields);
        let places = match self.found {
            Some(places) => places,
            None => {
                let (places, is_header) = self.wanted.places(&self.fields)?;
                self.found = Some(places);
                if is_header {
                    return Ok(Parsed::Nothing);
                }
                places
            }
        };
        if self.fields.len() < places.needed {
            return Err(TraceErrorKind::Fields {
                found: self.fields.len(),
                expected: places.needed,
            });
        }
        self.line += 1;
        let field = |at: usize| self.fields[at].trim();
        let tick = match places.time {
            Some(at) => fields::time(field(at))?,
            None => self.line,
        };
        let mut access = Access::new(
            key::of(field(places.key)),
            fields::size(field(places.size))?,
            tick,
        );
        if let Some(at) = places.cost {
            access.cost = fields::cost(field(at))?;
        }
        if let Some(at) = places.shared {
            access.shared = fields::shared(field(at))?;
        }
        Ok(Parsed::Access(access))
    }
}

impl Columns {
    /// Finds the positions of the columns from the first line. Also returns whether the first line
    /// is a header.
    fn places(&self, first: &[String]) -> Result<(Places, bool), TraceErrorKind> {
        let by_name = [&self.time, &self.key, &self.size, &self.cost, &self.shared]
            .into_iter()
            .any(|column| matches!(column, Some(Column::Called(_))));
        let size = match &self.size {
            Some(Column::At(at)) if !by_name => first.get(*at),
            _ => None,
        };
        let is_header = self
            .header
            .unwrap_or_else(|| size.is_none_or(|size| fields::size(size.trim()).is_err()));
        let find = |column: &Option<Column>, names: &[&str]| match column {
            Some(Column::At(at)) => Ok(Some(*at)),
            Some(Column::Called(name)) => match position(first, |field| field == name) {
                Some(at) if is_header => Ok(Some(at)),
                _ => Err(TraceErrorKind::NoColumn(name.clone())),
            },
            None if is_header => Ok(names
                .iter()
                .find_map(|name| position(first, |field| field.eq_ignore_ascii_case(name)))),
            None => Ok(None),
        };
        let mut places = Places {
            time: find(&self.time, TIME)?,
            key: find(&self.key, KEY)?.ok_or(TraceErrorKind::Column("key"))?,
            size: find(&self.size, SIZE)?.ok_or(TraceErrorKind::Column("size"))?,
            cost: find(&self.cost, COST)?,
            shared: find(&self.shared, SHARED)?,
            needed: 0,
        };
        let last = [
            places.time,
            places.cost,
            places.shared,
            Some(places.key),
            Some(places.size),
        ];
        places.needed = last
            .into_iter()
            .flatten()
            .max()
            .map_or(0, |at| at.saturating_add(1));
        Ok((places, is_header))
    }
}

/// Returns the position of the first matching field.
pub(crate) fn position(fields: &[String], wanted: impl Fn(&str) -> bool) -> Option<usize> {
    fields.iter().position(|field| wanted(field.trim()))
}
