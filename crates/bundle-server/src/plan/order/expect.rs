//! Predicts which files a container start opens, from the image config and from the programs that
//! the config names.

use std::cell::Cell;
use std::collections::VecDeque;

use super::elf;
use crate::Error;
use crate::plan::matching::read;
use pierhead_toc::Source;
use pierhead_toc::{Leaf, Tree};

/// The part of an image config that a container start uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The arguments of `Entrypoint`, followed by those of `Cmd`.
    pub arguments: Vec<Vec<u8>>,
    /// The variables of `Env`, as `NAME=value`.
    pub environment: Vec<Vec<u8>>,
    /// The folder of `WorkingDir`.
    pub folder: Vec<u8>,
}

/// Default search folders of the dynamic linker, including the folders of Debian's architectures.
const LIBRARY_FOLDERS: [&[u8]; 10] = [
    b"lib/x86_64-linux-gnu",
    b"usr/lib/x86_64-linux-gnu",
    b"lib/aarch64-linux-gnu",
    b"usr/lib/aarch64-linux-gnu",
    b"lib64",
    b"usr/lib64",
    b"lib",
    b"usr/lib",
    b"usr/local/lib",
    b"usr/local/lib64",
];

/// Search path for programs, if the image config sets no `PATH`.
const DEFAULT_PATH: &[u8] = b"usr/local/sbin:usr/local/bin:usr/sbin:usr/bin:sbin:bin";

/// Files that every container start reads.
const COMMON_FILES: [&[u8]; 4] = [
    b"etc/ld.so.cache",
    b"etc/nsswitch.conf",
    b"etc/passwd",
    b"etc/group",
];

/// Maximum number of programs and libraries that pierhead reads to predict the files of one image.
const MAX_PROGRAMS: usize = 512;

/// Maximum number of path lookups in one image. A single program may need 256 libraries in 256
/// folders, so the number needs a limit.
const MAX_LOOKUPS: u32 = 100_000;

/// Maximum number of files in the queue of programs and libraries to read.
const MAX_QUEUE: usize = 4 * MAX_PROGRAMS;

/// Maximum number of symbolic links that are followed for one path, which is also the kernel's
/// limit (`MAXSYMLINKS`).
const MAX_SYMLINKS: usize = 40;

/// Maximum length of the first line of a script in bytes, which is also the kernel's limit
/// (`BINPRM_BUF_SIZE`).
const MAX_SCRIPT_LINE: usize = 256;

/// Returns the content numbers of the predicted files, in the order in which a container start uses
/// them.
pub(super) fn expect(
    tree: &Tree<'_>,
    start: &Start,
    source: &dyn Source,
) -> Result<Vec<u32>, Error> {
    let mut found = Vec::new();
    let tree = &Lookups {
        tree,
        left: Cell::new(MAX_LOOKUPS),
    };
    let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
    for argument in &start.arguments {
        queue.extend(program(tree, start, argument));
    }
    let mut programs_read = 0;
    while let Some(path) = queue.pop_front() {
        let Some((at, number)) = follow(tree, &path) else {
            continue;
        };
        if found.contains(&number) || programs_read == MAX_PROGRAMS {
            continue;
        }
        programs_read += 1;
        found.push(number);
        let Some((content, size)) = tree.tree.content(number) else {
            continue;
        };
        let read = |offset: u64, buf: &mut [u8]| read(source, content, offset, buf);
        let mut head = [0; MAX_SCRIPT_LINE];
        let len = usize::try_from(size).map_or(MAX_SCRIPT_LINE, |size| size.min(MAX_SCRIPT_LINE));
        read(0, &mut head[..len])?;
        let folder = parent(tree.tree.path(at)).to_vec();
        if let Some(line) = head[..len].strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
            let words = line
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty());
            // A line such as `#!/usr/bin/env python3` names two programs.
            for word in words.take(3) {
                queue.extend(program(tree, start, word));
            }
        } else if head.starts_with(elf::MAGIC) {
            let links = elf::read(size, &read)?.unwrap_or_default();
            queue.extend(links.interpreter.map(|path| clean(&path, b"")));
            for name in &links.needed {
                if queue.len() >= MAX_QUEUE {
                    break;
                }
                queue.extend(library(tree, name, &links.folders, &folder));
            }
        }
    }
    let common = COMMON_FILES
        .iter()
        .filter_map(|path| Some(follow(tree, path)?.1));
    found.extend(common);
    Ok(found)
}

/// A file tree with a limit on the number of path lookups.
struct Lookups<'a> {
    tree: &'a Tree<'a>,
    left: Cell<u32>,
}

impl Lookups<'_> {
    /// Looks up a path. Returns its position in the tree and its leaf. Returns `None` after the
    /// last allowed lookup.
    fn find(&self, path: &[u8]) -> Option<(usize, Leaf<'_>)> {
        self.left.set(self.left.get().checked_sub(1)?);
        let at = self.tree.find(path)?;
        Some((at, self.tree.leaf(at)?))
    }
}

