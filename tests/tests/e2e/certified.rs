//! Certificates of one authority, in files.

use std::{fs, path::PathBuf};

use anyhow::Result;
use pierhead_testkit::registry::Authority;
use pierhead_tests::place;
use tempfile::TempDir;

/// What a server on loopback has.
const HERE: [&str; 2] = ["127.0.0.1", "localhost"];

/// An authority (`ca.crt`), what it issued, and room for more files.
pub(crate) struct Files {
    folder: TempDir,
    authority: Authority,
}

impl Files {
    /// With `server.cert` and `server.key`.
    pub(crate) fn new() -> Result<Self> {
        let files = Self {
            folder: place::scratch("certified")?,
            authority: Authority::new(),
        };
        fs::write(files.path("ca.crt"), files.authority.pem())?;
        files.issue("server", &HERE)?;
        Ok(files)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The authority's own certificate.
    pub(crate) fn ca(&self) -> &str {
        self.authority.pem()
    }

    /// A certificate for these names and its key, as `NAME.cert` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, hosts: &[&str]) -> Result<()> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let (certificate, key) = self.authority.issue(&hosts);
        fs::write(self.path(&format!("{name}.key")), key)?;
        Ok(fs::write(self.path(&format!("{name}.cert")), certificate)?)
    }

    /// A folder as clients look for authorities in: `ca.crt` alone.
    pub(crate) fn trusted(&self) -> Result<PathBuf> {
        let folder = self.path("trusted");
        fs::create_dir(&folder)?;
        fs::copy(self.path("ca.crt"), folder.join("ca.crt"))?;
        Ok(folder)
    }

    /// The server's, for pierhead.
    pub(crate) fn tls(&self) -> String {
        let (certificate, key) = (self.path("server.cert"), self.path("server.key"));
        format!("[tls]\ncert = {certificate:?}\nkey = {key:?}\n")
    }
}
