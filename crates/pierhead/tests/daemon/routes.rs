//! Tests that a running daemon has exactly the routes, methods and statuses of
//! docs/reference/http-api.md.

use std::collections::{BTreeMap, BTreeSet};

use pierhead_testkit::http::Request;

use crate::harness::Daemon;

const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"];
/// An upstream at an address without a listener, so that each request to the upstream fails
/// immediately.
const NO_UPSTREAM: &str = "docker.io=http://127.0.0.1:1";

/// The methods and statuses of each path on the documentation page.
struct Routes(BTreeMap<String, (BTreeSet<String>, BTreeSet<u16>)>);

impl Routes {
    /// Parses the section of the documentation page that has this heading.
    fn of(heading: &str) -> Self {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/http-api.md"
        );
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, section) = page.split_once(heading).expect("the section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let cells = |line: &str| -> Vec<String> {
            let cells = line.trim_matches('|').split(" | ");
            cells
                .map(|cell| cell.trim().trim_matches('`').to_owned())
                .collect()
        };
        let rows: Vec<_> = section
            .lines()
            .filter(|line| line.starts_with("| "))
            .map(cells)
            .collect();
        let common = rows.iter().filter_map(|row| row[0].parse::<u16>().ok());
        // Statuses below 400 are valid only for the paths that list them.
        let common: BTreeSet<_> = common.filter(|code| *code >= 400).collect();
        let mut routes = Self(BTreeMap::new());
        for row in rows.iter().filter(|row| row[1].starts_with('/')) {
            let methods = row[0].split(", ").map(str::to_owned);
            let codes = row.iter().find(|cell| cell.starts_with("200"));
            let codes = codes.into_iter().flat_map(|cell| cell.split(", "));
            let codes = codes.filter_map(|code| code.parse::<u16>().ok());
            let (of_path, statuses) = routes.0.entry(row[1].clone()).or_default();
            of_path.extend(methods);
            statuses.extend(codes.chain(common.iter().copied()));
        }
        routes
    }

    /// Sends each method to each path.
    async fn check(&self, daemon: &Daemon, is_admin: bool) {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (path, (methods, statuses)) in &self.0 {
            let concrete = path
                .replace("<name>", "library/redis")
                .replace("<reference>", "7");
            let concrete = concrete.replace("<digest>", &digest);
            for method in METHODS {
                // The route of single files needs the query `image`.
                let query = match path.contains("_pierhead/file") {
                    true => format!("{concrete}?image={digest}"),
                    false => concrete.clone(),
                };
                let request = Request::new(method, &query).header("x-pierhead", "1");
                let response = match is_admin {
                    true => daemon.ask(request).await,
                    false => request.send(daemon.listen).await.expect("a response"),
                };
                let is_known = methods.contains(*method)
                    || (is_admin && *method == "HEAD" && methods.contains("GET"));
                let status = response.status;
                assert_eq!(status != 405, is_known, "{method} {path}: {status}");
                assert!(statuses.contains(&status), "{method} {path}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn the_client_listener_has_the_routes_of_the_page() {
    let daemon = Daemon::start("", &["--upstream", NO_UPSTREAM]).await;
    let routes = Routes::of("## Client listener\n");
    assert!(routes.0.len() >= 11, "{}", routes.0.len());
    routes.check(&daemon, false).await;
}

#[tokio::test]
async fn the_admin_listener_has_the_routes_of_the_page() {
    let daemon = Daemon::start("", &["--upstream", NO_UPSTREAM]).await;
    let routes = Routes::of("## Admin listener\n");
    assert!(routes.0.len() >= 12, "{}", routes.0.len());
    routes.check(&daemon, true).await;
}
