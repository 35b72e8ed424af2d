//! An HTTP server for unit tests. A function computes the response to each request.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustls::RootCertStore;

use super::{Authorization, Server, TlsConfigs, Url};

/// A request that the test server has received.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// The request line and the headers.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl ReceivedRequest {
    /// Returns the method and the path, without the query.
    pub(crate) fn target(&self) -> String {
        let line = self.head.lines().next().unwrap_or_default();
        let words = line.rsplit_once(' ').map_or(line, |(words, _)| words);
        words.split('?').next().unwrap_or_default().to_owned()
    }

    /// Returns the value of a header. The name must be in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

type Handler = dyn Fn(&ReceivedRequest) -> Vec<u8> + Send + Sync;

/// A server that accepts connections until the test process ends, and handles one request on each.
pub(crate) struct TestServer {
    address: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl TestServer {
    pub(crate) fn start(
        handler: impl Fn(&ReceivedRequest) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (handler, log): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
                let stream = stream.expect("a client");
                thread::spawn(move || answer(stream, &*handler, &log));
            }
        });
        Self { address, requests }
    }

    /// Returns the settings with which a client connects to the test server, without credentials.
    pub(crate) fn server(&self) -> Server {
        self.server_as(None)
    }

    pub(crate) fn server_as(&self, authorization: Option<&str>) -> Server {
        let url = Url::parse(&self.url()).expect("a URL");
        let tls = TlsConfigs::new(RootCertStore::empty, None, None).expect("nothing to read");
        let authorization = authorization.map(|value| Authorization::new(value.to_owned()));
        Server::new(url, tls, authorization)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all requests that the server has received so far.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }

    /// Returns the targets (method and path) of all requests so far.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.requests()
            .iter()
            .map(ReceivedRequest::target)
            .collect()
    }
}

fn answer(mut stream: TcpStream, handler: &Handler, log: &Mutex<Vec<ReceivedRequest>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        // Ends the connection of a client that sends nothing.
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.push(byte[0]);
    }
    let mut request = ReceivedRequest {
        head: String::from_utf8_lossy(&head).into_owned(),
        body: Vec::new(),
    };
    let length = request
        .header("content-length")
        .map_or(0, |value| value.parse().expect("a number of bytes"));
    request.body = vec![0; length];
    stream.read_exact(&mut request.body).expect("a body");
    log.lock().push(request.clone());
    // Ignores an error, since the client may have closed the connection.
    let _ = stream.write_all(&handler(&request));
}

/// Formats a response with its length, after which the server closes the connection.
pub(crate) fn response(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        bytes += &format!("{name}: {value}\r\n");
    }
    bytes += "\r\n";
    [bytes.as_bytes(), body].concat()
}

/// Formats an error response in the form of the Distribution API.
pub(crate) fn refusal(status: &str, code: &str) -> Vec<u8> {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"reason of the test"}}]}}"#);
    response(
        status,
        &[("content-type", "application/json")],
        body.as_bytes(),
    )
}
