//! A trace in any format, fed in pieces of any length.

use super::access_log::AccessLog;
use super::csv::{Columns, Csv};
use super::oracle::{self, RECORD};
use super::parsed::Parsed;
use super::{Format, Place, TraceError, Wrong, ibm, request_log};
use pierhead_eviction::Access;

/// A longer line is of no format: those with the most columns have lines of some kilobytes.
const LINE: usize = 64 * 1024;

/// What was not taken as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Requests of size zero, which are left out: there is nothing to keep. (libCacheSim does so, too.)
    pub empty: u64,
    /// Requests earlier than one before them; they are taken to be as late as that one.
    pub backwards: u64,
    /// Requests other than successful GETs (in access logs: of whole blobs), which are left out.
    pub skipped: u64,
}

impl std::ops::AddAssign for Notes {
    fn add_assign(&mut self, other: Self) {
        self.empty += other.empty;
        self.backwards += other.backwards;
        self.skipped += other.skipped;
    }
}

/// Parses bytes into requests. Holds at most one line, and for access logs the longest time of each blob.
#[derive(Debug)]
pub struct Reader {
    parser: Parser,
    /// The beginning of a line or record whose end has not come.
    carry: Vec<u8>,
    /// Lines or records that are complete.
    read: u64,
    latest: u64,
    notes: Notes,
}

#[derive(Debug)]
enum Parser {
    Oracle,
    Csv(Csv),
    Registry(ibm::Registry),
    ObjectStore,
    RequestLog { begun: bool },
    Nginx(AccessLog),
    Distribution(AccessLog),
}

impl Reader {
    /// One for `format`; `columns` are of use to [`Format::Csv`] only.
    pub fn new(format: Format, columns: Columns) -> Self {
        Self {
            parser: match format {
                Format::OracleGeneral => Parser::Oracle,
                Format::Csv => Parser::Csv(Csv::new(columns)),
                Format::IbmRegistry => Parser::Registry(ibm::Registry::default()),
                Format::IbmObjectStore => Parser::ObjectStore,
                Format::Pierhead => Parser::RequestLog { begun: false },
                Format::Nginx => Parser::Nginx(AccessLog::default()),
                Format::Distribution => Parser::Distribution(AccessLog::default()),
            },
            carry: Vec::new(),
            read: 0,
            latest: 0,
            notes: Notes::default(),
        }
    }

    /// The next bytes of the trace; each request that is complete goes to `each`.
    ///
    /// # Errors
    /// [`TraceError`] for the first line that cannot be read; the reader is of no use then.
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
        if self.carry.len() + bytes.len() > LINE {
            return Err(self.error(Wrong::Long { bound: LINE }));
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    /// The trace is over.
    ///
    /// # Errors
    /// [`Wrong::Cut`] when it ends within a record, or within a line whose end does not show from what is
    /// there. What came before has been handed out.
    pub fn end(mut self, each: &mut dyn FnMut(Access<u64>)) -> Result<Notes, TraceError> {
        let rest = std::mem::take(&mut self.carry);
        if rest.is_empty() {
            return Ok(self.notes);
        }
        // A line of ours always has an end; elsewhere the last one may lack it if it is whole.
        let whole = match self.parser {
            Parser::Oracle | Parser::RequestLog { .. } => Err(()),
            _ => self.whole(&rest, each).map_err(drop),
        };
        whole
            .map(|()| self.notes)
            .map_err(|()| self.error(Wrong::Cut))
    }

    /// What was not taken as it stands so far.
    pub fn notes(&self) -> Notes {
        self.notes
    }

    /// Whether no line and no record was complete so far.
    pub fn is_empty(&self) -> bool {
        self.read == 0
    }

    /// Where the line or record that began in `carry` ends in `bytes`, its end included.
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

    fn line(&mut self, bytes: &[u8]) -> Result<Parsed, Wrong> {
        if bytes.len() > LINE {
            return Err(Wrong::Long { bound: LINE });
        }
        let line = std::str::from_utf8(bytes).map_err(|_| Wrong::NotText)?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        match &mut self.parser {
            Parser::Csv(csv) => csv.line(line),
            Parser::Registry(registry) => registry.line(line),
            Parser::ObjectStore => ibm::object_store(line),
            Parser::Nginx(log) => log.nginx(line),
            Parser::Distribution(log) => log.distribution(line),
            Parser::RequestLog { begun } => {
                if !*begun && !request_log::is_header(line) {
                    return Err(Wrong::Header);
                }
                *begun = true;
                match line.starts_with('#') {
                    true => request_log::comment(line).map(|()| Parsed::Nothing),
                    false => request_log::parse(line).map(|record| Parsed::Access(record.access())),
                }
            }
            // Records have their length always.
            Parser::Oracle => Err(Wrong::Cut),
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

    /// An error in the line or record after the complete ones.
    fn error(&self, wrong: Wrong) -> TraceError {
        let next = self.read + 1;
        let at = match self.parser {
            Parser::Oracle => Place::Record(next),
            _ => Place::Line(next),
        };
        TraceError { at, wrong }
    }
}
