//! The images of the test corpus: their versions, and the layers that they share.

use std::{collections::HashMap, path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    apt::{self, Apt, Package, Suite},
    pypi,
};
use crate::{
    exec,
    image::{
        layer::{Node, Tree},
        layout::{Dialect, Layer, Layout, Packing},
    },
};

/// The two versions of each image: the tag, and the versions of its Debian packages.
const VERSIONS: [(&str, Suite); 2] = [("v1", Suite::Release), ("v2", Suite::Updates)];

/// Architectures of the multi-platform images.
pub(crate) const ARCHS: [&str; 2] = ["amd64", "arm64"];

/// Commands of busybox for which an image contains a link.
const COMMANDS: &[&str] = &[
    "sh",
    "cat",
    "cp",
    "cut",
    "date",
    "df",
    "du",
    "echo",
    "env",
    "false",
    "find",
    "grep",
    "gzip",
    "head",
    "hostname",
    "id",
    "kill",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mv",
    "nc",
    "ping",
    "ps",
    "pwd",
    "rm",
    "sed",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "tail",
    "tar",
    "test",
    "touch",
    "tr",
    "true",
    "uname",
    "vi",
    "wc",
    "wget",
    "xargs",
    "yes",
];

/// Folders of a package that slim images leave out.
const LEFT_OUT: &[&str] = &[
    "usr/share/bug",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "var/cache",
];

/// The Python packages of `flask:v1` and `flask:v2`.
const FLASK: [&[&str]; 2] = [
    &[
        "flask==3.0.3",
        "werkzeug==3.0.6",
        "jinja2==3.1.4",
        "markupsafe==3.0.2",
        "itsdangerous==2.2.0",
        "click==8.1.7",
        "blinker==1.8.2",
    ],
    &[
        "flask==3.1.0",
        "werkzeug==3.1.3",
        "jinja2==3.1.5",
        "markupsafe==3.0.2",
        "itsdangerous==2.2.0",
        "click==8.1.8",
        "blinker==1.9.0",
    ],
];

const FLASK_APP: &str = r#"from flask import Flask

app = Flask(__name__)


@app.get("/")
def hello():
    return "hello from a layer that pierhead served\n"
"#;

/// Size in bytes of each of the two layers of the image `big`, which has more than 300 MB in total.
const BIG_LAYER: u64 = 160 << 20;

/// Builds all images into a layout. Packs a layer that images share only once.
pub(crate) struct Builder<'a> {
    layout: &'a mut Layout,
    apt: &'a Apt,
    downloads: &'a Path,
    shared: HashMap<String, Layer>,
}

impl<'a> Builder<'a> {
    /// Creates a builder that writes into `layout`, with Debian packages from `apt` and Python
    /// packages in `downloads`.
    pub(crate) fn new(layout: &'a mut Layout, apt: &'a Apt, downloads: &'a Path) -> Self {
        Self {
            layout,
            apt,
            downloads,
            shared: HashMap::new(),
        }
    }

    /// Builds all images in all versions.
    ///
    /// # Errors
    /// A package cannot be downloaded, or the layout cannot be written.
    pub(crate) fn all(mut self) -> Result<()> {
        self.busybox()?;
        self.redis()?;
        self.flask()?;
        self.big()?;
        self.unusual()
    }

    /// A tiny image for two platforms. The versions of the image share the layer with the program.
    fn busybox(&mut self) -> Result<()> {
        for (tag, _) in VERSIONS {
            let mut manifests = Vec::new();
            for arch in ARCHS {
                let layers = [
                    self.shell(arch)?,
                    self.marker("busybox", tag, Packing::Gzip)?,
                ];
                let run = json!({"Cmd": ["sh"], "Env": [PATH]});
                manifests.push(self.layout.image(Dialect::Oci, arch, &layers, &run)?);
            }
            let index = self.layout.index(&manifests, &Value::Null)?;
            self.layout.name(index, &format!("busybox:{tag}"));
        }
        Ok(())
    }

