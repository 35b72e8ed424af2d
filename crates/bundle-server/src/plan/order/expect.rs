//! What a container opens first, as far as its configuration and its programs tell.

use std::cell::Cell;
use std::collections::VecDeque;

use super::elf;
use crate::plan::matching::read;
use pierhead_toc::{Error, Source};
use pierhead_toc::{Leaf, Tree};

/// What an image's config says of its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// `Entrypoint` and `Cmd`, one after the other.
    pub arguments: Vec<Vec<u8>>,
    /// `Env`, as `NAME=value`.
    pub environment: Vec<Vec<u8>>,
    /// `WorkingDir`.
    pub folder: Vec<u8>,
}

/// Where the dynamic linker looks when nothing else says so; with the folders of Debian's architectures.
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

const PATH: &[u8] = b"usr/local/sbin:usr/local/bin:usr/sbin:usr/bin:sbin:bin";

/// What every start reads.
const ALWAYS: [&[u8]; 4] = [
    b"etc/ld.so.cache",
    b"etc/nsswitch.conf",
    b"etc/passwd",
    b"etc/group",
];

/// Programs and libraries that are looked into.
const MOST: usize = 512;

/// Paths that are looked up in one image: a program may ask for 256 libraries in as many folders.
const LOOKUPS: u32 = 100_000;

/// Files that wait to be looked into.
const WAITING: usize = 4 * MOST;

/// Symbolic links that are followed for one path, as the kernel does.
const LINKS: usize = 40;

/// Bytes of a script's first line that count, as in the kernel.
const HEADER: usize = 256;

/// Numbers of contents in the order of use.
pub(super) fn expect(
    tree: &Tree<'_>,
    start: &Start,
    source: &dyn Source,
) -> Result<Vec<u32>, Error> {
    let mut found = Vec::new();
    let tree = &Lookups {
        tree,
        left: Cell::new(LOOKUPS),
    };
    let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
    for argument in &start.arguments {
        queue.extend(program(tree, start, argument));
    }
    let mut looked_into = 0;
    while let Some(path) = queue.pop_front() {
        let Some((at, number)) = follow(tree, &path) else {
            continue;
        };
        if found.contains(&number) || looked_into == MOST {
            continue;
        }
        looked_into += 1;
        found.push(number);
        let Some((content, size)) = tree.tree.content(number) else {
            continue;
        };
        let read = |offset: u64, buf: &mut [u8]| read(source, content, offset, buf);
        let mut head = [0; HEADER];
        let len = usize::try_from(size).map_or(HEADER, |size| size.min(HEADER));
        read(0, &mut head[..len])?;
        let folder = parent(tree.tree.path(at)).to_vec();
        if let Some(line) = head[..len].strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
            let words = line
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty());
            // `#!/usr/bin/env python3` names two programs.
            for word in words.take(3) {
                queue.extend(program(tree, start, word));
            }
        } else if head.starts_with(elf::MAGIC) {
            let links = elf::read(size, &read)?.unwrap_or_default();
            queue.extend(links.interpreter.map(|path| clean(&path, b"")));
            for name in &links.needed {
                if queue.len() >= WAITING {
                    break;
                }
                queue.extend(library(tree, name, &links.folders, &folder));
            }
        }
    }
    let always = ALWAYS.iter().filter_map(|path| Some(follow(tree, path)?.1));
    found.extend(always);
    Ok(found)
}

/// A tree that answers so many times.
struct Lookups<'a> {
    tree: &'a Tree<'a>,
    left: Cell<u32>,
}

impl Lookups<'_> {
    /// What is at a path; nothing once too much was asked.
    fn find(&self, path: &[u8]) -> Option<(usize, Leaf<'_>)> {
        self.left.set(self.left.get().checked_sub(1)?);
        let at = self.tree.find(path)?;
        Some((at, self.tree.leaf(at)?))
    }
}

/// The path of a program or of a file that an argument names.
fn program(tree: &Lookups<'_>, start: &Start, word: &[u8]) -> Option<Vec<u8>> {
    if word.contains(&b'/') {
        return Some(clean(word, &start.folder));
    }
    let told = start
        .environment
        .iter()
        .find_map(|pair| pair.strip_prefix(b"PATH="));
    let mut folders = told.unwrap_or(PATH).split(|byte| *byte == b':');
    let in_folder = |folder: &[u8]| clean(word, folder);
    let mut paths = folders
        .by_ref()
        .map(in_folder)
        .chain([clean(word, &start.folder)]);
    paths.find(|path| follow(tree, path).is_some())
}

fn library(tree: &Lookups<'_>, name: &[u8], folders: &[Vec<u8>], origin: &[u8]) -> Option<Vec<u8>> {
    // As the linker has it: a name with a slash is a path.
    if name.contains(&b'/') {
        return Some(clean(name, b""));
    }
    let told = folders.iter().map(|folder| {
        let folder = folder
            .strip_prefix(b"$ORIGIN")
            .or_else(|| folder.strip_prefix(b"${ORIGIN}"))
            .map_or_else(|| folder.clone(), |rest| [origin, rest].concat());
        clean(name, &folder)
    });
    let standard = LIBRARY_FOLDERS.iter().map(|folder| clean(name, folder));
    let mut paths = told.chain(standard);
    paths.find(|path| follow(tree, path).is_some())
}

/// The file that a path leads to through symbolic links, of folders too: its position, and the number of its content.
fn follow(tree: &Lookups<'_>, path: &[u8]) -> Option<(usize, u32)> {
    let mut path = path.to_vec();
    for _ in 0..LINKS {
        if let Some((at, Leaf::File(number))) = tree.find(&path) {
            return Some((at, number));
        }
        // The first part of it that is a link.
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

/// A path from the root without `.`, `..` and slashes at its ends, as tables have them.
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
    fn only_so_much_is_looked_up_and_a_path_is_in_no_folder() {
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
        let table = ImageToc::merge([layer]).expect("sound");
        let tree = Tree::of(TocView::mounted(&table)).expect("small");
        let lookups = |left| Lookups {
            tree: &tree,
            left: Cell::new(left),
        };
        let found = library(&lookups(LOOKUPS), b"a", &[], b"");
        assert_eq!(found.as_deref(), Some(&b"lib/a"[..]));
        // Seven folders come before it.
        assert_eq!(library(&lookups(7), b"a", &[], b""), None);
        let few = lookups(0);
        assert_eq!(
            library(&few, b"x/a", &[b"lib".to_vec()], b""),
            Some(b"x/a".to_vec())
        );
    }
}
