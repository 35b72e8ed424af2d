//! Finds kernel modules with their dependencies, in the order in which they must be loaded.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// The modules of one kernel, by name.
pub(super) struct Modules(HashMap<String, PathBuf>);

impl Modules {
    /// Finds the modules below `folder`.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub(super) fn find(folder: &Path) -> Result<Self> {
        let mut found = HashMap::new();
        let mut open = vec![folder.to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let path = entry.path();
                if entry.file_type()?.is_dir() {
                    open.push(path);
                } else if let Some(name) = entry.file_name().to_string_lossy().strip_suffix(".ko") {
                    found.insert(name.replace('-', "_"), path);
                }
            }
        }
        Ok(Self(found))
    }

    /// The modules `names` and their dependencies, each after its dependencies, with their
    /// contents. Leaves out names that are not modules, because the kernel has them built in.
    ///
    /// # Errors
    /// A module cannot be read, or a dependency is missing.
    pub(super) fn closure(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut done = HashSet::new();
        let mut ordered = Vec::new();
        for name in names.iter().filter(|name| self.0.contains_key(**name)) {
            self.visit(name, &mut done, &mut ordered)?;
        }
        Ok(ordered)
    }

    fn visit(
        &self,
        name: &str,
        done: &mut HashSet<String>,
        ordered: &mut Vec<(String, Vec<u8>)>,
    ) -> Result<()> {
        if !done.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.0.get(name) else {
            bail!("no kernel module is called {name}");
        };
        let module = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        for needed in depends(&module) {
            self.visit(&needed, done, ordered)?;
        }
        ordered.push((name.to_owned(), module));
        Ok(())
    }
}

/// The names after `depends=` in the section `.modinfo` of a module. Each entry of the section ends
/// with a zero byte.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|it| it == KEY) else {
        return Vec::new();
    };
    let rest = &module[at + KEY.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(all: &[(&str, &str)]) -> (tempfile::TempDir, Modules) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("fs")).unwrap();
        for (name, needs) in all {
            fs::write(
                folder.path().join(format!("fs/{name}.ko")),
                format!("ELF\0license=GPL\0depends={needs}\0retpoline=Y\0"),
            )
            .unwrap();
        }
        let modules = Modules::find(folder.path()).unwrap();
        (folder, modules)
    }

    #[test]
    fn what_is_needed_comes_first_and_once() {
        let (_folder, modules) = modules(&[
            ("9p", "9pnet,fs-cache"),
            ("9pnet", ""),
            ("9pnet_virtio", "9pnet"),
            ("fs-cache", ""),
        ]);
        let order: Vec<_> = modules
            .closure(&["9p", "9pnet_virtio", "built_in"])
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(order, ["9pnet", "fs_cache", "9p", "9pnet_virtio"]);
    }

    #[test]
    fn a_module_whose_needs_are_missing_is_named() {
        let (_folder, modules) = modules(&[("nd_pmem", "libnvdimm")]);
        let error = modules.closure(&["nd_pmem"]).unwrap_err();
        assert!(error.to_string().contains("libnvdimm"), "{error}");
    }
}
