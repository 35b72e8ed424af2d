//! Generates hostile manifests and names for tests. pierhead must refuse these manifests and names,
//! or handle them within its limits.

use pierhead_oci::{Digest, Manifest, MediaType};
use serde_json::{Value, json};

use super::{Blob, Document, descriptor, digest_of, index};

/// A hostile document (a manifest or index), and the attack that this document tries.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// A description of the attack, for the messages of tests.
    pub tries: &'static str,
    /// The document that tries the attack.
    pub document: Document,
    /// Whether the image specification or a limit forbids the document, so that a parser must
    /// refuse the document. Documents that are not forbidden are well-formed, and their use must do
    /// no harm.
    pub malformed: bool,
}

/// Returns all hostile documents. The largest document slightly exceeds the maximum of 4 MiB for a
/// manifest.
pub fn documents() -> Vec<Hostile> {
    let layer = Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", "layer").descriptor();
    let sized =
        |size: &str| manifest(&[&layer]).replacen("\"size\":5", &format!("\"size\":{size}"), 1);
    let digested = |digest: &str| with(&layer, "digest", json!(digest));
    let hex = "a".repeat(64);
    let malformed = [
        ("nothing", String::new()),
        ("no JSON", "<html>429</html>".to_owned()),
        ("no object", "[]".to_owned()),
        ("not UTF-8 text", "\u{feff}{}".to_owned()),
        (
            "half a document",
            manifest(&[&layer]).split_at(100).0.to_owned(),
        ),
        ("more than a document", manifest(&[&layer]) + "{}"),
        ("size over the limit", padded(Manifest::MAX_SIZE + 1)),
        (
            "deep nesting of arrays",
            format!(
                "{{\"schemaVersion\":2,\"x\":{}{}}}",
                "[".repeat(100_000),
                "]".repeat(100_000)
            ),
        ),
        (
            "deep nesting of objects",
            format!("{}1{}", "{\"config\":".repeat(50_000), "}".repeat(50_000)),
        ),
        (
            "schema 1",
            json!({ "schemaVersion": 1, "name": "library/x", "tag": "latest", "fsLayers": [] })
                .to_string(),
        ),
        (
            "no schema version",
            manifest(&[&layer]).replacen("\"schemaVersion\":2", "\"schemaVersion\":null", 1),
        ),
        ("negative size", sized("-1")),
        ("size beyond 64 bits", sized("99999999999999999999999999")),
        ("broken size", sized("1.5")),
        ("size as text", sized("\"5\"")),
        (
            "digest that climbs",
            manifest(&[&digested("sha256:../../../../etc/passwd")]),
        ),
        (
            "digest with a long hash",
            manifest(&[&digested(&format!("sha256:{hex}{hex}"))]),
        ),
        (
            "digest in upper case",
            manifest(&[&digested(&format!("sha256:{}", hex.to_uppercase()))]),
        ),
        (
            "unknown hash function",
            manifest(&[&digested("crc32:00000000")]),
        ),
        (
            "no digest",
            manifest(&[&with(&layer, "digest", Value::Null)]),
        ),
        ("too many layers", manifest(&vec![&layer; 5000])),
    ];
    let allowed = [
        ("absurd size", sized("9223372036854775807")),
        ("more than any disk has", sized("1000000000000")),
        (
            "sizes that overflow when added",
            manifest(&[&with(&layer, "size", json!(i64::MAX)); 4]),
        ),
        ("the same layer many times", manifest(&vec![&layer; 1000])),
        (
            "a title that climbs",
            manifest(&[&with(
                &layer,
                "annotations",
                json!({ "org.opencontainers.image.title": "../../etc/passwd" }),
            )]),
        ),
        (
            "urls to an internal host",
            manifest(&[&with(
                &layer,
                "urls",
                json!(["http://169.254.169.254/latest/meta-data/"]),
            )]),
        ),
    ];
    let hostile = |malformed| {
        move |(tries, bytes)| Hostile {
            tries,
            document: Document::raw(MediaType::OCI_MANIFEST, bytes),
            malformed,
        }
    };
    malformed
        .into_iter()
        .map(hostile(true))
        .chain(allowed.into_iter().map(hostile(false)))
        .collect()
}

/// Returns two indexes that contain each other. With correct digests, this is impossible, so a test
/// serves the second index under a wrong digest, by
/// [`put_manifest_as`](crate::registry::FakeRegistry::put_manifest_as). The first index has its
/// correct digest.
pub fn cycle() -> (Document, (Digest, Document)) {
    let claimed = digest_of(b"what the second index claims to be");
    let entry = |digest: &Digest, size| descriptor(MediaType::OCI_INDEX, digest, size);
    let first = Document::new(&index(&[entry(&claimed, 300)]));
    let second = Document::new(&index(&[entry(&first.digest, first.bytes.len())]));
    (first, (claimed, second))
}

/// Creates a chain of `depth` nested indexes above one manifest. All of these documents are
/// well-formed. The outermost index is the last one.
pub fn nested_indexes(depth: usize) -> Vec<Document> {
    let layer = Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", "layer").descriptor();
    let mut documents = vec![Document::raw(MediaType::OCI_MANIFEST, manifest(&[&layer]))];
    for _ in 0..depth {
        let below: Vec<Value> = documents
            .last()
            .map(Document::descriptor)
            .into_iter()
            .collect();
        documents.push(Document::new(&index(&below)));
    }
    documents
}

/// Names that must never reach a file system or an upstream.
pub const NAMES: [&str; 10] = [
    "..",
    "../../etc",
    "library/../../etc",
    "library/..",
    "library//thing",
    "library/%2e%2e/thing",
    "library%2f..%2fthing",
    "library/thing\\..\\x",
    "Library/Upper",
    ".hidden/thing",
];

fn with(descriptor: &Value, key: &str, value: Value) -> Value {
    let mut changed = descriptor.clone();
    changed[key] = value;
    changed
}

fn manifest(layers: &[&Value]) -> String {
    let config = Blob::new(
        "application/vnd.oci.image.config.v1+json",
        "{\"some\":\"config\"}",
    );
    json!({
        "schemaVersion": 2,
        "mediaType": MediaType::OCI_MANIFEST,
        "config": config.descriptor(),
        "layers": layers,
    })
    .to_string()
}

/// Creates a valid manifest of this size in bytes.
fn padded(size: usize) -> String {
    let bare = manifest(&[]);
    let annotation = ",\"annotations\":{\"a\":\"\"}}";
    let fill = "b".repeat(size - (bare.len() - 1) - annotation.len());
    format!(
        "{},\"annotations\":{{\"a\":\"{fill}\"}}}}",
        &bare[..bare.len() - 1]
    )
}
