//! The folders with the configuration files of clients. The clients are those of this machine,
//! those in the root folder of an image, or those of one user.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext as _};

/// Maximum number of bytes of a client's configuration file.
const MAX_FILE: u64 = 4 << 20;

/// The configuration folders of one machine or of one user. All paths are as the clients see them,
/// that is, without the root folder.
#[derive(Clone, Debug)]
pub struct ConfigRoot {
    /// The root folder, with which every real path begins: `/` for this machine.
    root: PathBuf,
    /// `/etc`, or `~/.config` for the clients of a user.
    etc: PathBuf,
    /// The folder with the records of the changed files, for an undo.
    state: PathBuf,
    user: bool,
}

impl ConfigRoot {
    /// Returns the folders of this machine (`/`), or of the root folder of an image.
    pub fn system(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            etc: PathBuf::from("/etc"),
            state: PathBuf::from("/var/lib/pierhead-setup"),
            user: false,
        }
    }

    /// Returns the folders of the clients of one user.
    pub fn user(config: &Path, state: &Path) -> Self {
        Self {
            root: PathBuf::from("/"),
            etc: config.to_owned(),
            state: state.join("pierhead-setup"),
            user: true,
        }
    }

    /// Returns the root folder, with which every real path begins.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a path below the configuration folder.
    pub fn etc(&self, path: &str) -> PathBuf {
        self.etc.join(path)
    }

    /// Returns the folder with the records of changed files.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Whether the root folder is that of the running machine, whose daemons can be queried.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Whether these folders belong to the clients of one user.
    pub fn is_user(&self) -> bool {
        self.user
    }

    /// Returns the real path: the root folder, followed by the path that the client sees.
    pub fn real(&self, path: &Path) -> PathBuf {
        if self.is_live() {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the text of a file, or `None` if the file does not exist.
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

    /// Returns the files in a folder whose names end in `suffix`, sorted by name, as the clients
    /// sort their files.
    pub(crate) fn list(&self, folder: &Path, suffix: &str) -> Result<Vec<PathBuf>, Error> {
        let names = self.names(folder)?;
        let matching = names.into_iter().filter(|name| name.ends_with(suffix));
        Ok(matching.map(|name| folder.join(name)).collect())
    }

    /// Returns the sorted names in a folder. If the folder does not exist, the list is empty.
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
    fn paths_are_resolved_below_the_root() {
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
    fn only_utf8_files_up_to_the_maximum_size_are_read() {
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
    fn the_names_in_a_folder_are_sorted() {
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
