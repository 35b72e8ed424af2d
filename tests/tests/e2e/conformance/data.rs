//! The contents that the conformance test pushes: for each form that the OCI image specification
//! allows, a family of related blobs and manifests.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256, Sha512};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// Artifact types that no registry knows.
const KINDS: [&str; 2] = [
    "application/vnd.pierhead.test.one",
    "application/vnd.pierhead.test.two+json",
];

/// The hash function of a family's digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hash {
    #[default]
    Sha256,
    Sha512,
}

impl Hash {
    pub(crate) fn of(self, bytes: &[u8]) -> String {
        let (name, hash) = match self {
            Self::Sha256 => ("sha256", Sha256::digest(bytes).to_vec()),
            Self::Sha512 => ("sha512", Sha512::digest(bytes).to_vec()),
        };
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name}:{hex}")
    }
}

/// A manifest or index.
pub(crate) struct Document {
    pub(crate) digest: String,
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// The expected entry of a referrers list.
pub(crate) struct Referrer {
    pub(crate) subject: String,
    pub(crate) descriptor: Value,
}

/// A test case of the registry under one name: related blobs, documents (manifests and indexes) and
/// tags, in the order of their push.
#[derive(Default)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    hash: Hash,
    pub(crate) blobs: Vec<(String, Vec<u8>)>,
    pub(crate) documents: Vec<Document>,
    /// A tag, and the index of its document.
    pub(crate) tags: Vec<(&'static str, usize)>,
    pub(crate) referrers: Vec<Referrer>,
    seed: u64,
}

/// All families, equal in every run. Families share no blobs, except for empty ones.
pub(crate) fn families() -> Vec<Family> {
    let mut all: Vec<Family> = [
        ("image", image as fn(&mut Family)),
        ("uncompressed layers", uncompressed),
        ("large manifest", large_manifest),
        ("index", |it| index(it, "index", json!({}))),
        ("index of indexes", nested),
        ("empty index", empty_index),
        ("artifact", artifact),
        ("artifact without content", artifact_without_content),
        ("index of artifacts", |it| {
            let entries = [
                artifact_of(it, KINDS[0], None),
                artifact_of(it, KINDS[0], None),
            ];
            let root = it.list(&entries, json!({ "artifactType": KINDS[0] }));
            it.tag("artifact-index", &root);
        }),
        ("artifacts with a subject", subjects),
        ("index with a subject", index_with_subject),
        ("subject that is missing", missing_subject),
        ("data in descriptors", data_field),
        ("layers from elsewhere", foreign_layers),
        ("unknown fields", unknown_fields),
        ("parts that are missing", sparse),
        ("well known blobs", |it| well_known(it, Hash::Sha256)),
        ("well known blobs, sha512", |it| {
            well_known(it, Hash::Sha512)
        }),
        ("no layers", |it| {
            let root = it.image(0, json!({}));
            it.tag("no-layers", &root);
        }),
        ("sha512", |it| {
            it.hash = Hash::Sha512;
            let entries = [it.image(2, json!({})), it.image(2, json!({}))];
            it.list(&entries, json!({}));
        }),
        ("tags of sha512", |it| {
            it.hash = Hash::Sha512;
            let entries = [it.image(1, json!({}))];
            let root = it.list(&entries, json!({}));
            for (tag, of) in [
                ("long-1", &entries[0]),
                ("long-2", &root),
                ("long-3", &root),
            ] {
                it.tag(tag, of);
            }
        }),
        ("docker", docker),
        ("spacing of its own", spaced),
        ("names of all kinds", |it| {
            for tag in ["_", "UPPER.and-lower_0", MAX_LENGTH_TAG] {
                let root = it.image(1, json!({}));
                it.tag(tag, &root);
            }
        }),
    ]
    .into_iter()
    .enumerate()
    .map(|(nth, (name, fill))| {
        let mut family = Family {
            name,
            seed: 1000 * (nth as u64 + 1),
            ..Family::default()
        };
        fill(&mut family);
        family
    })
    .collect();
    // Tags that pointed to another digest before. After the push, a registry must return the new
    // digest at once.
    all.push(moved());
    all
}

/// The family whose tags pointed to documents of other families before this push.
pub(crate) const MOVED: &str = "moved tags";

/// A tag of the maximum length, 128 characters.
const MAX_LENGTH_TAG: &str = "t0123456789-abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ.0123456789-abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWX";

fn moved() -> Family {
    let mut family = Family {
        name: MOVED,
        seed: 90_000,
        ..Family::default()
    };
    let root = family.image(1, json!({}));
    family.tag("image", &root);
    index(&mut family, "index", json!({}));
    family
}

fn image(it: &mut Family) {
    let root = it.image(2, json!({}));
    it.tag("image", &root);
}

fn uncompressed(it: &mut Family) {
    let bytes = it.random(700);
    let layer = it.blob(LAYER, bytes);
    let config = it.config();
    let root = it.manifest(MANIFEST, json!({ "config": config, "layers": [layer] }));
    it.tag("uncompressed", &root);
}

/// A manifest close to 4 MiB, the size that registries must accept.
fn large_manifest(it: &mut Family) {
    let annotations: Map<String, Value> = (0..390)
        .map(|nth| {
            (
                format!("org.example.large-{nth}"),
                "A".repeat(10_000).into(),
            )
        })
        .collect();
    let root = it.image(1, json!({ "annotations": annotations }));
    it.tag("large", &root);
}

fn index(it: &mut Family, tag: &'static str, more: Value) {
    let entries = [it.image(2, json!({})), it.image(2, json!({}))];
    let root = it.list(&entries, more);
    it.tag(tag, &root);
}

fn nested(it: &mut Family) {
    let inner = [(); 2].map(|()| {
        let entries = [it.image(1, json!({})), it.image(1, json!({}))];
        it.list(&entries, json!({}))
    });
    let root = it.list(&inner, json!({}));
    it.tag("nested", &root);
}

fn empty_index(it: &mut Family) {
    let root = it.list(&[], json!({}));
    it.tag("empty-index", &root);
}

fn artifact(it: &mut Family) {
    let root = artifact_of(it, KINDS[0], None);
    it.tag("artifact", &root);
}

fn artifact_of(it: &mut Family, kind: &str, subject: Option<&Value>) -> Value {
    let config = it.blob(EMPTY, b"{}".to_vec());
    let bytes = it.random(900);
    let layer = it.blob(kind, bytes);
    let mut body = json!({
        "artifactType": kind, "config": config, "layers": [layer],
        "annotations": { "org.example.test": "hello", format!("org.example.{}", it.seed): "unique" },
    });
    if let Some(subject) = subject {
        body["subject"] = subject.clone();
    }
    it.manifest(MANIFEST, body)
}

fn artifact_without_content(it: &mut Family) {
    let empty = it.blob(EMPTY, b"{}".to_vec());
    let root = it.manifest(
        MANIFEST,
        json!({ "artifactType": KINDS[0], "config": empty, "layers": [empty] }),
    );
    it.tag("artifact-without-content", &root);
}

fn subjects(it: &mut Family) {
    let subject = it.image(2, json!({}));
    it.tag("subject", &subject);
    // Without an artifact type, the media type of the config is the artifact type.
    it.image(1, json!({ "subject": subject }));
    for (kind, tag) in KINDS.into_iter().zip(["signature", "report"]) {
        let root = artifact_of(it, kind, Some(&subject));
        it.tag(tag, &root);
    }
}

fn index_with_subject(it: &mut Family) {
    index(it, "index-subject", json!({}));
    let subject = it.last();
    let entries = [artifact_of(it, KINDS[0], None)];
    let root = it.list(
        &entries,
        json!({ "artifactType": KINDS[0], "subject": subject, "annotations": { "a": "b" } }),
    );
    it.tag("index-referrer", &root);
}

fn missing_subject(it: &mut Family) {
    let subject = json!({
        "mediaType": MANIFEST, "size": 123, "digest": Hash::Sha256.of(b"never pushed"),
    });
    let root = artifact_of(it, KINDS[0], Some(&subject));
    it.tag("orphan", &root);
}

fn data_field(it: &mut Family) {
    // Base64 of `{}`.
    let mut config = it.blob(EMPTY, b"{}".to_vec());
    config["data"] = "e30=".into();
    let layer = it.layer();
    let root = it.manifest(
        MANIFEST,
        json!({ "artifactType": KINDS[0], "config": config, "layers": [layer] }),
    );
    it.tag("data", &root);
}

fn foreign_layers(it: &mut Family) {
    let elsewhere = |kind: &str, of: &[u8]| {
        let digest = Hash::Sha256.of(of);
        json!({
            "mediaType": kind, "size": 12_345, "digest": digest,
            "urls": [format!("https://store.example.com/{digest}")],
        })
    };
    let layers = [
        elsewhere(
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            b"1",
        ),
        elsewhere(
            "application/vnd.oci.image.layer.nondistributable.v1.tar",
            b"2",
        ),
        it.layer(),
    ];
    let config = it.config();
    let root = it.manifest(MANIFEST, json!({ "config": config, "layers": layers }));
    it.tag("foreign-layers", &root);
}

fn unknown_fields(it: &mut Family) {
    let more = json!({ "org.example.unknown": { "nested": [1, null, "x"] } });
    let entries = [it.image(1, more.clone()), it.image(1, more.clone())];
    let root = it.list(&entries, more);
    it.tag("unknown-fields", &root);
}

/// An image and an index with missing parts. The registry must serve the existing parts.
fn sparse(it: &mut Family) {
    let layers = [it.layer(), it.absent(LAYER)];
    let config = it.config();
    let root = it.manifest(MANIFEST, json!({ "config": config, "layers": layers }));
    it.tag("sparse-image", &root);
    let entries = [it.image(1, json!({})), it.absent(MANIFEST)];
    let root = it.list(&entries, json!({}));
    it.tag("sparse-index", &root);
}

/// Contents with widely used digests: empty contents, and `{}`.
fn well_known(it: &mut Family, hash: Hash) {
    it.hash = hash;
    it.blob(LAYER, Vec::new());
    it.blob(EMPTY, b"{}".to_vec());
}

fn docker(it: &mut Family) {
    let mut entries = Vec::new();
    for _ in 0..2 {
        let (config, layer) = (it.random(300), it.random(800));
        let config = it.blob(DOCKER_CONFIG, config);
        let layer = it.blob(DOCKER_LAYER, layer);
        entries.push(it.manifest(
            DOCKER_MANIFEST,
            json!({ "config": config, "layers": [layer] }),
        ));
    }
    platforms(&mut entries);
    let root = it.manifest(DOCKER_LIST, json!({ "manifests": entries }));
    it.tag("docker", &root);
}

/// A manifest with unusual spacing: a registry that serialises the JSON again changes its digest.
fn spaced(it: &mut Family) {
    let (config, layer) = (it.config(), it.layer());
    let text = format!(
        "{{\n   \"layers\": [ {layer} ],\r\n\t\"config\":{config},\"mediaType\" : \"{MANIFEST}\", \"schemaVersion\":2\n}}\n\n"
    );
    let root = it.document(MANIFEST, text.into_bytes());
    it.tag("spaced", &root);
}

impl Family {
    fn random(&mut self, len: usize) -> Vec<u8> {
        self.seed += 1;
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(self.seed).fill(&mut bytes);
        bytes
    }

