//! A test machine: a folder that stands for the root of a machine, with functions to set up and
//! undo its clients.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::path::PathBuf;

use pierhead_client_setup::{
    Address, Client, ConfigRoot, ConfiguredMirrors, Error, Options, Outcome, Setup, SetupLock, Undo,
};

/// The root folder of a machine.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
    pub(crate) root: ConfigRoot,
}

impl Machine {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let machine = Self { folder, root };
        for (path, text) in files {
            machine.write(path, text);
        }
        machine
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// Sets up a client, and returns the number of changed files.
    pub(crate) fn set_up(&self, client: Client, address: &str) -> Result<usize, Error> {
        self.set_up_for(client, address, &[])
    }

    pub(crate) fn set_up_for(
        &self,
        client: Client,
        address: &str,
        registries: &[&str],
    ) -> Result<usize, Error> {
        let address: Address = address.parse().expect("an address");
        let registries: Vec<_> = registries.iter().map(|name| (*name).to_owned()).collect();
        let options = Options {
            client,
            address: &address,
            ca: address.is_tls().then_some("PEM\n"),
            registries: &registries,
            config: None,
        };
        let lock = SetupLock::take(&self.root)?;
        let setup = Setup::plan(&self.root, &options)?;
        setup.apply(&lock)?;
        Ok(setup.changes().len())
    }

    pub(crate) fn undo(&self, client: Client) -> Result<(), Error> {
        let lock = SetupLock::take(&self.root)?;
        let undo = Undo::plan(&self.root, client)?.expect("a record");
        undo.apply(&lock)?;
        undo.check_edited(Outcome::Untouched)
    }

    pub(crate) fn mirrors(&self, client: Client) -> Vec<String> {
        let found = ConfiguredMirrors::read(&self.root, client, None);
        found.expect("it is read").mirrors
    }

    /// Returns every path below the root, sorted.
    pub(crate) fn everything(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                found.push(path);
            }
        }
        found.sort();
        found
    }
}

pub(crate) const LOOPBACK_ADDRESS: &str = "http://127.0.0.1:5000";
pub(crate) const REMOTE_ADDRESS: &str = "https://p.example:5000";
