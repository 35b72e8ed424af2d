//! Reads a file tree from disk, and compares two trees entry by entry.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::Path,
};

use anyhow::{Context, Result};

use crate::layout;

/// Maximum number of listed differences. If a comparison finds more differences, the list ends with
/// the number of further differences.
const MAX_LISTED: usize = 40;

/// All entries of a folder, including the folder itself (the empty path).
#[derive(Clone, Debug)]
pub struct Tree(BTreeMap<Vec<u8>, Node>);

/// An entry with all attributes that an image can set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: Kind,
    /// The permission bits: the lower 12 bits of the mode.
    mode: u32,
    owner: (u32, u32),
    /// Modification time, in seconds and nanoseconds.
    modified: (i64, i64),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first name of a hard-linked entry.
    first_name: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Directory,
    File { size: u64, digest: String },
    Symlink(Vec<u8>),
    CharDevice(u64),
    BlockDevice(u64),
    Fifo,
    Socket,
}

/// Attributes that a comparison ignores, because an unpacker did not preserve them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leniency {
    /// Times of directories, for unpackers that write into a directory and do not restore its time.
    pub times_of_directories: bool,
    /// Extended attributes of directories, for unpackers that leave those of a lower layer.
    pub xattrs_of_directories: bool,
    /// Nanoseconds of all times.
    pub nanoseconds: bool,
    /// Hard links of entries other than regular files.
    pub links_of_specials: bool,
    /// Times of symbolic links.
    pub times_of_symlinks: bool,
    /// Attributes of the root folder. Some images have no entry for the root folder.
    pub root: bool,
}

impl Tree {
    /// Reads the whole tree and hashes every file. Includes files on other file systems that are
    /// mounted in the tree.
    pub fn read(root: &Path) -> Result<Self> {
        let mut tree = BTreeMap::new();
        let mut inodes = BTreeMap::new();
        let mut open = vec![Vec::new()];
        while let Some(path) = open.pop() {
            let at = if path.is_empty() {
                root.to_owned()
            } else {
                root.join(std::ffi::OsStr::from_bytes(&path))
            };
            let (node, inode) = Node::read(&at).with_context(|| at.display().to_string())?;
            if node.kind == Kind::Directory {
                for entry in at.read_dir().with_context(|| at.display().to_string())? {
                    let name = entry?.file_name().into_vec();
                    open.push(match path.is_empty() {
                        true => name,
                        false => [&path[..], b"/", &name].concat(),
                    });
                }
            }
            if let Some(inode) = inode {
                match inodes.entry(inode) {
                    Entry::Vacant(entry) => drop(entry.insert(vec![path.clone()])),
                    Entry::Occupied(mut entry) => entry.get_mut().push(path.clone()),
                }
            }
            tree.insert(path, node);
        }
        for names in inodes.into_values().filter(|names| names.len() > 1) {
            let first = names.iter().min().cloned();
            for name in names {
                if let Some(node) = tree.get_mut(&name) {
                    node.first_name.clone_from(&first);
                }
            }
        }
        Ok(Self(tree))
    }

    /// Number of entries, including the root.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the tree has no entries, which is never true for a tree that was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The differences to the other tree, one sentence each.
    pub fn differences(&self, other: &Self, leniency: Leniency) -> Vec<String> {
        let mut found = Vec::new();
        let mut count = 0;
        let mut tell = |path: &[u8], what: String| {
            count += 1;
            if count <= MAX_LISTED {
                found.push(format!("/{}: {what}", path.escape_ascii()));
            }
        };
        for (path, here) in &self.0 {
            match other.0.get(path) {
                None => tell(path, "only in the first".to_owned()),
                Some(there) => {
                    let is_root = path.is_empty() && leniency.root;
                    for what in here.differences(there, leniency) {
                        if !is_root {
                            tell(path, what);
                        }
                    }
                }
            }
        }
        for path in other.0.keys().filter(|path| !self.0.contains_key(*path)) {
            tell(path, "only in the second".to_owned());
        }
        if count > MAX_LISTED {
            found.push(format!("… and {} more", count - MAX_LISTED));
        }
        found
    }
}