    /// A server from Debian. The versions of the image share few files after a security update of
    /// Debian.
    fn redis(&mut self) -> Result<()> {
        for (tag, suite) in VERSIONS {
            let app = self.debian(suite, &["redis-server"])?;
            let layers = [
                self.shell(&self.native())?,
                self.c_library(suite)?,
                app,
                self.marker("redis", tag, Packing::Gzip)?,
            ];
            self.single(
                &format!("redis:{tag}"),
                Dialect::Oci,
                &layers,
                &json!({
                    "Entrypoint": ["redis-server"],
                    "Cmd": ["--protected-mode", "no"],
                    "Env": [PATH],
                    "ExposedPorts": {"6379/tcp": {}},
                }),
            )?;
        }
        Ok(())
    }

    /// A Python application. An update of its packages changes one layer with small files.
    fn flask(&mut self) -> Result<()> {
        for ((tag, suite), pins) in VERSIONS.into_iter().zip(FLASK) {
            let packages = self.apt.closure(suite, &self.native(), &["python3"])?;
            let python = minor_version(&packages)?;
            let folder = self.downloads.join(format!("flask-{tag}"));
            let machine = match self.apt.native.as_str() {
                "arm64" => "aarch64",
                _ => "x86_64",
            };
            pypi::install(&folder, &python, machine, pins)?;
            let mut site = Tree::default();
            // pip writes scripts with the path of this machine's Python, not of the image's.
            site.copy(&folder, "srv/site", &|path| {
                path != "srv/site/bin" && !path.ends_with("__pycache__")
            })?;
            let mut app = Tree::default();
            app.text("srv/app.py", FLASK_APP);
            let layers = [
                self.shell(&self.native())?,
                self.c_library(suite)?,
                self.debian(suite, &["python3"])?,
                self.layout.layer(&site, Packing::Gzip)?,
                self.layout.layer(&app, Packing::Gzip)?,
            ];
            self.single(
                &format!("flask:{tag}"),
                Dialect::Oci,
                &layers,
                &json!({
                    "Entrypoint": ["python3", "-m", "flask"],
                    "Cmd": ["--app", "/srv/app", "run", "--host", "0.0.0.0"],
                    "Env": [PATH, "PYTHONPATH=/srv/site", "PYTHONDONTWRITEBYTECODE=1"],
                    "ExposedPorts": {"5000/tcp": {}},
                }),
            )?;
        }
        Ok(())
    }

    /// An image with more than 300 MB of incompressible data. The versions of the image share half
    /// of the data.
    fn big(&mut self) -> Result<()> {
        let noise = |seed: u64| {
            let mut tree = Tree::default();
            let size = BIG_LAYER;
            tree.put(&format!("srv/noise-{seed}"), Node::Noise { seed, size });
            self.layout.layer(&tree, Packing::GzipStored)
        };
        let [common, one, two] = [noise(1)?, noise(2)?, noise(3)?];
        for ((tag, _), own) in VERSIONS.into_iter().zip([one, two]) {
            let layers = [self.shell(&self.native())?, common.clone(), own];
            let run = json!({"Cmd": ["sh"], "Env": [PATH]});
            self.single(&format!("big:{tag}"), Dialect::Oci, &layers, &run)?;
        }
        Ok(())
    }

    /// Unusual formats that registries contain: zstd layers, and manifests with Docker's media
    /// types.
    fn unusual(&mut self) -> Result<()> {
        let native = self.native();
        let run = json!({"Cmd": ["sh"], "Env": [PATH]});
        let mut tree = self.shell_tree(&native)?;
        // The content also differs from the gzip layer. podman does not pull a layer again if its
        // unpacked content is stored, so a cache would never see this layer.
        tree.text("srv/packing", "zstd\n");
        let zstd = self.layout.layer(&tree, Packing::Zstd)?;
        let marker = self.marker("zstd", "v1", Packing::Zstd)?;
        self.single("zstd:v1", Dialect::Oci, &[zstd, marker], &run)?;
        let layers = [
            self.shell(&native)?,
            self.marker("docker", "v1", Packing::Gzip)?,
        ];
        self.single("docker:v1", Dialect::Docker, &layers, &run)
    }

    fn native(&self) -> String {
        self.apt.native.clone()
    }

    fn single(
        &mut self,
        name: &str,
        dialect: Dialect,
        layers: &[Layer],
        run: &Value,
    ) -> Result<()> {
        let descriptor = self.layout.image(dialect, &self.apt.native, layers, run)?;
        self.layout.name(descriptor, name);
        Ok(())
    }

