//! What may stand where a record may begin: a record's head, the sign that a frame is not sent, the end mark.

use crate::{RECORD_HEAD, RecordHead};
use pierhead_toc::Error;

const WHAT: &str = "record";
const UNSENT: u8 = 0xfe;
const END: u8 = 0xff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Record(RecordHead),
    /// The frame is not sent: its contents are to be asked for one by one.
    Unsent,
    /// Nothing follows.
    End(End),
}

/// The end mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Records of this response, signs that a frame is not sent included.
    pub records: u32,
    /// Bytes of their payloads.
    pub payload: u64,
}

impl End {
    /// The last bytes of a bundle.
    pub fn encode(&self) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        bytes[0] = END;
        bytes[4..8].copy_from_slice(&self.records.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.payload.to_le_bytes());
        bytes
    }
}

/// Stands instead of the record of a frame that the server can no longer make.
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
                        WHAT,
                        "an end mark with more than its counts",
                    ))
                }
            }
            _ => RecordHead::decode(bytes).map(Self::Record),
        }
    }
}