impl Node {
    /// Reads an entry. If it has several hard links, also returns its device and inode number.
    fn read(at: &Path) -> Result<(Self, Option<(u64, u64)>)> {
        let about = at.symlink_metadata()?;
        let file_type = about.file_type();
        let kind = if file_type.is_dir() {
            Kind::Directory
        } else if file_type.is_file() {
            Kind::File {
                size: about.len(),
                digest: layout::digest_of(at)?,
            }
        } else if file_type.is_symlink() {
            Kind::Symlink(at.read_link()?.into_os_string().into_vec())
        } else if file_type.is_char_device() {
            Kind::CharDevice(about.rdev())
        } else if file_type.is_block_device() {
            Kind::BlockDevice(about.rdev())
        } else if file_type.is_fifo() {
            Kind::Fifo
        } else {
            Kind::Socket
        };
        let has_names = kind != Kind::Directory && about.nlink() > 1;
        let node = Self {
            kind,
            mode: about.mode() & 0o7777,
            owner: (about.uid(), about.gid()),
            modified: (about.mtime(), about.mtime_nsec()),
            xattrs: xattrs(at)?,
            first_name: None,
        };
        Ok((node, has_names.then_some((about.dev(), about.ino()))))
    }

    fn differences(&self, other: &Self, leniency: Leniency) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, here: &dyn fmt::Debug, there: &dyn fmt::Debug| {
            let (here, there) = (format!("{here:?}"), format!("{there:?}"));
            if here != there {
                found.push(format!("{what} {here} and {there}"));
            }
        };
        compare("kind", &self.kind, &other.kind);
        compare("mode", &Octal(self.mode), &Octal(other.mode));
        compare("owner", &self.owner, &other.owner);
        if !(leniency.xattrs_of_directories && self.kind == Kind::Directory) {
            compare("xattrs", &Xattrs(&self.xattrs), &Xattrs(&other.xattrs));
        }
        let timeless = match self.kind {
            Kind::Directory => leniency.times_of_directories,
            Kind::Symlink(_) => leniency.times_of_symlinks,
            _ => false,
        };
        if !timeless {
            let (mut here, mut there) = (self.modified, other.modified);
            if leniency.nanoseconds {
                (here.1, there.1) = (0, 0);
            }
            compare("time", &here, &there);
        }
        let is_file = matches!(self.kind, Kind::File { .. });
        if is_file || !leniency.links_of_specials {
            let name = |node: &Self| {
                node.first_name
                    .as_ref()
                    .map(|it| it.escape_ascii().to_string())
            };
            compare("the same file as", &name(self), &name(other));
        }
        found
    }
}

/// All extended attributes of the entry itself, without following symbolic links.
fn xattrs(at: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    /// Maximum size of an attribute list and of a value in Linux, in bytes.
    const MAX_XATTR_SIZE: usize = 64 << 10;
    let mut found = BTreeMap::new();
    let mut names = vec![0; MAX_XATTR_SIZE];
    let length = match rustix::fs::llistxattr(at, &mut names) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(found),
        Err(error) => return Err(error.into()),
    };
    for name in names[..length].split(|byte| *byte == 0) {
        if !name.is_empty() {
            let mut value = vec![0; MAX_XATTR_SIZE];
            let length = rustix::fs::lgetxattr(at, name, &mut value)?;
            value.truncate(length);
            found.insert(name.to_owned(), value);
        }
    }
    Ok(found)
}

struct Octal(u32);

impl fmt::Debug for Octal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

struct Xattrs<'a>(&'a BTreeMap<Vec<u8>, Vec<u8>>);

