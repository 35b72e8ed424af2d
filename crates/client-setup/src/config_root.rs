//! Where the configuration of clients is: on this machine, in the root of an image, or of one user.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext as _};

/// Nothing that is configured by hand is larger.
const MAX_FILE: u64 = 4 << 20;

/// The folders of one machine or of one user. Paths are as the clients see them.
#[derive(Clone, Debug)]
pub struct ConfigRoot {
    /// Before every path; `/` on the machine itself.
    root: PathBuf,
    /// `/etc`, or `~/.config` for a user's own clients.
    etc: PathBuf,
    /// Where the record of changed files is.
    state: PathBuf,
    user: bool,
}

impl ConfigRoot {
    /// A machine, or an image below `root`.
    pub fn system(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            etc: PathBuf::from("/etc"),
            state: PathBuf::from("/var/lib/pierhead-setup"),
            user: false,
        }
    }

    /// One user's own clients.
    pub fn user(config: &Path, state: &Path) -> Self {
        Self {
            root: PathBuf::from("/"),
            etc: config.to_owned(),
            state: state.join("pierhead-setup"),
            user: true,
        }
    }

    /// Stands before every path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the folder of configurations.
    pub fn etc(&self, path: &str) -> PathBuf {
        self.etc.join(path)
    }

    /// Where the record is.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Whether this is the running machine, so that its daemons can be asked.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Whether it is about a user's own clients.
    pub fn is_user(&self) -> bool {
        self.user
    }

    /// Where a path really is.
    pub fn real(&self, path: &Path) -> PathBuf {
        if self.is_live() {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file; `None` when there is none.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<String>, Error> {
        let real = self.real(path);
        let metadata = match fs::metadata(&real) {
            Ok(metadata) => metadata,
            Err(error) if is_missing(&error) => {
                if fs::symlink_metadata(&real).is_ok() {
                    return Err(Error::DanglingLink { path: real });
                }
                return Ok(None);
            }
            Err(error) => return Err(error).context("read", &real),
        };
        if !metadata.is_file() || metadata.len() > MAX_FILE {
            return Err(Error::NotAConfigFile { path: real });
        }
        let bytes = fs::read(&real).context("read", &real)?;
        let text = String::from_utf8(bytes);
        Ok(Some(text.map_err(|_| Error::NotUtf8 { path: real })?))
    }

    /// The files in a folder whose names end in `suffix`, sorted as their readers sort them.
    pub(crate) fn list(&self, folder: &Path, suffix: &str) -> Result<Vec<PathBuf>, Error> {
        let names = self.names(folder)?;
        let matching = names.into_iter().filter(|name| name.ends_with(suffix));
        Ok(matching.map(|name| folder.join(name)).collect())
    }

    /// The names in a folder, sorted; none when there is no folder.
    pub(crate) fn names(&self, folder: &Path) -> Result<Vec<String>, Error> {
        let real = self.real(folder);
        let entries = match fs::read_dir(&real) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error).context("read", &real),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.context("read", &real)?;
            names.extend(entry.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_below_the_root() {
        let image = ConfigRoot::system(Path::new("/image"));
        let etc = image.etc("docker/daemon.json");
        assert_eq!(etc, Path::new("/etc/docker/daemon.json"));
        assert_eq!(image.real(&etc), Path::new("/image/etc/docker/daemon.json"));
        assert!(!image.is_live() && !image.is_user());
        let system = ConfigRoot::system(Path::new("/"));
        assert_eq!(system.real(&etc), etc);
        assert!(system.is_live());
        let user = ConfigRoot::user(Path::new("/home/a/.config"), Path::new("/home/a/.state"));
        assert_eq!(user.etc("x"), Path::new("/home/a/.config/x"));
        assert_eq!(user.state(), Path::new("/home/a/.state/pierhead-setup"));
        assert!(user.is_live() && user.is_user());
    }

    #[test]
    fn only_text_files_of_a_sane_size_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let read = |name: &str| root.read(&Path::new("/").join(name));
        assert_eq!(read("none").expect("read"), None);
        fs::write(folder.path().join("text"), "text").expect("written");
        assert_eq!(read("text").expect("read").as_deref(), Some("text"));
        assert_eq!(read("text/below").expect("read"), None);
        fs::write(folder.path().join("bytes"), [0xff]).expect("written");
        assert!(matches!(read("bytes"), Err(Error::NotUtf8 { .. })));
        let large = fs::File::create(folder.path().join("large")).expect("made");
        large.set_len(MAX_FILE + 1).expect("grown");
        assert!(matches!(read("large"), Err(Error::NotAConfigFile { .. })));
        fs::create_dir(folder.path().join("folder")).expect("made");
        assert!(matches!(read("folder"), Err(Error::NotAConfigFile { .. })));
        symlink("nothing", folder.path().join("link")).expect("a link");
        assert!(matches!(read("link"), Err(Error::DanglingLink { .. })));
    }

    #[test]
    fn names_of_a_folder_are_sorted() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        for name in ["b.conf", "a.conf", "c.toml"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let top = Path::new("/");
        assert_eq!(
            root.names(top).expect("read"),
            ["a.conf", "b.conf", "c.toml"]
        );
        let conf = root.list(top, ".conf").expect("read");
        assert_eq!(conf, ["/a.conf", "/b.conf"].map(PathBuf::from));
        assert!(root.names(Path::new("/none")).expect("read").is_empty());
    }
}
