//! Tests of the log against a model, on a simulated medium whose power can be cut. This module has
//! the model and the code that
//! calls the log at random.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Entry, Log, Options, UncommittedReader, Writer};
use crate::Error;
use crate::shadow::ShadowMedium;

mod cuts;
mod damage;
mod encoding;
mod segments;
mod using;
mod values;

const SEGMENT: u64 = 4096;
const SEGMENT_COUNT: u64 = 14;
const OPTIONS: Options = Options { segment: SEGMENT };

type Bytes = Arc<Vec<u8>>;

/// The expected contents of a log.
#[derive(Clone, Default)]
struct Model {
    /// Whether the log was opened before.
    opened: bool,
    values: BTreeMap<Vec<u8>, Bytes>,
    /// A change whose call has not returned: after a power cut, the change may be durable or not.
    doubt: Option<(Vec<u8>, Option<Bytes>)>,
}

fn medium() -> ShadowMedium {
    ShadowMedium::new(usize::try_from(8192 + SEGMENT_COUNT * SEGMENT).unwrap_or(0))
}

fn open(medium: &ShadowMedium) -> Log<ShadowMedium> {
    Log::open(medium.clone(), OPTIONS).unwrap().0
}

fn content(random: &mut fastrand::Rng, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    Arc::new(bytes)
}

/// Creates a meta that depends on the content. A test thus detects the meta of another value.
fn meta(content: &[u8]) -> Vec<u8> {
    let sum = crc32c::crc32c(content).to_le_bytes();
    sum.iter()
        .copied()
        .cycle()
        .take(4 + content.len() % 50)
        .collect()
}

fn put(log: &Log<ShadowMedium>, key: &[u8], content: &[u8]) -> Result<Entry, Error> {
    let mut writer = log.begin(key)?;
    for piece in content.chunks(1500) {
        writer.write(piece)?;
    }
    writer.commit(&meta(content))
}

fn read(log: &Log<ShadowMedium>, entry: &Entry) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(entry.len()).unwrap()];
    log.read_at(entry, 0, &mut bytes).unwrap();
    bytes
}

impl Model {
    /// Checks that the log equals the model. Where the model is uncertain, the model takes over the
    /// value of the log.
    fn check(&mut self, log: &Log<ShadowMedium>) -> Result<(), String> {
        if let Some((key, change)) = self.doubt.take() {
            let found = log.get(&key).map_err(|error| error.to_string())?;
            let found = found.map(|entry| read(log, &entry));
            if found.as_deref() == change.as_ref().map(|bytes| bytes.as_slice()) {
                match change {
                    Some(bytes) => self.values.insert(key, bytes),
                    None => self.values.remove(&key),
                };
            }
        }
        let mut listed = 0;
        log.entries(&mut |_| listed += 1);
        if listed != self.values.len() {
            return Err(format!("{listed} values, not {}", self.values.len()));
        }
        for (key, bytes) in &self.values {
            let entry = log.get(key).map_err(|error| error.to_string())?;
            let entry = entry.ok_or_else(|| format!("{key:?} is lost"))?;
            if entry.len() != bytes.len() as u64
                || entry.meta() != meta(bytes)
                || read(log, &entry) != **bytes
            {
                return Err(format!("{key:?} is not what was committed"));
            }
        }
        Ok(())
    }
}

/// A value that is being written: key, writer, written bytes, and final length.
type Writing = (Vec<u8>, Writer<ShadowMedium>, Vec<u8>, usize);

/// Uses a log at random, with several writers and readers at the same time.
struct Driver {
    log: Log<ShadowMedium>,
    medium: ShadowMedium,
    model: Arc<parking_lot::Mutex<Model>>,
    random: fastrand::Rng,
    writers: Vec<Writing>,
    readers: Vec<(Entry, Bytes)>,
    partials: Vec<UncommittedReader<ShadowMedium>>,
    refused: u64,
}

impl Driver {
    fn new(
        medium: &ShadowMedium,
        model: Arc<parking_lot::Mutex<Model>>,
        seed: u64,
    ) -> Result<Self, Error> {
        let log = Log::open(medium.clone(), OPTIONS)?.0;
        model.lock().opened = true;
        Ok(Self {
            log,
            medium: medium.clone(),
            model,
            random: fastrand::Rng::with_seed(seed),
            writers: Vec::new(),
            readers: Vec::new(),
            partials: Vec::new(),
            refused: 0,
        })
    }

