//! The three kinds of heads in a bundle: the head of a record, the mark of an unsent frame, and the
//! end mark.

use crate::Error;
use crate::{RECORD_HEAD, RecordHead};

const FORMAT_NAME: &str = "record";
const UNSENT: u8 = 0xfe;
const END: u8 = 0xff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Record(RecordHead),
    /// The mark of a frame that the server does not send. The worker requests the contents of this
    /// frame one by one.
    Unsent,
    /// The end mark of the bundle.
    End(End),
}

/// The end mark, with the counts of records and bytes in the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Number of records, including the marks of unsent frames.
    pub records: u32,
    /// Number of bytes of the payloads of all records.
    pub payload: u64,
}

impl End {
    /// Encodes the end mark, the last bytes of a bundle.
    pub fn encode(&self) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        bytes[0] = END;
        bytes[4..8].copy_from_slice(&self.records.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.payload.to_le_bytes());
        bytes
    }
}

/// Encodes the mark of an unsent frame, which stands in place of its record.
pub fn unsent() -> [u8; RECORD_HEAD] {
    let mut bytes = [0; RECORD_HEAD];
    bytes[0] = UNSENT;
    bytes
}

impl Head {
    pub(super) fn decode(bytes: &[u8; RECORD_HEAD]) -> Result<Self, Error> {
        match bytes[0] {
            UNSENT if *bytes == unsent() => Ok(Self::Unsent),
            END => {
                let (mut records, mut payload) = ([0; 4], [0; 8]);
                records.copy_from_slice(&bytes[4..8]);
                payload.copy_from_slice(&bytes[8..16]);
                let end = End {
                    records: u32::from_le_bytes(records),
                    payload: u64::from_le_bytes(payload),
                };
                if end.encode() == *bytes {
                    Ok(Self::End(end))
                } else {
                    Err(Error::malformed(
                        FORMAT_NAME,
                        "reserved bytes of the end mark are set",
                    ))
                }
            }
            _ => RecordHead::decode(bytes).map(Self::Record),
        }
    }
}
