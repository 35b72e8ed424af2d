//! What was changed, so that it can be put back: one file for each kind of client, written before the first
//! change is made and removed after the last one is taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::apply;
use super::place::{Place, denied};
use crate::cli::setup::Client;

/// The file's own version.
const VERSION: u32 = 1;

/// What was done for one client.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) files: BTreeMap<PathBuf, Entry>,
    /// Folders that did not exist before, inner ones first.
    pub(crate) folders: Vec<PathBuf>,
}

/// One file: exactly what it held, and what was written. `None` is no file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
    /// What an earlier run had left there, when that is neither: a run that is killed before it wrote leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<String>,
}

/// A file that was changed since, in the same lines as by us.
pub(crate) struct Changed;

impl Entry {
    /// What the file would hold had we never written it: what it held, with what others changed since.
    ///
    /// # Errors
    /// [`Changed`].
    pub(crate) fn without_us(&self, now: Option<&str>) -> Result<Option<String>, Changed> {
        if now == self.after.as_deref() || now == self.before.as_deref() {
            return Ok(self.before.clone());
        }
        if now.is_some() && now == self.found.as_deref() {
            return Ok(self.before.clone());
        }
        match (&self.after, now, &self.before) {
            // Somebody took away what only we had made.
            (_, None, None) => Ok(None),
            (Some(after), Some(now), before) => {
                let before = before.as_deref();
                match diffy::merge(after, now, before.unwrap_or("")) {
                    Ok(merged) => {
                        Ok(Some(merged).filter(|it| before.is_some() || !it.trim().is_empty()))
                    }
                    // Written anew by hand: it is theirs, and what we wrote is gone already.
                    Err(_) if names_nothing_of_ours(after, now, before) => Ok(Some(now.to_owned())),
                    Err(_) => Err(Changed),
                }
            }
            _ => Err(Changed),
        }
    }
}

/// Whether none of the values that came with us (addresses, folders) is in the file any more.
fn names_nothing_of_ours(after: &str, now: &str, before: Option<&str>) -> bool {
    let theirs = quoted(before.unwrap_or(""));
    let ours = quoted(after).into_iter().filter(|it| !theirs.contains(it));
    // A key, such as `registry-mirrors`, is anybody's.
    let mut values = ours.filter(|it| it.contains(['/', ':'])).peekable();
    values.peek().is_some() && values.all(|value| !now.contains(value))
}

/// The strings of a JSON or TOML text.
fn quoted(text: &str) -> BTreeSet<&str> {
    let between = |quote| text.split(quote).skip(1).step_by(2);
    between('"').chain(between('\'')).collect()
}

fn path(place: &Place, client: Client) -> PathBuf {
    // One file for those who read the same ones.
    let name = match client {
        Client::Docker => "docker.json",
        Client::Containerd => "containerd.json",
        Client::Podman | Client::Crio => "containers.json",
    };
    place.real(place.state()).join(name)
}

impl Record {
    pub(crate) fn new(files: BTreeMap<PathBuf, Entry>, folders: Vec<PathBuf>) -> Self {
        Self {
            version: VERSION,
            files,
            folders,
        }
    }

    /// What was done before; `None` if nothing.
    pub(crate) fn load(place: &Place, client: Client) -> anyhow::Result<Option<Self>> {
        let path = path(place, client);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(denied(error).context(format!("cannot read {}", path.display())));
            }
        };
        let record: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no record of pierhead setup", path.display()))?;
        if record.version != VERSION {
            bail!(
                "{} is of another version of pierhead: use that one",
                path.display()
            );
        }
        Ok(Some(record))
    }

    /// Keeps it, for root alone: configurations may hold secrets.
    pub(crate) fn save(&self, place: &Place, client: Client) -> anyhow::Result<()> {
        let path = path(place, client);
        let text = serde_json::to_string_pretty(self)?;
        apply::write(place, &path, &text, 0o600)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Forgets it.
    pub(crate) fn remove(place: &Place, client: Client) -> anyhow::Result<()> {
        let path = path(place, client);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(denied(error).context(format!("cannot remove {}", path.display())))
            }
            _ => {
                let _ = fs::remove_dir(place.real(place.state()));
                Ok(())
            }
        }
    }

    /// Where it is, for messages.
    pub(crate) fn shown(place: &Place, client: Client) -> String {
        path(place, client).display().to_string()
    }
}

/// Held while files are looked at and changed: one setup at a time. Folders that it had to make and that
/// nobody used go with it.
pub(crate) struct Lock<'a> {
    place: &'a Place,
    made: Vec<PathBuf>,
    _folder: File,
}

impl<'a> Lock<'a> {
    /// Waits for it.
    pub(crate) fn take(place: &'a Place) -> anyhow::Result<Self> {
        let real = place.real(place.state());
        let made = apply::missing_folders(place, &place.state().join("record"));
        // The folder itself is the lock, so that nothing of it is left behind.
        let open = || {
            fs::create_dir_all(&real)?;
            File::open(&real)
        };
        let folder = open()
            .map_err(denied)
            .with_context(|| format!("cannot write below {}", real.display()))?;
        folder.lock().context("cannot lock the record")?;
        Ok(Self {
            place,
            made,
            _folder: folder,
        })
    }

    /// The folders that were made for it.
    pub(crate) fn made(&self) -> &[PathBuf] {
        &self.made
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        apply::remove_empty(self.place, &self.made);
    }
}
