//! Creates a CA for tests, and files with certificates of this CA for pierhead and its clients.

use std::{fs, path::PathBuf};

use anyhow::Result;
use pierhead_testkit::registry::Authority;
use pierhead_tests::paths;
use tempfile::TempDir;

/// The names in the certificate of a server on loopback.
const LOOPBACK_NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

/// A folder with an authority (`ca.crt`), the certificates that it issued, and other files.
pub(crate) struct Files {
    folder: TempDir,
    authority: Authority,
}

impl Files {
    /// Creates a folder with `ca.crt`, `server.cert` and `server.key`.
    pub(crate) fn new() -> Result<Self> {
        let files = Self {
            folder: paths::scratch("certified")?,
            authority: Authority::new(),
        };
        fs::write(files.path("ca.crt"), files.authority.pem())?;
        files.issue("server", &LOOPBACK_NAMES)?;
        Ok(files)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The certificate of the authority, as PEM text.
    pub(crate) fn ca(&self) -> &str {
        self.authority.pem()
    }

    /// Creates a certificate for these names and its key, as `NAME.cert` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, hosts: &[&str]) -> Result<()> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let (certificate, key) = self.authority.issue(&hosts);
        fs::write(self.path(&format!("{name}.key")), key)?;
        Ok(fs::write(self.path(&format!("{name}.cert")), certificate)?)
    }

    /// A folder with only `ca.crt`, in which clients look for authorities.
    pub(crate) fn trusted(&self) -> Result<PathBuf> {
        let folder = self.path("trusted");
        fs::create_dir(&folder)?;
        fs::copy(self.path("ca.crt"), folder.join("ca.crt"))?;
        Ok(folder)
    }

    /// The `[tls]` table for pierhead with the certificate of the server.
    pub(crate) fn tls(&self) -> String {
        let (certificate, key) = (self.path("server.cert"), self.path("server.key"));
        format!("[tls]\ncert = {certificate:?}\nkey = {key:?}\n")
    }
}
