//! Parses a trace in any format. The caller feeds the bytes in pieces of any length.

use super::access_log::AccessLog;
use super::csv::{Columns, Csv};
use super::oracle::{self, RECORD};
use super::parsed::Parsed;
use super::{Format, Location, TraceError, TraceErrorKind, ibm, request_log};
use pierhead_eviction::Access;

/// Maximum length of a line in bytes. Formats with many columns have lines of some kilobytes.
const MAX_LINE: usize = 64 * 1024;

/// Numbers of requests that were skipped or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// Number of requests of size zero, which are skipped, as in libCacheSim.
    pub empty: u64,
    /// Number of requests whose time is earlier than the time of a previous request. Such requests
    /// get the latest previous time.
    pub backwards: u64,
    /// Number of skipped requests, which are not successful GETs (in access logs: not successful
    /// GETs of whole blobs).
    pub skipped: u64,
}

impl std::ops::AddAssign for TraceCounts {
    fn add_assign(&mut self, other: Self) {
        self.empty += other.empty;
        self.backwards += other.backwards;
        self.skipped += other.skipped;
    }
}

/// Parses bytes into requests. The parser holds at most one line in memory, and for access logs the
/// longest request time of each blob.
#[derive(Debug)]
pub struct Reader {
    parser: Parser,
    /// The beginning of a line or record that is not complete yet.
    carry: Vec<u8>,
    /// Number of complete lines or records so far.
    read: u64,
    latest: u64,
    notes: TraceCounts,
}

#[derive(Debug)]
enum Parser {
    Oracle,
    Csv(Csv),
    Registry(ibm::Registry),
    ObjectStore,
    RequestLog { has_header: bool },
    Nginx(AccessLog),
    Distribution(AccessLog),
}

impl Reader {
    /// Creates a parser for `format`. Only [`Format::Csv`] uses `columns`.
    pub fn new(format: Format, columns: Columns) -> Self {
        Self {
            parser: match format {
                Format::OracleGeneral => Parser::Oracle,
                Format::Csv => Parser::Csv(Csv::new(columns)),
                Format::IbmRegistry => Parser::Registry(ibm::Registry::default()),
                Format::IbmObjectStore => Parser::ObjectStore,
                Format::Pierhead => Parser::RequestLog { has_header: false },
                Format::Nginx => Parser::Nginx(AccessLog::default()),
                Format::Distribution => Parser::Distribution(AccessLog::default()),
            },
            carry: Vec::new(),
            read: 0,
            latest: 0,
            notes: TraceCounts::default(),
        }
    }

    /// Parses the next bytes, and passes each complete request to `each`.
    ///
    /// # Errors
    /// [`TraceError`] for the first invalid line. After an error, the reader must not be used any
    /// more.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        each: &mut dyn FnMut(Access<u64>),
    ) -> Result<(), TraceError> {
        while let Some(end) = self.end_of_first(bytes) {
            let (first, rest) = bytes.split_at(end);
            bytes = rest;
            if self.carry.is_empty() {
                self.whole(first, each)?;
            } else {
                let mut carried = std::mem::take(&mut self.carry);
                carried.extend_from_slice(first);
                self.whole(&carried, each)?;
                carried.clear();
                self.carry = carried;
            }
        }
        if self.carry.len() + bytes.len() > MAX_LINE {
            return Err(self.error(TraceErrorKind::Long { bound: MAX_LINE }));
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// [`TraceErrorKind::Cut`] when the trace ends within a record, or within a line that may be
    /// incomplete. The complete requests before that were already passed to `each`.
    pub fn end(mut self, each: &mut dyn FnMut(Access<u64>)) -> Result<TraceCounts, TraceError> {
        let rest = std::mem::take(&mut self.carry);
        if rest.is_empty() {
            return Ok(self.notes);
        }
        // Each complete line of a request log ends with a newline. In other formats, the newline of
        // the last line may be missing.
        let whole = match self.parser {
            Parser::Oracle | Parser::RequestLog { .. } => Err(()),
            _ => self.whole(&rest, each).map_err(drop),
        };
        whole
            .map(|()| self.notes)
            .map_err(|()| self.error(TraceErrorKind::Cut))
    }

    /// Returns the numbers of skipped and changed requests.
    pub fn notes(&self) -> TraceCounts {
        self.notes
    }

    /// Whether the reader has not read a complete line or record so far.
    pub fn is_empty(&self) -> bool {
        self.read == 0
    }

    /// Returns the end of the first line or record in `bytes`, including its line end.
    fn end_of_first(&self, bytes: &[u8]) -> Option<usize> {
        match self.parser {
            Parser::Oracle => {
                let end = RECORD - self.carry.len();
                (bytes.len() >= end).then_some(end)
            }
            _ => bytes
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|at| at + 1),
        }
    }

    fn whole(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<u64>)) -> Result<(), TraceError> {
        let parsed = match bytes.first_chunk::<RECORD>() {
            Some(record) if matches!(self.parser, Parser::Oracle) => {
                Ok(Parsed::Access(oracle::record(record)))
            }
            _ => self.line(bytes),
        };
        match parsed.map_err(|wrong| self.error(wrong))? {
            Parsed::Access(access) => self.deliver(access, each),
            Parsed::Skipped => self.notes.skipped += 1,
            Parsed::Nothing => {}
        }
        self.read += 1;
        Ok(())
    }

    fn line(&mut self, bytes: &[u8]) -> Result<Parsed, TraceErrorKind> {
        if bytes.len() > MAX_LINE {
            return Err(TraceErrorKind::Long { bound: MAX_LINE });
        }
        let line = std::str::from_utf8(bytes).map_err(|_| TraceErrorKind::NotText)?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        match &mut self.parser {
            Parser::Csv(csv) => csv.line(line),
            Parser::Registry(registry) => registry.line(line),
            Parser::ObjectStore => ibm::object_store(line),
            Parser::Nginx(log) => log.nginx(line),
            Parser::Distribution(log) => log.distribution(line),
            Parser::RequestLog { has_header } => {
                if !*has_header && !request_log::is_header(line) {
                    return Err(TraceErrorKind::Header);
                }
                *has_header = true;
                match line.starts_with('#') {
                    true => request_log::comment(line).map(|()| Parsed::Nothing),
                    false => request_log::parse(line).map(|record| Parsed::Access(record.access())),
                }
            }
            // Records have a fixed length, so they are never split here.
            Parser::Oracle => Err(TraceErrorKind::Cut),
        }
    }

    fn deliver(&mut self, mut access: Access<u64>, each: &mut dyn FnMut(Access<u64>)) {
        if access.size == 0 {
            self.notes.empty += 1;
            return;
        }
        if access.tick < self.latest {
            self.notes.backwards += 1;
            access.tick = self.latest;
        }
        self.latest = access.tick;
        each(access);
    }

    /// Makes the error for the line or record after the last complete one.
    fn error(&self, wrong: TraceErrorKind) -> TraceError {
        let next = self.read + 1;
        let at = match self.parser {
            Parser::Oracle => Location::Record(next),
            _ => Location::Line(next),
        };
        TraceError { at, wrong }
    }
}
