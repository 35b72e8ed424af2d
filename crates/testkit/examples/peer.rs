//! A fake registry and a pulling client in one process, for tests on several machines with pierhead
//! between registry and client. The program prints the URL of the registry. After that, the program
//! runs each command of its standard input, and prints one line of JSON for each command, which is
//! `{"error": …}` if the command failed:
//!
//! ```text
//! pull ADDRESS          # pulls the image and compares every byte: seconds, requests to the
//!                       # registry, responses from a cache
//! get ADDRESS PATH      # sends a GET: status and body of the response
//! down, up              # stops the registry, and starts it again
//! ```

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pierhead_testkit::http::{End, Request, Response};
use pierhead_testkit::images::Image;
use pierhead_testkit::registry::{Background, FakeRegistry};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Time limit of one command. The time is long, because an emulated machine is slow.
const TIMEOUT: Duration = Duration::from_secs(120);

const REPOSITORY: &str = "library/app";

fn main() -> Outcome<()> {
    let client = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let registry = FakeRegistry::builder().start_in_background();
    let image = Image::random(1, &[100_000, 6_000_000, 1_000_000]);
    registry.push(REPOSITORY, "1", &image);
    say(&json!({"url": registry.url()}))?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let response = match words.as_slice() {
            ["pull", address] => client.block_on(pull(address, &registry, &image)),
            ["get", address, path] => client.block_on(get(address, path)).map(|response| {
                let body = String::from_utf8_lossy(&response.body);
                json!({"status": response.status, "body": body})
            }),
            ["down"] => {
                registry.stop();
                Ok(json!({}))
            }
            ["up"] => {
                registry.restart();
                Ok(json!({}))
            }
            _ => Err(format!("unknown command {line:?}").into()),
        };
        say(&response.unwrap_or_else(|error| json!({"error": error.to_string()})))?;
    }
    Ok(())
}

fn say(response: &Value) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{response}")?;
    Ok(out.flush()?)
}

async fn pull(address: &str, registry: &Background, image: &Image) -> Outcome<Value> {
    registry.clear_requests();
    let started_at = Instant::now();
    let document = image.root_document();
    let path = format!("/v2/{REPOSITORY}/manifests/1");
    let mut hits = u32::from(whole(address, &path, &document.bytes).await?);
    let manifest = started_at.elapsed();
    let mut bytes = document.bytes.len();
    for blob in &image.blobs {
        let path = format!("/v2/{REPOSITORY}/blobs/{}", blob.digest);
        hits += u32::from(whole(address, &path, &blob.bytes).await?);
        bytes += blob.bytes.len();
    }
    Ok(json!({
        "seconds": started_at.elapsed().as_secs_f64(),
        "manifest_seconds": manifest.as_secs_f64(),
        "bytes": bytes,
        "answers": image.blobs.len() + 1,
        "hits": hits,
        "asked": registry.requests().len(),
    }))
}

/// Fetches a path. Returns whether the response came from a cache. If the body is not `expected`,
/// returns an error.
async fn whole(address: &str, path: &str, expected: &[u8]) -> Outcome<bool> {
    let response = get(address, path).await?;
    if response.status != 200 || response.end != End::Clean {
        return Err(format!("{path}: {} {:?}", response.status, response.end).into());
    }
    if response.body != expected {
        return Err(format!("{path}: other bytes").into());
    }
    Ok(matches!(response.header("x-cache"), Some("HIT" | "STALE")))
}

async fn get(address: &str, path: &str) -> Outcome<Response> {
    let address: SocketAddr = address.parse()?;
    Ok(tokio::time::timeout(TIMEOUT, Request::get(path).send(address)).await??)
}