    fn step(&mut self) -> Result<(), Error> {
        self.medium.lane(self.random.u32(0..2));
        let done = match self.random.u32(0..20) {
            0..5 if self.writers.len() < 3 => self.begin(),
            0..9 => self.write(),
            9..13 => self.commit(),
            13 => {
                self.abort();
                Ok(())
            }
            14..16 => self.remove(),
            16..18 => self.hold(),
            18 => self.let_go(),
            _ => {
                let capacity = self.log.capacity();
                self.log.set_limit(if self.random.bool() {
                    capacity
                } else {
                    capacity / 2
                });
                Ok(())
            }
        };
        match done {
            Err(Error::NoRoom) => {
                self.refused += 1;
                self.let_go()?;
                self.remove()
            }
            done => done,
        }
    }

    fn begin(&mut self) -> Result<(), Error> {
        let key = vec![self.random.u8(0..12); self.random.usize(1..3)];
        let most = if self.random.u32(0..4) == 0 {
            9000
        } else {
            700
        };
        let len = self.random.usize(0..most);
        let writer = self.log.begin(&key)?;
        if self.random.u32(0..4) == 0 && self.partials.len() < 3 {
            self.partials.push(writer.reader());
        }
        self.writers.push((key, writer, Vec::new(), len));
        Ok(())
    }

    fn write(&mut self) -> Result<(), Error> {
        if self.writers.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(0..self.writers.len());
        let len = self.writers[at].3.saturating_sub(self.writers[at].2.len());
        let bytes = content(&mut self.random, len.min(2000));
        let (_, writer, written, _) = &mut self.writers[at];
        let done = writer.write(&bytes);
        written.extend_from_slice(&bytes);
        if done.is_err() {
            self.writers.swap_remove(at);
        }
        done
    }

    fn commit(&mut self) -> Result<(), Error> {
        if self.writers.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(0..self.writers.len());
        let (key, mut writer, mut bytes, len) = self.writers.swap_remove(at);
        let rest = content(&mut self.random, len.saturating_sub(bytes.len()));
        writer.write(&rest)?;
        bytes.extend_from_slice(&rest);
        let bytes = Arc::new(bytes);
        self.model.lock().doubt = Some((key.clone(), Some(Arc::clone(&bytes))));
        let meta = meta(&bytes);
        let done = writer.commit(&meta);
        let mut model = self.model.lock();
        let doubt = model.doubt.take();
        match done {
            Ok(_) => drop(model.values.insert(key, bytes)),
            Err(Error::NoRoom) => return Err(Error::NoRoom),
            Err(error) => {
                model.doubt = doubt;
                return Err(error);
            }
        }
        Ok(())
    }

    fn abort(&mut self) {
        if !self.writers.is_empty() {
            let at = self.random.usize(0..self.writers.len());
            self.writers.swap_remove(at);
        }
    }

    fn remove(&mut self) -> Result<(), Error> {
        let keys: Vec<_> = self.model.lock().values.keys().cloned().collect();
        let Some(key) = self.random.choice(keys) else {
            return Ok(());
        };
        self.model.lock().doubt = Some((key.clone(), None));
        assert!(self.log.remove(&key)?);
        let mut model = self.model.lock();
        model.doubt = None;
        model.values.remove(&key);
        Ok(())
    }

    fn hold(&mut self) -> Result<(), Error> {
        let values: Vec<_> = self.model.lock().values.clone().into_iter().collect();
        let Some((key, bytes)) = self.random.choice(values) else {
            return Ok(());
        };
        if self.readers.len() < 3
            && let Some(entry) = self.log.get(&key)?
        {
            // Half of the readers also mark their value as sent by `sendfile`.
            if self.random.bool() {
                self.log.sendable_run(&entry, 0);
            }
            self.readers.push((entry, bytes));
        }
        Ok(())
    }

    /// Checks the bytes that the readers read, and drops the readers.
    fn let_go(&mut self) -> Result<(), Error> {
        for (entry, bytes) in self.readers.drain(..) {
            let mut seen = vec![0; bytes.len()];
            self.log.read_at(&entry, 0, &mut seen)?;
            assert_eq!(seen, *bytes);
        }
        for partial in self.partials.drain(..) {
            let mut bytes = vec![0; usize::try_from(partial.len()).unwrap()];
            partial.read_at(0, &mut bytes)?;
        }
        Ok(())
    }
}
