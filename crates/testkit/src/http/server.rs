//! A blocking HTTP/1.1 server with one thread per connection, whose responses a function writes. In
//! contrast, the fake registry has contents and faults of its own, and is asynchronous.

use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

/// A request that a server has received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The request line and the headers.
    pub head: String,
    /// The body, whose size the header `Content-Length` states.
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    /// Reads a request. Returns `None` at the end of the connection.
    fn read(reader: &mut impl io::BufRead) -> io::Result<Option<Self>> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(None);
            }
        }
        let body = Vec::new();
        let mut request = Self { head, body };
        let length = request.header("content-length").map(str::parse);
        let length = length.transpose().map_err(io::Error::other)?;
        request.body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut request.body)?;
        Ok(Some(request))
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    /// Returns the path, without the query.
    pub fn path(&self) -> &str {
        let target = self.head.split(' ').nth(1).unwrap_or_default();
        target.split('?').next().unwrap_or_default()
    }

    /// Returns the method and the path, without the query.
    pub fn target(&self) -> String {
        format!("{} {}", self.method(), self.path())
    }

    /// Returns the value of a header, whose name may have any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let header = lines.find(|(found, _)| found.eq_ignore_ascii_case(name));
        header.map(|(_, value)| value)
    }
}

/// Serves all connections until the process ends. `respond` writes the response to a request, and
/// returns whether the connection continues.
pub fn serve(
    listener: TcpListener,
    respond: impl Fn(&ReceivedRequest, &TcpStream) -> ControlFlow<()> + Send + Sync + 'static,
) {
    let respond = Arc::new(respond);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let respond = Arc::clone(&respond);
            thread::spawn(move || -> io::Result<()> {
                stream.set_nodelay(true)?;
                let mut reader = BufReader::new(&stream);
                while let Some(request) = ReceivedRequest::read(&mut reader)? {
                    if respond(&request, &stream).is_break() {
                        break;
                    }
                }
                Ok(())
            });
        }
    });
}

/// A server on loopback that handles one request on each connection and records all requests.
pub struct TestServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl TestServer {
    /// Starts the server, which runs until the process ends. `handler` returns the bytes of each
    /// response.
    pub fn start(handler: impl Fn(&ReceivedRequest) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        serve(listener, move |request, mut stream| {
            log.lock().push(request.clone());
            // Ignores an error, since the client may have closed the connection.
            let _ = stream.write_all(&handler(request));
            ControlFlow::Break(())
        });
        Self { address, requests }
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the server: `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all requests that the server has received so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }

    /// Returns the targets (method and path) of all requests so far.
    pub fn targets(&self) -> Vec<String> {
        let requests = self.requests.lock();
        requests.iter().map(ReceivedRequest::target).collect()
    }
}

/// Formats a response with its length, after which the server closes the connection.
pub fn response(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
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
pub fn refusal(status: &str, code: &str) -> Vec<u8> {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"reason of the test"}}]}}"#);
    let json = [("content-type", "application/json")];
    response(status, &json, body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Connection, Request};

    #[tokio::test]
    async fn the_test_server_records_requests_and_closes_the_connection() {
        let server = TestServer::start(|request| match request.path() {
            "/echo" => response("200 OK", &[("x-of", "test")], &request.body),
            _ => refusal("404 Not Found", "NAME_UNKNOWN"),
        });
        let mut connection = Connection::open(server.address()).await.expect("connected");
        let request = Request::new("POST", "/echo?query").body("content");
        let echoed = connection.exchange(&request).await.expect("a response");
        assert_eq!((echoed.status, &echoed.body[..]), (200, &b"content"[..]));
        assert_eq!(echoed.header("x-of"), Some("test"));
        assert!(connection.exchange(&Request::get("/second")).await.is_err());
        let refused = Request::get("/other").send(server.address()).await;
        let refused = refused.expect("a response");
        assert_eq!(refused.status, 404);
        assert_eq!(refused.json()["errors"][0]["code"], "NAME_UNKNOWN");
        assert_eq!(server.targets(), ["POST /echo", "GET /other"]);
        let first = &server.requests()[0];
        assert_eq!(first.header("Content-LENGTH"), Some("7"));
        assert_eq!(first.body, b"content");
    }

    #[tokio::test]
    async fn a_connection_carries_requests_until_the_function_ends_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        serve(listener, |request, mut stream| {
            let written = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            match written.is_ok() && request.path() == "/more" {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        let mut connection = Connection::open(address).await.expect("connected");
        for path in ["/more", "/more", "/last"] {
            let found = connection.exchange(&Request::get(path)).await;
            assert_eq!(found.expect("a response").status, 200, "{path}");
        }
        assert!(connection.exchange(&Request::get("/more")).await.is_err());
    }
}