/// Returns the path of the program or file that a command-line argument names.
fn program(tree: &Lookups<'_>, start: &Start, word: &[u8]) -> Option<Vec<u8>> {
    if word.contains(&b'/') {
        return Some(clean(word, &start.folder));
    }
    let search_path = start
        .environment
        .iter()
        .find_map(|pair| pair.strip_prefix(b"PATH="));
    let mut folders = search_path
        .unwrap_or(DEFAULT_PATH)
        .split(|byte| *byte == b':');
    let in_folder = |folder: &[u8]| clean(word, folder);
    let mut paths = folders
        .by_ref()
        .map(in_folder)
        .chain([clean(word, &start.folder)]);
    paths.find(|path| follow(tree, path).is_some())
}

/// Returns the path of a shared library. `folders` is the search path of the program, and `origin`
/// the folder of the program.
fn library(tree: &Lookups<'_>, name: &[u8], folders: &[Vec<u8>], origin: &[u8]) -> Option<Vec<u8>> {
    // A name with a slash is a path; the dynamic linker does the same.
    if name.contains(&b'/') {
        return Some(clean(name, b""));
    }
    let search_path = folders.iter().map(|folder| {
        let folder = folder
            .strip_prefix(b"$ORIGIN")
            .or_else(|| folder.strip_prefix(b"${ORIGIN}"))
            .map_or_else(|| folder.clone(), |rest| [origin, rest].concat());
        clean(name, &folder)
    });
    let standard = LIBRARY_FOLDERS.iter().map(|folder| clean(name, folder));
    let mut paths = search_path.chain(standard);
    paths.find(|path| follow(tree, path).is_some())
}

/// Follows the symbolic links of a path, and also of the folders in the path. Returns the position
/// of the file, and the number of its content.
fn follow(tree: &Lookups<'_>, path: &[u8]) -> Option<(usize, u32)> {
    let mut path = path.to_vec();
    for _ in 0..MAX_SYMLINKS {
        if let Some((at, Leaf::File(number))) = tree.find(&path) {
            return Some((at, number));
        }
        // Finds the shortest prefix of the path that is a symbolic link.
        let ends = (0..=path.len()).filter(|end| path.get(*end).is_none_or(|byte| *byte == b'/'));
        let (end, target) = ends
            .into_iter()
            .find_map(|end| match tree.find(&path[..end]) {
                Some((_, Leaf::Symlink(target))) => Some((end, target.to_vec())),
                _ => None,
            })?;
        let mut next = clean(&target, parent(&path[..end]));
        next.extend_from_slice(&path[end..]);
        path = clean(&next, b"");
        if path.len() > 4096 {
            return None;
        }
    }
    None
}

/// Converts a path to the form of a TOC: from the root, without `.`, `..` and slashes at the ends.
fn clean(path: &[u8], folder: &[u8]) -> Vec<u8> {
    let mut out: Vec<&[u8]> = Vec::new();
    let folder = if path.starts_with(b"/") { b"" } else { folder };
    let slash = |byte: &u8| *byte == b'/';
    for part in folder.split(slash).chain(path.split(slash)) {
        match part {
            b"" | b"." => {}
            b".." => drop(out.pop()),
            name => out.push(name),
        }
    }
    out.join(&b'/')
}

/// Returns the folder that contains a path.
fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/');
    end.map_or(&[], |end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use pierhead_toc::TocView;
    use pierhead_toc::image_toc::LayerEntries;
    use pierhead_toc::{Entry, FileDigest, ImageToc, Kind, Time};

    #[test]
    fn paths_are_cleaned_and_never_leave_the_root() {
        let pairs: [(&str, &str, &str); 5] = [
            ("/usr/bin/../lib", "etc", "usr/lib"),
            ("python3.11", "usr/bin", "usr/bin/python3.11"),
            ("../../../../etc/passwd", "usr/bin", "etc/passwd"),
            ("./a//b/", "", "a/b"),
            ("/", "usr", ""),
        ];
        for (path, folder, expected) in pairs {
            let found = clean(path.as_bytes(), folder.as_bytes());
            assert_eq!(found, expected.as_bytes(), "{path} in {folder}");
        }
    }

    #[test]
    fn the_number_of_lookups_is_limited_and_a_name_with_a_slash_is_a_path() {
        let layer = LayerEntries {
            diff_id: FileDigest::of(b"diff").into(),
            files: std::iter::empty(),
            skeleton: (FileDigest::of(b"skeleton"), 8),
            entries: std::iter::once(Ok(Entry {
                path: b"lib/a".to_vec(),
                kind: Kind::File {
                    content: FileDigest::of(b"a"),
                    size: 1,
                },
                mode: 0o644,
                uid: 0,
                gid: 0,
                modified: Time::default(),
                xattrs: Vec::new(),
            })),
        };
        let toc = ImageToc::merge([layer]).expect("sound");
        let tree = Tree::of(TocView::mounted(&toc)).expect("small");
        let lookups = |left| Lookups {
            tree: &tree,
            left: Cell::new(left),
        };
        let found = library(&lookups(MAX_LOOKUPS), b"a", &[], b"");
        assert_eq!(found.as_deref(), Some(&b"lib/a"[..]));
        // Seven folders come before `lib` in the default search path.
        assert_eq!(library(&lookups(7), b"a", &[], b""), None);
        let few = lookups(0);
        assert_eq!(
            library(&few, b"x/a", &[b"lib".to_vec()], b""),
            Some(b"x/a".to_vec())
        );
    }
}