    /// The root file system with a statically linked shell.
    fn shell(&mut self, arch: &str) -> Result<Layer> {
        let key = format!("shell/{arch}");
        if let Some(layer) = self.shared.get(&key) {
            return Ok(layer.clone());
        }
        let layer = self.layout.layer(&self.shell_tree(arch)?, Packing::Gzip)?;
        self.shared.insert(key, layer.clone());
        Ok(layer)
    }

    fn shell_tree(&self, arch: &str) -> Result<Tree> {
        let packages = self
            .apt
            .closure(Suite::Release, arch, &["busybox-static"])?;
        let mut tree = self.unpacked(&packages)?;
        for folder in ["bin", "sbin", "lib", "lib64"] {
            tree.put(&format!("usr/{folder}"), Node::Folder(0o755));
            tree.put(folder, Node::Symlink(format!("usr/{folder}")));
        }
        for folder in ["dev", "etc", "proc", "run", "srv", "sys", "var"] {
            tree.put(folder, Node::Folder(0o755));
        }
        tree.put("root", Node::Folder(0o700));
        tree.put("tmp", Node::Folder(0o1777));
        tree.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        tree.text("etc/group", "root:x:0:\n");
        for command in COMMANDS {
            tree.put(
                &format!("usr/bin/{command}"),
                Node::Symlink("busybox".into()),
            );
        }
        Ok(tree)
    }

    /// The C library in its own layer, because most updates do not change it.
    fn c_library(&mut self, suite: Suite) -> Result<Layer> {
        let packages = self.apt.closure(suite, &self.native(), &["libc6"])?;
        self.packages(&packages)
    }

    /// The packages `names` and their dependencies, without the C library.
    fn debian(&mut self, suite: Suite, names: &[&str]) -> Result<Layer> {
        let native = self.native();
        let base = self.apt.closure(suite, &native, &["libc6"])?;
        let mut packages = self.apt.closure(suite, &native, names)?;
        packages.retain(|package| !base.contains(package));
        self.packages(&packages)
    }

    fn packages(&mut self, packages: &[Package]) -> Result<Layer> {
        let key: Vec<_> = packages
            .iter()
            .map(|package| format!("{}={}", package.name, package.version))
            .collect();
        let key = key.join(" ");
        if let Some(layer) = self.shared.get(&key) {
            return Ok(layer.clone());
        }
        let layer = self
            .layout
            .layer(&self.unpacked(packages)?, Packing::Gzip)?;
        self.shared.insert(key, layer.clone());
        Ok(layer)
    }

    fn unpacked(&self, packages: &[Package]) -> Result<Tree> {
        let mut tree = Tree::default();
        for path in self.apt.download(packages)? {
            tree.unpack(apt::files(&path)?.as_slice(), |path| {
                !LEFT_OUT.iter().any(|folder| path.starts_with(folder))
            })?;
        }
        Ok(tree)
    }

    /// A small layer that makes the versions of an image differ.
    fn marker(&self, name: &str, tag: &str, packing: Packing) -> Result<Layer> {
        let mut tree = Tree::default();
        tree.text("srv/release", &format!("{name} {tag}\n"));
        self.layout.layer(&tree, packing)
    }
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The minor version of Python in `packages`, such as `3.11`. Python wheels are built for a minor
/// version.
fn minor_version(packages: &[Package]) -> Result<String> {
    let version = packages
        .iter()
        .find(|package| package.name == "python3")
        .map(|package| package.version.as_str())
        .context("python3 needs no python3")?;
    let mut parts = version.split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => Ok(format!("{major}.{minor}")),
        _ => anyhow::bail!("python3 has the version {version}"),
    }
}

/// Programs that the build needs and that this machine lacks.
pub(crate) fn missing_tools() -> Vec<&'static str> {
    [
        ("apt-get", "--version"),
        ("dpkg-deb", "--version"),
        ("python3", "--version"),
    ]
    .into_iter()
    .filter(|(tool, argument)| exec::output(Command::new(tool).arg(argument)).is_err())
    .map(|(tool, _)| tool)
    .collect()
}