impl fmt::Debug for Xattrs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(name, value)| {
                (
                    name.escape_ascii().to_string(),
                    value.escape_ascii().to_string(),
                )
            }))
            .finish()
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory => f.write_str("directory"),
            Self::File { size, digest } => write!(f, "file of {size} bytes, {digest}"),
            Self::Symlink(target) => write!(f, "link to {}", target.escape_ascii()),
            Self::CharDevice(number) => write!(f, "character device {number:#x}"),
            Self::BlockDevice(number) => write!(f, "block device {number:#x}"),
            Self::Fifo => f.write_str("fifo"),
            Self::Socket => f.write_str("socket"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};

    use super::*;
    use crate::paths;

    fn make(root: &Path) -> Result<()> {
        fs::create_dir(root.join("dir"))?;
        fs::write(root.join("dir/a"), "content")?;
        fs::hard_link(root.join("dir/a"), root.join("b"))?;
        fs::write(root.join("c"), "content")?;
        std::os::unix::fs::symlink("dir/a", root.join("link"))?;
        for path in ["dir/a", "c", "link", "dir", ""] {
            touch(&root.join(path), 7)?;
        }
        Ok(())
    }

    fn touch(path: &Path, nanoseconds: i64) -> Result<()> {
        let time = Timespec {
            tv_sec: 1_700_000_000,
            tv_nsec: nanoseconds,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        Ok(rustix::fs::utimensat(
            CWD,
            path,
            &times,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// The differences of two equal trees after a change of one of them.
    fn after(change: impl Fn(&Path) -> Result<()>, leniency: Leniency) -> Result<Vec<String>> {
        let (one, other) = (paths::scratch("tree")?, paths::scratch("tree")?);
        make(one.path())?;
        make(other.path())?;
        change(other.path())?;
        Ok(Tree::read(one.path())?.differences(&Tree::read(other.path())?, leniency))
    }

    #[test]
    fn equal_trees_have_no_differences() -> Result<()> {
        let text = after(|_| Ok(()), Leniency::default())?;
        assert_eq!(text, Vec::<String>::new());
        Ok(())
    }

    #[test]
    fn every_attribute_is_compared() -> Result<()> {
        type Change = fn(&Path) -> Result<()>;
        let changes: [(&str, Change); 9] = [
            ("/c: kind file of 7", |root| {
                fs::write(root.join("c"), "another")?;
                touch(&root.join("c"), 7)
            }),
            ("/c: mode", |root| {
                Ok(fs::set_permissions(
                    root.join("c"),
                    fs::Permissions::from_mode(0o4755),
                )?)
            }),
            ("/c: time", |root| touch(&root.join("c"), 8)),
            ("/link: time", |root| touch(&root.join("link"), 8)),
            ("/dir: time", |root| touch(&root.join("dir"), 8)),
            ("/: time", |root| touch(root, 8)),
            ("/link: kind link to dir/a", |root| {
                fs::remove_file(root.join("link"))?;
                std::os::unix::fs::symlink("dir/b", root.join("link"))?;
                touch(&root.join("link"), 7)?;
                touch(root, 7)
            }),
            ("/b: the same file as", |root| {
                fs::remove_file(root.join("b"))?;
                fs::write(root.join("b"), "content")?;
                touch(&root.join("b"), 7)?;
                touch(root, 7)
            }),
            ("/c: xattrs {} and {\"user.a\": \"b\"}", |root| {
                Ok(rustix::fs::lsetxattr(
                    root.join("c"),
                    "user.a",
                    b"b",
                    XattrFlags::empty(),
                )?)
            }),
        ];
        for (expected, change) in changes {
            let text = after(change, Leniency::default())?;
            assert!(
                text.iter().any(|line| line.starts_with(expected)),
                "{expected}: {text:?}"
            );
            // The comparison reports a file with two names under both names.
            assert!(text.len() <= 2, "{expected}: {text:?}");
        }
        Ok(())
    }

    #[test]
    fn entries_of_only_one_tree_are_reported() -> Result<()> {
        let more = |root: &Path| {
            fs::remove_file(root.join("c"))?;
            fs::write(root.join("d"), "")?;
            touch(root, 7)
        };
        let text = after(more, Leniency::default())?;
        assert_eq!(text, ["/c: only in the first", "/d: only in the second"]);
        Ok(())
    }

    #[test]
    fn leniency_ignores_only_the_named_attributes() -> Result<()> {
        let times = Leniency {
            times_of_directories: true,
            nanoseconds: true,
            ..Leniency::default()
        };
        let changed = |root: &Path| {
            fs::write(root.join("dir/new"), "")?;
            fs::remove_file(root.join("dir/new"))?;
            touch(&root.join("c"), 9)
        };
        assert_eq!(after(changed, times)?, Vec::<String>::new());
        let later = |root: &Path| {
            fs::write(root.join("c"), "content")?;
            Ok(())
        };
        assert_eq!(after(later, times)?.len(), 1, "seconds count");
        Ok(())
    }
}
