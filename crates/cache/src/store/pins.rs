//! Pins: protect digests from eviction. Each pin is stored in one file. The label of a pin is an
//! image reference.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pierhead_oci::Digest;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::store::record;
use crate::store::record::LoadedRecord;

pub(crate) struct Pins {
    folder: PathBuf,
    /// All pins by label. The table stays locked during the write of a file, so that memory and
    /// disk change together.
    labels: Mutex<BTreeMap<String, Vec<Digest>>>,
}

#[derive(Serialize, Deserialize)]
struct Pin {
    label: String,
    digests: Vec<Digest>,
}

impl Pins {
    /// # Errors
    /// [`Error::UnreadablePin`] if a pin cannot be read: without this pin, the pinned images would
    /// be evicted.
    pub(crate) fn open(data: &Path) -> Result<Self, Error> {
        let folder = data.join("pins");
        let mut labels = BTreeMap::new();
        let mut unreadable = None;
        let loaded = record::load(&folder, |found| match found {
            LoadedRecord::Whole(_, Pin { label, digests }) => drop(labels.insert(label, digests)),
            LoadedRecord::Unreadable(pin) => unreadable = Some(pin),
        });
        loaded.map_err(|error| Error::io("read the pins in", &folder, error))?;
        if let Some(pin) = unreadable {
            return Err(Error::UnreadablePin {
                path: pin.path,
                source: pin.source.into(),
            });
        }
        Ok(Self {
            folder,
            labels: Mutex::new(labels),
        })
    }

    /// Sets the digests of a label, or removes the label with `None`. Calls `change` with the old
    /// and the new digests of the label. The calls have the same order as the writes. Returns
    /// whether the label existed. Blocks. The change is durable when the call returns.
    pub(crate) fn set(
        &self,
        label: &str,
        digests: Option<Vec<Digest>>,
        change: impl FnOnce(&[Digest], &[Digest]),
    ) -> Result<bool, Error> {
        let mut labels = self.labels.lock();
        let failed = |error| Error::io("change pins in", &self.folder, error);
        let (before, after) = match digests {
            Some(digests) => {
                let digests: Vec<_> = digests
                    .into_iter()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect();
                let pin = Pin {
                    label: label.to_owned(),
                    digests,
                };
                record::store(&self.folder, label, &pin).map_err(failed)?;
                (labels.insert(pin.label, pin.digests.clone()), pin.digests)
            }
            None => {
                record::delete(&self.folder, label).map_err(failed)?;
                (labels.remove(label), Vec::new())
            }
        };
        change(before.as_deref().unwrap_or_default(), &after);
        Ok(before.is_some())
    }

    /// Returns all labels in order, with their digests.
    pub(crate) fn all(&self) -> Vec<(String, Vec<Digest>)> {
        self.labels
            .lock()
            .iter()
            .map(|(label, digests)| (label.clone(), digests.clone()))
            .collect()
    }
}