    /// Adds a blob to the family once. Returns its descriptor.
    fn blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = self.hash.of(&bytes);
        let descriptor = json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() });
        if self.blobs.iter().all(|(known, _)| *known != digest) {
            self.blobs.push((digest, bytes));
        }
        descriptor
    }

    /// The descriptor of a blob that is never pushed.
    fn absent(&mut self, media_type: &str) -> Value {
        let bytes = self.random(64);
        json!({ "mediaType": media_type, "digest": self.hash.of(&bytes), "size": bytes.len() })
    }

    fn layer(&mut self) -> Value {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&self.random(600)).expect("to memory");
        let bytes = gzip.finish().expect("to memory");
        self.blob(&format!("{LAYER}+gzip"), bytes)
    }

    fn config(&mut self) -> Value {
        self.seed += 1;
        let config = json!({
            "architecture": "amd64", "os": "linux", "author": self.seed.to_string(),
            "rootfs": { "type": "layers", "diff_ids": [] },
        });
        self.blob(CONFIG, config.to_string().into_bytes())
    }

    /// Adds an image manifest with this number of layers, and merges the fields `more` into the
    /// manifest. Returns the descriptor of the manifest.
    fn image(&mut self, layers: usize, more: Value) -> Value {
        let layers: Vec<Value> = (0..layers).map(|_| self.layer()).collect();
        let mut body = json!({ "config": self.config(), "layers": layers });
        merge(&mut body, more);
        self.manifest(MANIFEST, body)
    }

    fn list(&mut self, entries: &[Value], more: Value) -> Value {
        let mut entries = entries.to_vec();
        platforms(&mut entries);
        let mut body = json!({ "manifests": entries });
        merge(&mut body, more);
        self.manifest(INDEX, body)
    }

    fn manifest(&mut self, media_type: &'static str, mut body: Value) -> Value {
        merge(
            &mut body,
            json!({ "schemaVersion": 2, "mediaType": media_type }),
        );
        let descriptor = self.document(media_type, body.to_string().into_bytes());
        if let Some(subject) = body["subject"]["digest"].as_str() {
            let mut about = descriptor.clone();
            // The artifact type of an image is the media type of its config. An index has no
            // config.
            let fallback = &body["config"]["mediaType"];
            let own = &body["artifactType"];
            about["artifactType"] = if own.is_null() { fallback } else { own }.clone();
            if body["annotations"].is_object() {
                about["annotations"] = body["annotations"].clone();
            }
            self.referrers.push(Referrer {
                subject: subject.to_owned(),
                descriptor: about,
            });
        }
        descriptor
    }

    fn document(&mut self, media_type: &'static str, bytes: Vec<u8>) -> Value {
        let digest = self.hash.of(&bytes);
        let descriptor = json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() });
        self.documents.push(Document {
            digest,
            media_type,
            bytes,
        });
        descriptor
    }

    fn last(&self) -> Value {
        let last = self.documents.last().expect("a family with documents");
        json!({ "mediaType": last.media_type, "digest": last.digest, "size": last.bytes.len() })
    }

    fn tag(&mut self, tag: &'static str, descriptor: &Value) {
        let place = self
            .documents
            .iter()
            .position(|it| descriptor["digest"] == it.digest.as_str());
        self.tags
            .push((tag, place.expect("a document of this family")));
    }
}

fn platforms(entries: &mut [Value]) {
    for (entry, architecture) in entries.iter_mut().zip(["amd64", "arm64"]) {
        entry["platform"] = json!({ "os": "linux", "architecture": architecture });
    }
}

fn merge(body: &mut Value, more: Value) {
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
}
